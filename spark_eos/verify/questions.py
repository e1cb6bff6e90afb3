"""Keeps all records of a verification in SQL and answers questions about them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from spark_eos.verify.control_records import Fate, Uncommitted
from spark_eos.verify.database import Database
from spark_eos.verify.findings import Kind
from spark_eos.verify.partitions import OFFSETS, SHIFT, Partitions

Id = int | bytes
"""The position of the source record, or the bytes of the header or key."""
InputRow = tuple[Id, int, int, int]
"""Id, position, number of outputs expected, and DUE, DONE or AHEAD."""
OutputRow = tuple[Id, int, int]
"""Id, position, and 0 or, if the source offset goes back, 1 + the preceding source offset."""

DUE: Final = 0
"""Input below the offset that the group had before outputs were read: its output must exist."""
DONE: Final = 1
"""Input below the offset that the group had after outputs were read: its output may exist."""
AHEAD: Final = 2
"""Input at or above the later of the two offsets: its output must not exist."""

_OUTPUT: Final = 3

_SCHEMA: Final = f"""
CREATE TABLE inputs (id, position INTEGER, expected INTEGER, standing INTEGER);
CREATE TABLE outputs (id, position INTEGER, back INTEGER);
CREATE TABLE without_source (position INTEGER, value BLOB);
CREATE TABLE uncommitted (first INTEGER PRIMARY KEY, last INTEGER, fate INTEGER, producer INTEGER);
CREATE TABLE attempts (id, position INTEGER, fate INTEGER);
CREATE TABLE starts (partition INTEGER PRIMARY KEY, start INTEGER);
CREATE TABLE limits (partition INTEGER PRIMARY KEY, low INTEGER, unsure INTEGER);
CREATE VIEW seen AS
    SELECT id, standing AS code, expected AS number, position FROM inputs
    UNION ALL SELECT id, {_OUTPUT}, back, position FROM outputs;
"""

_MATCH: Final = f"""
CREATE TABLE odd AS SELECT
    id,
    COUNT(*) FILTER (WHERE code < {_OUTPUT}) AS sources,
    COUNT(*) FILTER (WHERE code = {_OUTPUT}) AS visible,
    COALESCE(SUM(number) FILTER (WHERE code < {_OUTPUT}), 0) AS expected,
    COALESCE(SUM(number) FILTER (WHERE code = {DUE}), 0) AS due,
    COALESCE(SUM(number) FILTER (WHERE code < {AHEAD}), 0) AS done,
    COALESCE(MAX(number) FILTER (WHERE code = {_OUTPUT}), 0) AS back,
    COUNT(*) FILTER (WHERE code = {_OUTPUT} AND number > 0) AS backs,
    MIN(position) FILTER (WHERE code < {_OUTPUT}) AS source,
    MIN(position) FILTER (WHERE code = {_OUTPUT}) AS first,
    MAX(position) FILTER (WHERE code = {_OUTPUT}) AS last,
    MAX(position) FILTER (WHERE code = {_OUTPUT} AND number > 0) AS moved
FROM seen GROUP BY id
HAVING visible < due OR visible > done OR backs > 0
"""
_EXPOSED: Final = """
CREATE TABLE exposed AS
    SELECT o.id, o.position, u.fate, u.producer
    FROM (SELECT id, position FROM outputs UNION ALL SELECT NULL, position FROM without_source) AS o
    JOIN uncommitted AS u
    ON u.first = (SELECT MAX(first) FROM uncommitted WHERE first <= o.position)
    WHERE o.position <= u.last AND EXISTS (SELECT 1 FROM uncommitted)
