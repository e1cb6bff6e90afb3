"""The verifier, on outputs with planted anomalies on the real broker."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from spark_eos.errors import VerificationError
from spark_eos.verify import Kind, Verdict
from support.dead_letters import write_not_utf8
from support.flow import Flow
from support.planting import (
    ALL,
    ENDS,
    MATCHINGS,
    Writer,
    counts,
    examples,
    fill,
    judged,
    look,
    name_of,
    remove,
    set_offsets,
    sources,
)


@pytest.fixture
def flow(flow: Flow) -> Flow:
    """A flow whose source has records."""
    fill(flow)
    return flow


@pytest.fixture(params=["flow", "filled_mirrored_flow"])
def either(request: pytest.FixtureRequest) -> Flow:
    """A flow with records in the target's cluster or in another."""
    found: Flow = request.getfixturevalue(request.param)
    return found


def test_a_sound_run(either: Flow) -> None:
    writer = Writer(either)
    writer.begin(sources(range(3), range(3)), {0: 3, 1: 3})
    writer.abort()
    writer.write(sources(range(3), range(3)), {0: 3, 1: 3})
    writer.write(ALL[3:5], {0: 5})
    for matching in MATCHINGS:
        findings = judged(either, {Kind.UNPROCESSED: 2}, **matching)
        assert findings.verdict is Verdict.SOUND
        assert (findings.records_in, findings.records_out) == (10, 8)
        group = [(one.topic, one.partition, one.committed, one.end) for one in findings.group]
        assert group == [(either.source, 0, 5, 5), (either.source, 1, 3, 5)]
        assert look(either, complete=True, **matching).verdict is Verdict.ANOMALIES
    writer.write(ALL[8:], {1: 5})
    for matching in MATCHINGS:
        for group_id in (either.group_id, None):
            findings = judged(either, {}, group_id=group_id, **matching)
            unchecked = set() if "position_header" in matching else {Kind.REORDERED}
            assert {*findings.unchecked} & {Kind.REORDERED} == unchecked


def test_lost_writes_and_what_became_of_their_attempts(flow: Flow) -> None:
    writer = Writer(flow)
    writer.begin([(1, 2)])
    writer.abort()
    writer.write([s for s in ALL if s not in [(0, 1), (1, 2)]], ENDS)
    for matching in MATCHINGS:
        findings = judged(flow, {Kind.LOST: 2}, **matching)
        assert findings.verdict is Verdict.ANOMALIES
        assert findings.found[Kind.LOST].parts == {"none": 1, "aborted": 1}
        assert examples(findings, Kind.LOST) == [
            ("0:1", [], "never written"),
            ("1:2", ["1:0"], "aborted"),
        ]
        # Without a group all input is due, too.
        findings = judged(flow, {Kind.LOST: 2}, group_id=None, **matching)
        assert findings.unchecked[-3:] == (Kind.WITHOUT_OFFSET, Kind.BEYOND_END, Kind.UNPROCESSED)


@pytest.mark.slow
def test_output_in_an_open_transaction_is_lost_or_a_dirty_read(flow: Flow) -> None:
    set_offsets(flow, ENDS)
    Writer(flow).write(ALL[:-1])
    other = Writer(flow, "other")
    other.begin([ALL[-1]])
    findings = judged(flow, {Kind.LOST: 1, Kind.OPEN: 1}, timeout=1)
    assert findings.found[Kind.LOST].parts == {"open": 1}
    findings = judged(
        flow, {Kind.DIRTY_READ: 1, Kind.OPEN: 1}, isolation_level="read_uncommitted", timeout=1
    )
    assert examples(findings, Kind.DIRTY_READ)[0][:2] == ("1:4", ["1:5"])
    other.commit()
    for level in ("read_committed", "read_uncommitted"):
        assert counts(look(flow, isolation_level=level)) == {}


def test_duplicates_are_no_reordering(flow: Flow) -> None:
    writer = Writer(flow)
    writer.write(ALL, ENDS)
    writer.write(sources(range(1, 3)))
    for matching in MATCHINGS:
        findings = judged(flow, {Kind.DUPLICATE: 2}, examples=1, **matching)
        assert examples(findings, Kind.DUPLICATE) == [
            ("0:1", ["0:1", "0:6"], "2 visible, 1 expected")
        ]


