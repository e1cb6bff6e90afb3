"""Rows are compared as multisets, or by the last value of each key."""

from collections import Counter
from collections.abc import Iterable
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from spark_eos.verify.partitions import SHIFT
from spark_eos.verify.row_counts import EXPECTED, VISIBLE, HashedRow, RowCounts, digest

Put = tuple[int, str, str | None]  # partition, key, value


def rows(puts: Iterable[Put]) -> list[HashedRow]:
    """One after the other, so that numbers increase within a partition."""
    return [
        (
            digest([key.encode()]),
            None if value is None else digest([value.encode()]),
            (partition << SHIFT) + number,
        )
        for number, (partition, key, value) in enumerate(puts)
    ]


def asked(counts: RowCounts, view: str) -> int:
    return counts.number(f"SELECT SUM(number) FROM {view}")  # noqa: S608


def by_key(
    expected: Iterable[Put], visible: Iterable[Put], *, by_partition: bool = False
) -> dict[str, int]:
    with RowCounts() as counts:
        counts.add(EXPECTED, rows(expected))
        counts.add(VISIBLE, rows(visible))
        counts.compare_keys(by_partition=by_partition)
        kinds = ("missing", "unexpected", "different_values", "unsure")
        found = {what.removesuffix("_values"): asked(counts, what) for what in kinds}
        more = {"ambiguous": counts.number("SELECT COUNT(*) FROM ambiguous")}
        return {what: count for what, count in {**found, **more}.items() if count}


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_multisets(expected: list[str], visible: list[str]) -> None:
    wanted, seen = Counter(expected), Counter(visible)
    surplus = seen - wanted
    with RowCounts() as counts:
        counts.add(EXPECTED, rows((0, one, None) for one in expected))
        counts.add(VISIBLE, rows((0, one, None) for one in visible))
        counts.compare()
        assert asked(counts, "missing") == (wanted - seen).total()
        assert asked(counts, "duplicates") == sum(surplus[one] for one in wanted)
        assert asked(counts, "unexpected") == sum(surplus[one] for one in surplus.keys() - wanted)


def test_the_last_value_of_a_key_counts() -> None:
    expected = [(0, "a", "3"), (0, "b", "1")]
    assert by_key(expected, [(0, "a", "1"), (0, "b", "1"), (0, "a", "3"), (0, "b", "1")]) == {}
    assert by_key(expected, [(0, "a", "3"), (0, "b", "1"), (0, "a", "1")]) == {"different": 1}
    assert by_key(expected, [(0, "b", "1")]) == {"missing": 1}
    assert by_key(expected[:1], [(0, "a", "3"), (0, "b", "1")]) == {"unexpected": 1}


def test_a_null_value_deletes_its_key() -> None:
    put, deleted = (0, "a", "1"), (0, "a", None)
    assert by_key([], [put, deleted]) == {}
    assert by_key([deleted], []) == {}
    assert by_key([deleted], [deleted]) == {}
    assert by_key([put], [put, deleted]) == {"missing": 1}
    assert by_key([deleted], [put]) == {"unexpected": 1}
    assert by_key([put], [deleted, put]) == {}


def test_keys_in_several_partitions() -> None:
    one, other, third = (0, "a", "1"), (1, "a", "2"), (2, "a", "3")
    assert by_key([one], [one, (1, "a", "1")]) == {}
    for wanted in (one, other, third):
        assert by_key([wanted], [one, other, third]) == {"unsure": 1}
    # Whichever is the last, it is wrong.
    assert by_key([(0, "a", "4")], [one, other, third]) == {"different": 1}
    assert by_key([], [one, other]) == {"unexpected": 1}
    assert by_key([], [one, (1, "a", None)]) == {"unsure": 1}
    assert by_key([(0, "a", "4")], [one, (1, "a", None)]) == {"different": 1}


def test_expected_rows_of_one_key() -> None:
    twice = [(0, "a", "1"), (0, "a", "2")]
    assert by_key(twice, [(0, "a", "2")])["ambiguous"] == 1
    assert by_key([twice[0]] * 2, twice[:1]) == {}
    # Those of a topic are in order.
    assert by_key(twice, [(0, "a", "2")], by_partition=True) == {}
    assert by_key(twice, [(0, "a", "1")], by_partition=True) == {"different": 1}
    apart = [(0, "a", "1"), (1, "a", "2")]
    assert by_key(apart, [(0, "a", "2")], by_partition=True)["ambiguous"] == 1


def test_digests_differ_as_their_parts_do() -> None:
    some = [None, b"", b"a", b"b", b"ab", b"1:", b"1", b","]
    parts = [list(pair) for pair in product(some, some)] + [[one] for one in some]
    assert len({digest(one) for one in parts}) == len(parts)
