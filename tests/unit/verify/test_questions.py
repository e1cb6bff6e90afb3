"""The questions' answers, against the same questions asked of each id in Python."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from spark_eos.verify.control_records import Fate, Uncommitted
from spark_eos.verify.findings import Kind
from spark_eos.verify.partitions import SHIFT, Partitions
from spark_eos.verify.questions import AHEAD, DONE, DUE, Records

INPUTS = Partitions({"orders": 1})
# Id, number of outputs expected, standing.
SOURCES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from((DUE, DONE, AHEAD))),
    max_size=8,
)
# Id, and whether its source offset goes back.
WRITTEN = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8)


def count(records: Records, kind: Kind) -> int:
    return records.number(f"SELECT SUM(number) FROM {kind.value}")  # noqa: S608


def model(
    sources: Iterable[tuple[int, int, int]], written: Iterable[tuple[int, bool]]
) -> Counter[Kind]:
    found: Counter[Kind] = Counter()
    for id_ in range(6):
        expected = [(number, standing) for one, number, standing in sources if one == id_]
        backs = [back for one, back in written if one == id_]
        due = sum(number for number, standing in expected if standing == DUE)
        done = sum(number for number, standing in expected if standing != AHEAD)
        every = sum(number for number, _ in expected)
        found[Kind.LOST] += max(0, due - len(backs))
        if expected:
            found[Kind.DUPLICATE] += max(0, len(backs) - every)
            found[Kind.WITHOUT_OFFSET] += max(0, min(len(backs), every) - done)
            found[Kind.REORDERED] += sum(backs) if len(backs) <= every else 0
        else:
            found[Kind.PHANTOM] += len(backs)
    found[Kind.UNPROCESSED] = sum(
        1 for _, number, standing in sources if standing == AHEAD and number
    )
    return found


@given(sources=SOURCES, written=WRITTEN, named=st.booleans())
def test_each_kind_of_finding(
    sources: list[tuple[int, int, int]], written: list[tuple[int, bool]], *, named: bool
) -> None:
    def id_of(number: int) -> int | bytes:
        return b"%d" % number if named else number

    with Records(INPUTS) as records:
        records.add_inputs(
            (id_of(id_), at, number, standing) for at, (id_, number, standing) in enumerate(sources)
        )
        records.add_outputs(
            ((id_of(id_), at, 9 if back else 0) for at, (id_, back) in enumerate(written)), ()
        )
        records.match({0: (0, 0)})
        expected = model(sources, written)
        assert {kind: count(records, kind) for kind in expected} == expected


def test_records_outside_of_committed_transactions() -> None:
    with Records(INPUTS) as records:
        records.add_outputs([(at, at, 0) for at in range(10)], [(10, b"x"), (11, None)])
        runs = [Uncommitted(2, 3, Fate.ABORTED, 7), Uncommitted(9, 10, Fate.OPEN, 8)]
        records.add_uncommitted(0, runs)
        records.match({})
        query = "SELECT id, source, first, detail FROM {}"
        aborted = records.ask(query.format(Kind.ABORTED_READ.value))
        assert aborted == [(at, at, at, "producer id 7") for at in (2, 3)]
        opened = records.ask(query.format(Kind.DIRTY_READ.value))
        assert opened == [(9, 9, 9, "producer id 8"), (None, None, 10, "producer id 8")]
        assert records.uncommitted_spans() == [(2, 10)]


def test_what_became_of_missing_outputs() -> None:
    with Records(INPUTS) as records:
        records.add_inputs((id_, id_, 1, DUE) for id_ in range(4))
        runs = [Uncommitted(0, 1, Fate.ABORTED, 7), Uncommitted(5, 5, Fate.OPEN, 8)]
        records.add_uncommitted(0, runs)
        records.match({})
        # Read again, with what was committed: only attempts count that were not.
        records.add_attempts([(0, 0, 0), (1, 1, 0), (1, 5, 0), (2, 4, 0)])
        found = records.ask(f"SELECT id, first, detail FROM {Kind.LOST.value}")  # noqa: S608
        assert found == [
            (0, 0, "aborted"),
            (1, 1, "in an open transaction"),
            (2, None, "never written"),
            (3, None, "never written"),
        ]


def test_what_retention_has_removed() -> None:
    with Records(INPUTS) as records:
        records.add_inputs((id_, id_, 1, DUE) for id_ in range(4))
        records.add_outputs([(3, 0, 0), (5, 1, 0), (9, 2, 0)], ())
        # The input begins at 6 by now; outputs of what lies below 2 may be gone.
        records.match({0: (6, 2)})
        assert count(records, Kind.LOST) == 1
        assert records.number("SELECT SUM(number) FROM missing WHERE unsure") == 2
        assert records.number("SELECT SUM(visible) FROM unmatched WHERE gone") == 1
        found = records.ask(f"SELECT first, detail FROM {Kind.PHANTOM.value}")  # noqa: S608
        assert found == [(2, "there is no input orders:0:9")]


def test_the_first_sources_that_retention_has_left() -> None:
    """What it removed while outputs were read was read in part: only what is left bounds it."""
    with Records(Partitions({"orders": 2})) as records:
        other = 1 << SHIFT
        # Of a partition whose offsets 2 to 7 were removed between two answers.
        records.add_outputs(
            [(0, 0, 0), (other, 1, 0), (other | 8, 8, 0), (8, 9, 0), (b"k", 9, 0)], []
        )
        records.add_outputs([(3, other | 5, 0)], [])
        assert records.first_sources([8, other | 6]) == [{0: 8, 1: 8}, {}]