def test_outputs_of_no_input(flow: Flow) -> None:
    writer = Writer(flow)
    writer.begin(ALL, ENDS)
    writer.raw({"src": f"{flow.source}:0:5".encode()})
    writer.raw({"src": f"{flow.source}:2:0".encode()})
    writer.raw({"src": b"other:0:1"})
    writer.raw({"src": f"{flow.source}:0:{1 << 48}".encode()})
    writer.raw({"src": f"{flow.source}:0:-1".encode()})
    writer.raw({"src": b"nonsense"})
    writer.raw({})
    writer.commit()
    findings = judged(flow, {Kind.PHANTOM: 7}, examples=7)
    assert [outputs for _, outputs, _ in examples(findings, Kind.PHANTOM)] == [
        *([f"0:{offset}"] for offset in range(6, 12)),
        ["0:5"],
    ]
    assert examples(look(flow, header="id", examples=1), Kind.PHANTOM) == [
        ("", ["0:5"], "without the header or key")
    ]
    assert examples(look(flow, key=True), Kind.PHANTOM) == [
        ("x", ["0:5", "0:11"], "there is no such input")
    ]


def test_aborted_reads(flow: Flow) -> None:
    writer, other = Writer(flow), Writer(flow, "other")
    # Two transactions in one partition, of which one is aborted, around a third that is not.
    writer.begin([(0, 0)])
    other.begin([(0, 1)])
    writer.abort()
    other.commit()
    writer.write([s for s in ALL if s not in [(0, 0), (0, 1)]], ENDS)
    assert counts(look(flow)) == {Kind.LOST: 1}
    findings = judged(flow, {Kind.ABORTED_READ: 1}, isolation_level="read_uncommitted")
    ((source, outputs, _),) = examples(findings, Kind.ABORTED_READ)
    assert (source, outputs) == ("0:0", ["0:0"])
    # One that names no input.
    writer.begin()
    writer.raw({})
    writer.abort()
    found = counts(look(flow, isolation_level="read_uncommitted"))
    assert found == {Kind.ABORTED_READ: 2, Kind.PHANTOM: 1}


def test_reordering(flow: Flow) -> None:
    writer = Writer(flow)
    writer.write([(0, 2), (0, 1), (0, 3), (0, 4)], ENDS)
    # Order is that of one target partition: whichever of the two is read first, the other goes on
    # with earlier offsets of a source partition.
    writer.write([(0, 0)], to=1)
    writer.write(sources(range(0), range(3, 5)), to=1)
    writer.write(sources(range(0), range(3)), to=0)
    findings = judged(flow, {Kind.REORDERED: 1})
    assert examples(findings, Kind.REORDERED) == [("0:1", ["0:1"], "after offset 2")]


def test_outputs_without_their_offset(flow: Flow) -> None:
    Writer(flow).write(ALL[:-1], {0: 5, 1: 3})
    for matching in MATCHINGS:
        findings = look(flow, **matching)
        # The last one is processed by neither measure.
        assert counts(findings) == {Kind.WITHOUT_OFFSET: 1, Kind.UNPROCESSED: 2}
        assert examples(findings, Kind.WITHOUT_OFFSET) == [("1:3", ["1:3"], "")]
    set_offsets(flow, {1: 9})
    findings = judged(flow, {Kind.LOST: 1, Kind.BEYOND_END: 1})
    assert examples(findings, Kind.BEYOND_END) == [("1:9", [], "the input ends at 5")]


def test_open_transactions(flow: Flow) -> None:
    Writer(flow).write(ALL, ENDS)
    # One with an output, one with nothing but an offset.
    first, second = Writer(flow, "first"), Writer(flow, "second")
    first.begin()
    first.raw({})
    findings = judged(flow, {Kind.OPEN: 1}, timeout=1)
    assert examples(findings, Kind.OPEN) == [("", ["0:6"], "last stable offset 6, end 7")]
    first.abort()
    second.begin([], {0: 5})
    findings = judged(flow, {Kind.OPEN: 1}, timeout=1)
    assert "is about to change" in examples(findings, Kind.OPEN)[0][2]
    set_apart: dict[str, Any] = {"group_id": None, "timeout": 1}
    assert counts(look(flow, **set_apart, prefix="second-")) == {Kind.OPEN: 1}
    assert counts(look(flow, **set_apart, prefix="first-")) == {}
    second.abort()


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_it_waits_until_transactions_end(either: Flow, *, written: bool) -> None:
    """Also for the first one of a group, and for one that has nothing but offsets."""
    if written:
        Writer(either, "earlier").write(ALL)
    writer = Writer(either)
    writer.begin([] if written else ALL, ENDS)
    timer = threading.Timer(0.7, writer.commit)
    timer.start()
    judged(either, {}, timeout=60)
    timer.join()