"""

# Outputs removed by retention don't count as lost. Outputs whose input was removed by retention
# don't count as outputs without an input.
_MISSING: Final = f"""
CREATE VIEW missing AS SELECT *, due - visible AS number, EXISTS (
    SELECT 1 FROM limits WHERE partition = source >> {SHIFT} AND source & {OFFSETS} < unsure
) AS unsure
FROM odd WHERE visible < due
"""
_UNMATCHED: Final = f"""
CREATE VIEW unmatched AS SELECT *, typeof(id) = 'integer' AND EXISTS (
    SELECT 1 FROM limits WHERE partition = id >> {SHIFT} AND id & {OFFSETS} < low
) AS gone
FROM odd WHERE sources = 0
"""
# Each question is a view with one row per case: `number` (of missing or surplus records), `id`,
# `source` (an input's position), `first` and `last` (outputs' positions) and `detail`.
_LOST: Final = f"""
CREATE VIEW lost_writes AS SELECT
    m.number, m.id, m.source, a.position AS first, NULL AS last, CASE a.fate
        WHEN {Fate.ABORTED:d} THEN 'aborted'
        WHEN {Fate.OPEN:d} THEN 'in an open transaction'
        ELSE 'never written' END AS detail,
    COALESCE(a.fate, 0) AS fate, m.visible
FROM missing AS m LEFT JOIN (
    SELECT id, MAX(fate) AS fate, MIN(position) AS position FROM attempts GROUP BY id
) AS a USING (id)
WHERE NOT m.unsure
"""
# If inputs may have no output, count only inputs for which the query tried to write an output.
_TRIED: Final = "AND a.fate IS NOT NULL AND NOT m.visible"

_EXPOSED_TO: Final = """
CREATE VIEW {kind} AS SELECT
    1 AS number, id, CASE typeof(id) WHEN 'integer' THEN id END AS source,
    position AS first, NULL AS last, printf('producer id %d', producer) AS detail
FROM exposed WHERE fate = {fate}
"""
# Only a position tells whether retention has removed its input. A header or key may be that of
# several inputs, so its outputs may come from one that was removed.
_INPUTS_KNOWN: Final = "(typeof(id) = 'integer' OR NOT EXISTS (SELECT 1 FROM limits WHERE low > 0))"
_DUPLICATES: Final = f"""
CREATE VIEW {Kind.DUPLICATE.value} AS SELECT
    visible - expected AS number, id, source, first, last,
    printf('%d visible, %d expected', visible, expected) AS detail
FROM odd WHERE sources AND visible > expected AND {_INPUTS_KNOWN}
"""
# The expected number of outputs is lost with the input, unless every input has one output.
_DUPLICATES_OF_GONE: Final = """
UNION ALL
SELECT visible - 1, id, id, first, last, printf('%d visible, 1 expected', visible)
FROM unmatched WHERE gone AND visible > 1
"""
_QUESTIONS: Final = (
    f"""
CREATE VIEW {Kind.PHANTOM.value} AS
SELECT
    1 AS number, NULL AS id, NULL AS source, position AS first, NULL AS last,
    CASE WHEN value IS NULL THEN 'without the header or key' ELSE 'names ' || quoted(value) END
    AS detail
FROM without_source
UNION ALL
SELECT
    visible, id, NULL, first, last,
    CASE typeof(id) WHEN 'integer' THEN 'there is no input ' || input_position(id)
    ELSE 'there is no such input' END
FROM unmatched
WHERE NOT gone AND {_INPUTS_KNOWN}
""",
    _EXPOSED_TO.format(kind=Kind.ABORTED_READ.value, fate=int(Fate.ABORTED)),
    _EXPOSED_TO.format(kind=Kind.DIRTY_READ.value, fate=int(Fate.OPEN)),
    # If a surplus record goes back, it is a duplicate, and says nothing about order.
    f"""
CREATE VIEW {Kind.REORDERED.value} AS SELECT
    backs AS number, id, id AS source, moved AS first, NULL AS last,
    printf('after offset %d', back - 1) AS detail
FROM odd WHERE sources AND visible <= expected AND backs
UNION ALL
SELECT backs, id, id, moved, NULL, printf('after offset %d', back - 1)
FROM unmatched WHERE gone AND visible = 1 AND backs
""",
    f"""
CREATE VIEW {Kind.WITHOUT_OFFSET.value} AS SELECT
    MIN(visible, expected) - done AS number, id, source, first, NULL AS last, '' AS detail
