"""All records of a verification, in a temporary SQLite database: memory use stays constant.

The tables have no index: one sort of all records by id matches them. An id is either the position
of the source record (an integer of `places`) or the bytes of the header or key.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from spark_eos.verify.database import Database
from spark_eos.verify.markers import Fate, Uncommitted
from spark_eos.verify.places import OFFSETS, SHIFT

Id = int | bytes
InputRow = tuple[Id, int, int, int]
"""Id, position, number of outputs expected, and DUE, DONE or AHEAD."""
OutputRow = tuple[Id, int, int]
"""Id, position, and 0, or if the source offset goes back here: 1 + the offset that precedes it."""

DUE: Final = 0
"""Input below the group's offset from before the outputs were read: its output must exist."""
DONE: Final = 1
"""Input below the group's offset from after the outputs were read: its output may exist."""
AHEAD: Final = 2
"""Input at or above that offset: its output must not exist."""

_OUTPUT: Final = 3

_SCHEMA: Final = f"""
CREATE TABLE inputs (id, position INTEGER, expected INTEGER, standing INTEGER);
CREATE TABLE outputs (id, position INTEGER, back INTEGER);
CREATE TABLE strays (position INTEGER, value BLOB);
CREATE TABLE uncommitted (first INTEGER PRIMARY KEY, last INTEGER, fate INTEGER, producer INTEGER);
CREATE TABLE attempts (id, position INTEGER, fate INTEGER);
CREATE TABLE limits (place INTEGER PRIMARY KEY, low INTEGER, unsure INTEGER);
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

# Removal by retention is neither a loss, nor does it turn outputs into outputs of no input.
_UNSURE: Final = f"""EXISTS (
    SELECT 1 FROM limits WHERE place = source >> {SHIFT} AND source & {OFFSETS} < unsure)"""
_GONE: Final = f"""EXISTS (
    SELECT 1 FROM limits WHERE place = id >> {SHIFT} AND id & {OFFSETS} < low)"""

_MISSING: Final = """
CREATE VIEW missing AS
    SELECT id, source, due - visible AS number, visible FROM odd WHERE visible < due"""
_UNSURE_VIEW: Final = f"""
CREATE VIEW unsure AS SELECT * FROM missing WHERE {_UNSURE}"""
_LOST: Final = f"""
CREATE VIEW lost AS
    SELECT m.*, COALESCE(a.fate, 0) AS fate, a.position AS attempt
    FROM missing AS m LEFT JOIN (
        SELECT id, MAX(fate) AS fate, MIN(position) AS position FROM attempts GROUP BY id
    ) AS a USING (id)
    WHERE NOT {_UNSURE}"""
# Where inputs may have no output: only those whose outputs the query has tried to write.
_LOST_AFTER_ATTEMPTS: Final = f"{_LOST} AND a.fate IS NOT NULL AND NOT m.visible"
_DUPLICATES: Final = """
CREATE VIEW duplicates AS
    SELECT id, source, first, last, visible - expected AS number, visible, expected
    FROM odd WHERE sources AND visible > expected"""
_AHEAD: Final = """
CREATE VIEW ahead AS
    SELECT id, source, first, MIN(visible, expected) - done AS number
    FROM odd WHERE sources AND MIN(visible, expected) > done"""
_UNMATCHED: Final = f"""
CREATE VIEW unmatched AS
    SELECT id, first, last, visible AS number, typeof(id) = 'integer' AND {_GONE} AS gone
    FROM odd WHERE sources = 0"""
# A surplus record that goes back is a duplicate, and says nothing about order.
_REORDERED: Final = """
CREATE VIEW reordered AS
    SELECT id, moved, back, backs AS number
    FROM odd WHERE sources AND visible <= expected AND backs"""
_EXPOSED: Final = """
CREATE TABLE exposed AS
    SELECT o.id, o.position, u.fate, u.producer
    FROM (SELECT id, position FROM outputs UNION ALL SELECT NULL, position FROM strays) AS o
    JOIN uncommitted AS u
    ON u.first = (SELECT MAX(first) FROM uncommitted WHERE first <= o.position)
    WHERE o.position <= u.last AND EXISTS (SELECT 1 FROM uncommitted)"""


class Ledger(Database):
    """The database of a verification."""

    def __init__(self) -> None:
        super().__init__(_SCHEMA)

    def add_inputs(self, rows: Iterable[InputRow]) -> None:
        """Adds input records."""
        self._database.executemany("INSERT INTO inputs VALUES (?, ?, ?, ?)", rows)

    def add_outputs(self, rows: Iterable[OutputRow]) -> None:
        """Adds visible output records."""
        self._database.executemany("INSERT INTO outputs VALUES (?, ?, ?)", rows)

    def add_strays(self, rows: Iterable[tuple[int, bytes | None]]) -> None:
        """Adds visible output records that refer to no input partition: position, header or key."""
        self._database.executemany("INSERT INTO strays VALUES (?, ?)", rows)

    def add_uncommitted(self, runs: Iterable[Uncommitted]) -> None:
        """Adds runs of output records whose transactions were not committed."""
        self._database.executemany(
            "INSERT INTO uncommitted VALUES (?, ?, ?, ?)",
            ((run.first, run.last, int(run.fate), run.producer_id) for run in runs),
        )

    def add_attempts(self, rows: Iterable[tuple[Id, int]]) -> None:
        """Adds output records read with read_uncommitted (id, position).

        Keeps only those of transactions that were not committed.
        """
        self._database.executemany(
            # By name: Python 3.12 warns of numbered ones.
            "INSERT INTO attempts SELECT :id, :at, fate FROM uncommitted WHERE last >= :at AND "
            "first = (SELECT MAX(first) FROM uncommitted WHERE first <= :at)",
            ({"id": id_, "at": at} for id_, at in rows),
        )

    def uncommitted_spans(self) -> dict[int, tuple[int, int]]:
        """Returns, by place, the offset range from the first to the last uncommitted record."""
        found = self._database.execute(
            f"SELECT first >> {SHIFT}, MIN(first) & {OFFSETS}, MAX(last) & {OFFSETS} "
            "FROM uncommitted GROUP BY 1"
        )
        return {place: (low, last + 1) for place, low, last in found}

    def match(
        self,
        lows: Mapping[int, int],
        unsure: Mapping[int, int],
        *,
        at_most_once_each: bool = False,
    ) -> None:
        """Matches all records; creates the views that `count` and `rows` read.

        Args:
            lows: First existing offset, by input place.
            unsure: Offset below which retention may have removed outputs, by input place.
            at_most_once_each: Whether inputs may have no output, or fewer than expected.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        self._database.executemany(
            "INSERT INTO limits VALUES (?, ?, ?)",
            ((place, low, unsure.get(place, 0)) for place, low in lows.items()),
        )
        self._run(
            _MATCH,
            _EXPOSED,
            _MISSING,
            _UNSURE_VIEW,
            _LOST_AFTER_ATTEMPTS if at_most_once_each else _LOST,
            _DUPLICATES,
            _AHEAD,
            _UNMATCHED,
            _REORDERED,
        )

    def lost_by_fate(self) -> dict[str, int]:
        """Counts lost outputs by the fate of their attempts: ``aborted``, ``open`` or ``none``."""
        found = dict(self._database.execute("SELECT fate, SUM(number) FROM lost GROUP BY fate"))
        names = {0: "none", int(Fate.ABORTED): "aborted", int(Fate.OPEN): "open"}
        return {name: int(found[fate]) for fate, name in names.items() if fate in found}
