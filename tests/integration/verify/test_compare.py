"""Outputs compared with expected rows, with each difference planted on the real broker."""

import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import TopicNotFoundError, VerificationError
from spark_eos.verify import Difference, Verdict
from support.expecting import Outputs, Put, compared_with, counts, differs, examples_of, parquet
from support.flow import Flow
from support.groups import set_offsets
from support.planting import Writer, remove

ROWS: list[Put] = [("a", "1"), ("b", "2"), ("b", "2"), (None, "3"), ("d", None)]


def expect_topic(flow: Flow, rows: list[Put], partitions: int = 2) -> str:
    """A topic of expected rows in this order, with half of them in the last partition."""
    name = f"expected-{flow.name}"
    flow.broker.create_topic(name, partitions)
    outputs = Outputs(flow, "expected")
    half = len(rows) // 2
    outputs.write(rows[:half], 0, name)
    outputs.begin([("x", "aborted")], 0, name)
    outputs.abort()
    outputs.write(rows[half:], partitions - 1, name)
    return f"topic:{name}"


@pytest.fixture(params=["file", "topic"])
def expect(request: pytest.FixtureRequest, flow: Flow, tmp_path: Path) -> object:
    """The same rows, from a file or a topic."""
    if request.param == "topic":
        return expect_topic(flow, ROWS)
    return parquet(tmp_path / "expected.parquet", ROWS)


def test_what_is_there_as_expected(flow: Flow, expect: object) -> None:
    outputs = Outputs(flow)
    outputs.write(ROWS[3:] + ROWS[:1], 1)
    outputs.begin([("a", "1"), ("e", "5")])
    outputs.abort()
    outputs.write(ROWS[1:3])
    comparison = differs(flow, expect, {})
    assert comparison.verdict is Verdict.SOUND
    assert (comparison.rows_expected, comparison.records_out) == (5, 5)
    assert comparison.unchecked == (Difference.VALUE,)
    assert comparison.notes == ()


def test_missing_duplicate_and_unexpected_rows(flow: Flow, tmp_path: Path) -> None:
    outputs = Outputs(flow)
    # A null key or value differs from an empty one.
    outputs.write([("a", "1"), ("a", "1"), ("b", "2"), ("", "3"), ("d", "")])
    outputs.write([("a", "1")], 1)
    comparison = compared_with(flow, parquet(tmp_path / "expected.parquet", ROWS))
    assert counts(comparison) == {
        Difference.MISSING: 3,
        Difference.DUPLICATE: 2,
        Difference.UNEXPECTED: 2,
    }
    assert comparison.verdict is Verdict.ANOMALIES
    name = "expected.parquet"
    assert examples_of(comparison, Difference.MISSING) == [
        ("b", "2", None, f"{name}:1", ["0:2"], "1 visible, 2 expected"),
        (None, "3", None, f"{name}:3", [], "0 visible, 1 expected"),
        ("d", None, None, f"{name}:4", [], "0 visible, 1 expected"),
    ]
    assert examples_of(comparison, Difference.DUPLICATE) == [
        ("a", "1", None, f"{name}:0", ["0:0", "1:0"], "3 visible, 1 expected")
    ]
    assert examples_of(comparison, Difference.UNEXPECTED) == [
        ("", "3", None, None, ["0:3"], "1 visible, 0 expected"),
        ("d", "", None, None, ["0:4"], "1 visible, 0 expected"),
    ]
    few = compared_with(flow, tmp_path / name, examples=1)
    assert counts(few) == counts(comparison)
    assert len(examples_of(few, Difference.MISSING)) == 1


def test_differences_from_a_topic(flow: Flow) -> None:
    expect = expect_topic(flow, ROWS)
    Outputs(flow).write([*ROWS[:2], ("e", "5")])
    comparison = differs(flow, expect, {Difference.MISSING: 3, Difference.UNEXPECTED: 1})
    topic = expect.removeprefix("topic:")
    assert [one[3] for one in examples_of(comparison, Difference.MISSING)] == [
        f"{topic}:0:1",
        f"{topic}:1:1",
        f"{topic}:1:2",
    ]
    assert examples_of(comparison, Difference.UNEXPECTED)[0][:2] == ("e", "5")