def test_expected_numbers_of_outputs(new_flow: Callable[..., Flow]) -> None:
    flow = new_flow()
    fill(flow, expect={(0, 0): b"0", (0, 1): b"3"})
    writer = Writer(flow)
    writer.write([*ALL[1:2] * 3, *ALL[2:]], ENDS)
    for matching in MATCHINGS:
        assert counts(look(flow, expect_header="expect", **matching)) == {}
    assert counts(look(flow)) == {Kind.LOST: 1, Kind.DUPLICATE: 2}
    writer.write(ALL[:1])
    findings = judged(flow, {Kind.DUPLICATE: 1}, expect_header="expect")
    assert examples(findings, Kind.DUPLICATE)[0][2] == "1 visible, 0 expected"


def test_a_query_that_filters(flow: Flow) -> None:
    """Inputs may be missing, but not duplicated; one whose output was aborted was not filtered."""
    writer = Writer(flow)
    writer.begin([(1, 3)])
    writer.abort()
    writer.write([(0, 1), (0, 2), (1, 4)], {0: 5, 1: 5})
    findings = judged(flow, {Kind.LOST: 1}, at_most_once_each=True)
    assert findings.found[Kind.LOST].parts == {"aborted": 1}
    assert [example[0] for example in examples(findings, Kind.LOST)] == ["1:3"]
    writer.write([(0, 1), (1, 3)], {})
    findings = judged(flow, {Kind.DUPLICATE: 1, Kind.REORDERED: 1}, at_most_once_each=True)
    # Without the option it says which one is missing.
    findings = look(flow)
    assert findings.count(Kind.LOST) == 6
    note, _about_the_duplicate = findings.notes
    assert "6 processed inputs were never written" in note
    assert "--at-most-once-each" in note
    # It may have been written again, and removed since, but nobody knows.
    remove(flow, flow.target, 0, 1)
    findings = look(flow, at_most_once_each=True)
    assert findings.unjudged == {}
    writer.begin([(1, 0)])
    writer.abort()
    findings = look(flow, at_most_once_each=True)
    assert findings.unjudged == {"missing outputs, where retention has removed outputs": 1}


def test_a_query_that_filters_and_explodes(new_flow: Callable[..., Flow]) -> None:
    """The header gives the maximum number of outputs."""
    flow = new_flow()
    fill(flow, expect={(0, 0): b"3", (1, 1): b"2"})
    writer = Writer(flow)
    writer.write([(0, 0), (0, 0), (1, 1), (1, 1)], {0: 5, 1: 5})
    options = {"expect_header": "expect", "at_most_once_each": True}
    assert counts(look(flow, **options)) == {}
    writer.write([(1, 1)], {})
    assert counts(look(flow, **options)) == {Kind.DUPLICATE: 1}
    (note,) = [note for note in look(flow, at_most_once_each=True).notes if "several" in note]
    assert "--expect-header" in note


def test_input_that_retention_removed(flow: Flow) -> None:
    Writer(flow).write(ALL, ENDS)
    remove(flow, flow.source, 0, 3)
    findings = judged(flow, {})
    assert (findings.verdict, findings.input_gone, findings.notes) == (Verdict.SOUND, 3, ())
    by_key = judged(flow, {}, key=True)
    assert by_key.verdict is Verdict.UNJUDGED
    assert list(by_key.unjudged.values()) == [3, 7]
    set_offsets(flow, {0: 1})
    assert look(flow).notes == ("retention removed 2 input offsets before they were processed",)


def test_keys_that_repeat_when_retention_has_removed_inputs(flow: Flow) -> None:
    """An output may be that of a removed input, so neither surplus nor completeness is known."""
    producer = Producer(flow.kafka)
    for _ in range(2):
        producer.produce(flow.source, b"v", name_of((0, 0)), 0)
    assert producer.flush(60) == 0
    Writer(flow).write([*ALL, (0, 0), (0, 0)], {0: 7, 1: 5})
    assert look(flow, key=True).verdict is Verdict.SOUND
    remove(flow, flow.source, 0, 1)
    reason = "outputs that may come from inputs that retention has removed"
    assert judged(flow, {}, key=True).unjudged == {reason: 12}


@pytest.mark.parametrize("complete", [False, True])
def test_input_removed_before_it_was_processed(flow: Flow, *, complete: bool) -> None:
    Writer(flow).write([*ALL[:2], *ALL[5:]], {0: 2, 1: 5})
    remove(flow, flow.source, 0, 5)
    findings = judged(flow, {}, complete=complete)
    assert findings.verdict is Verdict.UNJUDGED
    assert list(findings.unjudged.values()) == [3]


def test_outputs_of_removed_input_are_judged_among_themselves(flow: Flow) -> None:
    writer = Writer(flow)
    writer.write([(0, 1), (0, 0), (0, 2), (0, 2), *((p, n) for p, n in ALL if p or n > 2)], ENDS)
    found = {Kind.DUPLICATE: 1, Kind.REORDERED: 1}
    assert counts(look(flow)) == found
    remove(flow, flow.source, 0, 3)
    findings = judged(flow, found)
    assert examples(findings, Kind.DUPLICATE)[0][::2] == ("0:2", "2 visible, 1 expected")
    assert examples(findings, Kind.REORDERED)[0][0] == "0:0"
    # How many each was to have is gone with it.
    findings = judged(flow, {Kind.REORDERED: 1}, expect_header="expect")
    reason = "outputs without an input, where retention has removed inputs"
    assert findings.unjudged == {reason: 4}


