"""The verifier counts dead letters as output: each input record is output or dead letter."""

from typing import Any

import pytest

from spark_eos.errors import VerificationError
from spark_eos.verify import Kind, Verdict
from support.dead_letters import create_dead_letter_topic, write_not_utf8
from support.flow import Flow
from support.planting import ALL, Writer, counts, examples, fill, look, name_of

MATCHINGS: list[dict[str, Any]] = [{}, {"header": "id"}, {"key": True}]


def dead_letter_headers(
    flow: Flow, offset: object, *, style: str = "dlq", group: str = "", topic: str = ""
) -> dict[str, bytes]:
    """Headers of a dead letter of partition 0, by default from the flow's group."""
    said = {
        "connector.name" if style == "connect" else "group": group or flow.group_id,
        "topic": topic or flow.source,
        "partition": "0",
        "offset": str(offset),
        "reason": "error",
        "format": "2",
    }
    return {f"__{style}.errors.{name}": value.encode() for name, value in said.items()}


def write(writer: Writer, topic: str, *headers: dict[str, bytes], key: bytes = b"x") -> None:
    """Records of one committed transaction."""
    writer.begin()
    for each in headers:
        writer.raw(each, topic=topic, key=key)
    writer.commit()


@pytest.mark.parametrize("style", ["dlq", "streams", "connect"])
def test_output_or_dead_letter(flow: Flow, style: str) -> None:
    topic, writer = create_dead_letter_topic(flow), Writer(flow)
    fill(flow)
    judged: dict[str, Any] = {"dead_letter_topics": [topic], "group_id": None}
    writer.write([s for s in ALL if s not in [(0, 1), (0, 3)]])
    write(writer, topic, dead_letter_headers(flow, 1, style=style))
    found = look(flow, **judged)
    assert [example[0] for example in examples(found, Kind.LOST)] == ["0:3"]
    assert counts(found) == {Kind.LOST: 1}
    # Its source record is another query's dead letter itself, and has become one once more.
    other = "connect" if style == "dlq" else "dlq"
    write(
        writer,
        topic,
        {**dead_letter_headers(flow, 0, style=other), **dead_letter_headers(flow, 3, style=style)},
    )
    assert look(flow, **judged).verdict is Verdict.SOUND
    write(writer, topic, dead_letter_headers(flow, 0, style=style))
    assert counts(look(flow, **judged)) == {Kind.DUPLICATE: 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("matching", "style"), list(zip(MATCHINGS, ["dlq", "connect", "streams"], strict=True))
)
def test_another_query_shares_source_and_dead_letter_topic(
    flow: Flow, matching: dict[str, Any], style: str
) -> None:
    """Only the query's own dead letters count: others neither replace output nor duplicate it."""
    topic, writer = create_dead_letter_topic(flow), Writer(flow)
    fill(flow)
    writer.write(ALL[:4], {0: 5, 1: 0})
    judged = {"dead_letter_topics": [topic], **matching}

    def write_dead_letter(group: str, offset: int) -> None:
        name = name_of((0, offset))
        headers = {"id": name, **dead_letter_headers(flow, offset, style=style, group=group)}
        write(writer, topic, headers, key=name)

    # Of the record that is lost, and of one that is written.
    write_dead_letter("another", 4)
    write_dead_letter("another", 0)
    lost = look(flow, **judged)
    assert {kind: one.count for kind, one in lost.anomalies.items()} == {Kind.LOST: 1}
    (note,) = [note for note in lost.notes if "other queries" in note]
    assert f"not from group '{flow.group_id}'" in note
    assert note.endswith(": 2")
    # The query's own, of what it has not written.
    write_dead_letter(flow.group_id, 4)
    assert look(flow, **judged).verdict is Verdict.SOUND
    # Without a group it is not known whose letters count.
    assert look(flow, group_id=None, **judged).unjudged == {
        "dead letters of several groups, of which --group-id says the query's own": 3
    }


def test_dead_letters_of_topics_that_are_not_inputs(flow: Flow) -> None:
    topic, writer = create_dead_letter_topic(flow), Writer(flow)
    fill(flow)
    writer.write(ALL)
    own = {"id": b"0-1", **dead_letter_headers(flow, 1, group="another", topic="elsewhere")}
    write(writer, topic, own, key=b"0-1")
    for matching in MATCHINGS:
        found = look(flow, dead_letter_topics=[topic], group_id=None, **matching)
        assert (found.verdict, counts(found)) == (Verdict.SOUND, {})
        (note,) = found.notes
        assert "dead letters of topics that are not inputs" in note
        assert note.endswith(": 1")


def test_invalid_positions_are_outputs_of_no_input(flow: Flow) -> None:
    topic, writer = create_dead_letter_topic(flow), Writer(flow)
    fill(flow)
    writer.write(ALL)
    numbers = ["\u00b2", "9" * 5_000, str(1 << 63), "-1", ""]
    write(writer, topic, *(dead_letter_headers(flow, number) for number in numbers))
    positions = [f"{flow.source}:0:{number}".encode() for number in numbers]
    write(writer, flow.target, *({"src": position} for position in positions))
    found = look(flow, dead_letter_topics=[topic], group_id=None, examples=10)
    assert counts(found) == {Kind.PHANTOM: 10}
    assert max(len(detail) for *_, detail in examples(found, Kind.PHANTOM)) < 200


def test_invalid_numbers_of_outputs(flow: Flow) -> None:
    fill(flow, expect={(0, 0): b"9" * 19})
    with pytest.raises(VerificationError, match="header 'expect' is not a number of outputs"):
        look(flow, expect_header="expect", group_id=None)


def test_headers_of_which_a_name_is_not_utf8_say_nothing(flow: Flow) -> None:
    topic = create_dead_letter_topic(flow)
    fill(flow)
    Writer(flow).write(ALL)
    write_not_utf8(flow, flow.target, 0, [("src", f"{flow.source}:0:0".encode())])
    write_not_utf8(flow, topic, 0, [*dead_letter_headers(flow, 0).items()])
    judged: dict[str, Any] = {"dead_letter_topics": [topic], "group_id": None}
    assert counts(look(flow, **judged)) == {Kind.PHANTOM: 2}
    # Nor how many outputs are expected.
    write_not_utf8(flow, flow.source, 0, [("n", b"2")])
    with pytest.raises(VerificationError, match=rf"input {flow.source}:0:5.*not UTF-8"):
        look(flow, expect_header="n", **judged)