def test_without_a_column_of_keys_only_values_count(flow: Flow, tmp_path: Path) -> None:
    file = parquet(tmp_path / "expected.parquet", ROWS)
    Outputs(flow).write([("other", value) for _, value in ROWS])
    assert counts(compared_with(flow, file)) == {Difference.MISSING: 5, Difference.UNEXPECTED: 5}
    pq.write_table(pq.read_table(file).drop_columns(["key"]), file)
    comparison = compared_with(flow, file)
    assert comparison.verdict is Verdict.SOUND
    assert comparison.notes == (
        "keys were not compared, since the expected rows have no column 'key'",
    )


def test_rows_of_several_topics(flow: Flow, tmp_path: Path) -> None:
    other = f"{flow.target}-b"
    flow.broker.create_topic(other, 1)
    both = {"outputs": [flow.target, other]}
    outputs = Outputs(flow)
    outputs.write([("a", "1")])
    outputs.write([("b", "2")], 0, other)
    plain = parquet(tmp_path / "plain.parquet", [("a", "1"), ("b", "2")])
    assert counts(compared_with(flow, plain, **both)) == {}
    right = parquet(
        tmp_path / "right.parquet", [("a", "1"), ("b", "2")], topic=[flow.target, other]
    )
    wrong = parquet(
        tmp_path / "wrong.parquet", [("a", "1"), ("b", "2")], topic=[other, flow.target]
    )
    for key in (False, True):
        assert counts(compared_with(flow, right, key=key, **both)) == {}
        found = counts(compared_with(flow, wrong, key=key, **both))
        assert found == {Difference.MISSING: 2, Difference.UNEXPECTED: 2}
    with pytest.raises(VerificationError, match=rf"right\.parquet:1 is for topic '{other}'"):
        compared_with(flow, right)
    without = parquet(tmp_path / "none.parquet", [("a", "1"), ("b", "2")], topic=[other, None])
    with pytest.raises(VerificationError, match=r"none\.parquet:1 has no topic"):
        compared_with(flow, without.as_uri(), **both)


def test_the_last_value_of_each_key(flow: Flow, tmp_path: Path) -> None:
    expected: list[Put] = [("a", "3"), ("b", "1"), ("c", "1"), ("d", "1")]
    outputs = Outputs(flow)
    outputs.write([("a", "1"), ("b", "1"), ("c", "1")])
    outputs.write([("a", "3"), ("b", "1")])
    outputs.begin([("a", "4")])
    outputs.abort()
    outputs.write([("d", "1")], 1)
    file = parquet(tmp_path / "expected.parquet", expected)
    topic = expect_topic(flow, [("a", "0"), *expected, ("e", None)], 1)
    for expect in (file, topic):
        comparison = differs(flow, expect, {}, key=True)
        assert comparison.verdict is Verdict.SOUND
        assert comparison.unchecked == (Difference.DUPLICATE,)

    outputs.write([("a", "1"), ("c", None), ("e", "5"), (None, "9")])
    for expect in (file, topic):
        comparison = compared_with(flow, expect, key=True)
        assert counts(comparison) == {
            Difference.MISSING: 1,
            Difference.UNEXPECTED: 2,
            Difference.VALUE: 1,
        }
        assert comparison.records_out == 10
    comparison = compared_with(flow, file, key=True)
    name = "expected.parquet"
    last = examples_of(comparison, Difference.VALUE)
    assert last == [("a", "1", "3", f"{name}:0", last[0][4], "")]
    assert [one[:4] + one[5:] for one in examples_of(comparison, Difference.MISSING)] == [
        ("c", "1", None, f"{name}:2", "deleted")
    ]
    assert [one[:3] + one[5:] for one in examples_of(comparison, Difference.UNEXPECTED)] == [
        ("e", "5", None, ""),
        (None, "9", None, "without a key"),
    ]