def test_output_that_retention_removed(flow: Flow) -> None:
    Writer(flow).write([s for s in ALL if s != (0, 3)], ENDS)
    remove(flow, flow.target, 0, 2)
    findings = look(flow)
    # Two that were removed; the other is missing behind what was.
    assert counts(findings) == {Kind.LOST: 1}
    assert examples(findings, Kind.LOST)[0][0] == "0:3"
    assert list(findings.unjudged.values()) == [2]
    assert look(flow, key=True).verdict is Verdict.UNJUDGED


@pytest.mark.parametrize("matching", MATCHINGS[:2])
def test_output_that_retention_removes_before_it_is_read(
    flow: Flow, matching: dict[str, Any]
) -> None:
    Writer(flow).write(ALL, ENDS)

    def watch(what: str, done: int, _total: int) -> None:
        if (what, done) == ("Reading outputs", 0):
            remove(flow, flow.target, 0, 3)

    findings = judged(flow, {}, watch=watch, **matching)
    assert findings.unjudged == {"missing outputs, where retention has removed outputs": 3}


def test_output_removed_by_retention_before_its_markers_are_read(flow: Flow) -> None:
    writer = Writer(flow)
    for each in ALL[:5]:
        writer.write([each])
    writer.write(ALL[5:], ENDS)

    def watch(what: str, done: int, _total: int) -> None:
        if (what, done) == ("Reading transaction markers", 0):
            remove(flow, flow.target, 0, 5)  # up to the marker of the third record

    findings = judged(flow, {}, watch=watch)
    reason = "outputs that retention has removed before the ends of their transactions were read"
    assert findings.unjudged == {reason: 3}


def test_an_input_whose_headers_can_not_be_read(flow: Flow) -> None:
    write_not_utf8(flow, flow.source, 0, [("id", b"0-5")])
    Writer(flow).write(ALL, ENDS)
    with pytest.raises(VerificationError, match=f"input {flow.source}:0:5 .*not UTF-8"):
        look(flow, header="id")


def test_a_query_that_runs_meanwhile(either: Flow) -> None:
    fill(either, 7)
    writer = Writer(either)
    writer.write([(0, 0)], {0: 1})
    stages: list[str] = []

    def watch(what: str, _done: int, _total: int) -> None:
        # Each stage begins with another transaction, the first with a partition's first offset.
        if not stages or stages[-1] != what:
            stages.append(what)
            offset = len(stages) - 1
            writer.write([(1, offset)], {1: offset + 1})

    findings = look(either, watch=watch)
    assert len(stages) == 5
    assert findings.verdict is Verdict.SOUND
    assert set(counts(findings)) == {Kind.UNPROCESSED}
    for matching in MATCHINGS[1:]:
        assert set(counts(look(either, **matching))) == {Kind.UNPROCESSED}


def test_what_is_written_behind_the_ends_is_left_out(flow: Flow) -> None:
    writer = Writer(flow)
    writer.write(ALL[:-1], {0: 5, 1: 4})
    begun: list[str] = []

    def watch(what: str, _done: int, _total: int) -> None:
        if what == "Reading outputs" and not begun:
            begun.append(what)
            writer.begin(ALL[-1:])

    found = counts(look(flow, watch=watch, isolation_level="read_uncommitted"))
    writer.abort()
    assert begun
    assert found == {Kind.UNPROCESSED: 1}


def test_several_topics(flow: Flow) -> None:
    more_in, more_out = f"{flow.source}-b", f"{flow.target}-b"
    for topic in (more_in, more_out):
        flow.broker.create_topic(topic, 1)
    writer = Writer(flow)
    writer.write(ALL[:7], ENDS)
    writer.begin()
    for position in (f"{flow.source}:1:2", f"{flow.source}:1:3", f"{flow.source}:1:4"):
        writer.raw({"src": position.encode()}, topic=more_out)
    writer.raw({"src": f"{more_in}:0:0".encode()})
    writer.commit()
    topics: dict[str, Any] = {"inputs": [flow.source, more_in], "outputs": [flow.target, more_out]}
    # The last one is of an input that is empty.
    assert counts(look(flow, **topics)) == {Kind.PHANTOM: 1}
    assert counts(look(flow)) == {Kind.LOST: 3, Kind.PHANTOM: 1}