FROM odd WHERE sources AND MIN(visible, expected) > done AND {_INPUTS_KNOWN}
""",
    f"""
CREATE VIEW {Kind.UNPROCESSED.value} AS SELECT
    1 AS number, id, position AS source, NULL AS first, NULL AS last, '' AS detail
FROM inputs WHERE standing = {AHEAD} AND expected > 0
""",
)


class Records(Database):
    """The records of a verification."""

    def __init__(self, inputs: Partitions) -> None:
        def input_position(at: int) -> str:
            return str(inputs.position(at))

        super().__init__(_SCHEMA, input_position=input_position, quoted=repr)

    def add_inputs(self, rows: Iterable[InputRow]) -> None:
        """Add input records."""
        self.insert("inputs VALUES (?, ?, ?, ?)", rows)

    def add_outputs(
        self, rows: Iterable[OutputRow], without_source: Iterable[tuple[int, bytes | None]]
    ) -> None:
        """Add visible outputs; those ``without_source`` as a position and a header or key."""
        self.insert("outputs VALUES (?, ?, ?)", rows)
        self.insert("without_source VALUES (?, ?)", without_source)

    def add_uncommitted(self, base: int, runs: Iterable[Uncommitted]) -> None:
        """Add runs of records of an output partition whose transactions were not committed."""
        rows = ((base + run.first, base + run.last, int(run.fate), run.producer_id) for run in runs)
        self.insert("uncommitted VALUES (?, ?, ?, ?)", rows)

    def add_attempts(self, rows: Iterable[OutputRow]) -> None:
        """Add the uncommitted records among ``rows``, which were read with read_uncommitted."""
        self.insert(
            # Use named parameters: Python 3.12 warns about numbered ones.
            "attempts SELECT :id, :at, fate FROM uncommitted WHERE last >= :at AND "
            "first = (SELECT MAX(first) FROM uncommitted WHERE first <= :at)",
            ({"id": id_, "at": at} for id_, at, _ in rows),
        )

    def first_sources(self, starts: Collection[int]) -> list[dict[int, int]]:
        """Return the first source offset of each input partition at or after each start."""
        # Each start is in a different output partition.
        self.insert("starts VALUES (?, ?)", ((at >> SHIFT, at) for at in starts))
        places: dict[int, dict[int, int]] = {at >> SHIFT: {} for at in starts}
        # In SQLite, MIN() also selects the row that the other columns come from.
        for output, source, _ in self.ask(
            "SELECT partition, id, MIN(position) FROM outputs JOIN starts "
            f"ON partition = position >> {SHIFT} AND position >= start "
            f"WHERE typeof(id) = 'integer' GROUP BY partition, id >> {SHIFT}"
        ):
            places[output][source >> SHIFT] = source & OFFSETS
        return [*places.values()]

    def uncommitted_spans(self) -> list[tuple[int, int]]:
        """Return the first and last uncommitted position in each output partition."""
        query = f"SELECT MIN(first), MAX(last) FROM uncommitted GROUP BY first >> {SHIFT}"
        return [(first, last) for first, last in self.ask(query)]

    def match(
        self,
        # By input partition number: the first existing offset, and the offset below which retention
        # may have removed outputs.
        limits: Mapping[int, tuple[int, int]],
        *,
        at_most_once_each: bool = False,  # inputs may have fewer outputs than expected
        one_each: bool = True,  # no input, removed or not, may have several outputs
    ) -> None:
        """Match all records and create the views that answer the questions."""
        rows = ((number, *offsets) for number, offsets in limits.items())
        self.insert("limits VALUES (?, ?, ?)", rows)
        lost = f"{_LOST} {_TRIED}" if at_most_once_each else _LOST
        twice = f"{_DUPLICATES} {_DUPLICATES_OF_GONE}" if one_each else _DUPLICATES
        self.run([_MATCH, _EXPOSED, _MISSING, _UNMATCHED, lost, twice, *_QUESTIONS])