def test_compacted_topics_are_compared_by_key_alone(flow: Flow, tmp_path: Path) -> None:
    compacted = f"compacted-{flow.name}"
    flow.broker.create_topic(compacted, 1, {"cleanup.policy": "compact"})
    rows = [("a", "1"), ("b", "2")]
    for topic in (compacted, flow.target):
        Outputs(flow).write(rows, topic=topic)
    file = parquet(tmp_path / "e.parquet", rows)
    for pair in ((file, compacted), (f"topic:{compacted}", flow.target)):
        arguments: dict[str, Any] = {"expect": pair[0], "outputs": [pair[1]]}
        with pytest.raises(VerificationError, match=f"'{compacted}' is compacted .*--key"):
            compared_with(flow, **arguments)
        assert compared_with(flow, **arguments, key=True).verdict is Verdict.SOUND


def test_a_key_in_several_partitions_can_not_be_judged(flow: Flow, tmp_path: Path) -> None:
    outputs = Outputs(flow)
    outputs.write([("a", "1")])
    outputs.write([("a", "2")], 1)
    comparison = compared_with(flow, parquet(tmp_path / "e.parquet", [("a", "2")]), key=True)
    assert (counts(comparison), comparison.verdict) == ({}, Verdict.UNJUDGED)
    assert list(comparison.unjudged.values()) == [1]
    other = parquet(tmp_path / "e.parquet", [("a", "3")])
    wrong = differs(flow, other, {Difference.VALUE: 1}, key=True)
    assert examples_of(wrong, Difference.VALUE)[0][4] == ["0:0", "1:0"]


def test_expected_rows_that_can_not_be_compared_by_key(flow: Flow, tmp_path: Path) -> None:
    Outputs(flow).write([("a", "1")])
    twice = parquet(tmp_path / "e.parquet", [("b", "0"), ("a", "1"), ("a", "2")])
    with pytest.raises(VerificationError, match=r"e\.parquet:1 and e\.parquet:2 .* key 'a'"):
        compared_with(flow, twice, key=True)
    keyless = parquet(tmp_path / "e.parquet", [("a", "1"), (None, "2")])
    with pytest.raises(VerificationError, match=r"e\.parquet:1 has no key"):
        compared_with(flow, keyless, key=True)


@pytest.mark.slow
def test_open_transactions(flow: Flow, tmp_path: Path) -> None:
    file = parquet(tmp_path / "e.parquet", ROWS)
    outputs, other = Outputs(flow), Outputs(flow, "other")
    outputs.write(ROWS[:2])
    other.begin(ROWS[2:3])
    outputs.write(ROWS[3:])
    comparison = compared_with(flow, file, timeout=1)
    # What was committed behind the open one can't be seen either.
    assert counts(comparison) == {Difference.MISSING: 3, Difference.OPEN: 1}
    # Records 0 and 1, and a marker.
    (example,) = examples_of(comparison, Difference.OPEN)
    assert example[4:] == (["0:3"], "last stable offset 3, end 7")
    assert any("open transaction" in note for note in comparison.notes)
    prefixed = compared_with(flow, file, timeout=1, prefix="other-")
    assert counts(prefixed)[Difference.OPEN] == 2
    threading.Timer(0.5, other.commit).start()
    assert counts(compared_with(flow, file)) == {}


def test_a_transaction_that_is_open_in_the_expected_topic(flow: Flow) -> None:
    Outputs(flow).write(ROWS)
    expect = expect_topic(flow, ROWS)
    late = Outputs(flow, "late")
    late.begin([("late", "")], 0, expect.removeprefix("topic:"))
    assert counts(compared_with(flow, expect, timeout=1)) == {Difference.OPEN: 1}
    late.abort()
    assert counts(compared_with(flow, expect)) == {}


def test_offsets_that_are_about_to_change(flow: Flow, tmp_path: Path) -> None:
    file = parquet(tmp_path / "e.parquet", ROWS)
    Outputs(flow).write(ROWS)
    with pytest.raises(VerificationError, match="has no committed offset"):
        compared_with(flow, file, group_id=flow.group_id)
    at = {TopicPartition(flow.source, partition): 0 for partition in range(2)}
    set_offsets(flow.bootstrap_servers, flow.group_id, at)
    assert counts(compared_with(flow, file, group_id=flow.group_id)) == {}
    writer = Writer(flow)
    writer.begin([], {1: 5})
    comparison = differs(flow, file, {Difference.OPEN: 1}, group_id=flow.group_id, timeout=1)
    detail = examples_of(comparison, Difference.OPEN)[0][5]
    assert detail == f"offset of group {flow.group_id} in {flow.source}:1 is about to change"
    assert counts(compared_with(flow, file, timeout=1)) == {}
    threading.Timer(0.5, writer.commit).start()
    assert counts(compared_with(flow, file, group_id=flow.group_id)) == {}


