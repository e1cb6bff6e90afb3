"""The verifier's SQL queries give the same answers as Python code for each id."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

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


def test_the_first_sources_that_retention_has_left() -> None:
    """Records removed while outputs are read were read in part: only what is left bounds it."""
    with Records(Partitions({"orders": 2})) as records:
        other = 1 << SHIFT
        # Of a partition whose offsets 2 to 7 were removed between two answers.
        records.add_outputs(
            [(0, 0, 0), (other, 1, 0), (other | 8, 8, 0), (8, 9, 0), (b"k", 9, 0)], []
        )
        records.add_outputs([(3, other | 5, 0)], [])
        assert records.first_sources([8, other | 6]) == [{0: 8, 1: 8}, {}]