@pytest.mark.parametrize("key", [False, True])
def test_what_retention_has_removed(flow: Flow, tmp_path: Path, *, key: bool) -> None:
    rows: list[Put] = [("a", "1"), ("b", "2"), ("c", "3")]
    file = parquet(tmp_path / "e.parquet", rows)
    Outputs(flow).write(rows)
    remove(flow, flow.target, 0, 2)
    comparison = compared_with(flow, file, key=key)
    assert (counts(comparison), comparison.verdict) == ({}, Verdict.UNJUDGED)
    assert dict(comparison.unjudged) == {"missing rows, where retention has removed outputs": 2}
    # What is left can still be wrong.
    Outputs(flow).write([("d", "4")], 1)
    assert counts(compared_with(flow, file, key=key)) == {Difference.UNEXPECTED: 1}


@pytest.mark.parametrize("key", [pytest.param(False, marks=pytest.mark.slow), True])
def test_expected_records_that_retention_has_removed(flow: Flow, *, key: bool) -> None:
    rows: list[Put] = [("a", "1"), ("b", "2"), ("c", "3")]
    Outputs(flow).write(rows)
    expect = expect_topic(flow, rows, 1)
    remove(flow, expect.removeprefix("topic:"), 0, 1)
    comparison = compared_with(flow, expect, key=key)
    assert (counts(comparison), comparison.verdict) == ({}, Verdict.UNJUDGED)
    assert sum(comparison.unjudged.values()) == 1


def test_many_rows_in_several_files_and_batches(flow: Flow, tmp_path: Path) -> None:
    rows: list[Put] = [(f"k{number % 7}", str(number)) for number in range(20_000)]
    for number in range(3):
        parquet(tmp_path / "e" / f"part-{number}.parquet", rows[number::3])
    outputs = Outputs(flow)
    outputs.write([*rows[:9_999], rows[77], *rows[10_000:15_000]])
    outputs.write(rows[15_000:], 1)
    progress: list[tuple[str, int, int]] = []
    comparison = compared_with(
        flow, tmp_path / "e", watch=lambda *step: progress.append(step), examples=3
    )
    assert counts(comparison) == {Difference.MISSING: 1, Difference.DUPLICATE: 1}
    assert examples_of(comparison, Difference.MISSING) == [
        ("k3", "9999", None, "part-0.parquet:3333", [], "0 visible, 1 expected")
    ]
    assert examples_of(comparison, Difference.DUPLICATE) == [
        ("k0", "77", None, "part-2.parquet:25", ["0:77", "0:9999"], "2 visible, 1 expected")
    ]
    expected = [step for step in progress if step[0] == "Reading expected rows"]
    assert len(expected) > 3
    assert expected[-1][1:] == (20_000, 20_000)
    (end,) = {total for what, _, total in progress if what == "Reading outputs"}
    assert ("Reading outputs", end, end) in progress


def test_long_and_unprintable_values_are_shortened_and_escaped(flow: Flow, tmp_path: Path) -> None:
    Outputs(flow).write([("\x1b[2J", "é" * 5_000), ("k", "\n")])
    comparison = compared_with(flow, parquet(tmp_path / "e.parquet", []))
    assert [one[:2] for one in examples_of(comparison, Difference.UNEXPECTED)] == [
        ("\\x1b[2J", "é" * 60 + "..."),
        ("k", "\\n"),
    ]


@pytest.mark.parametrize("missing", [{"outputs": ["no-such-topic"]}, {"expect": "topic:no-such"}])
def test_topics_that_do_not_exist(flow: Flow, tmp_path: Path, missing: dict[str, Any]) -> None:
    file = parquet(tmp_path / "e.parquet", ROWS)
    with pytest.raises(TopicNotFoundError, match="no-such"):
        compared_with(flow, **{"expect": file, **missing})
