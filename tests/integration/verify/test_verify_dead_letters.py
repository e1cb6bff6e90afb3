"""The verifier counts dead letters as output: each input record is output or dead letter."""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from spark_eos.errors import VerificationError
from spark_eos.verify import Findings, Kind, Verdict, verify
from support.dead_letters import letter_topic, write_not_utf8
from support.flow import Flow
from support.planting import Writer, counts, fill, look, name_of


def write(flow: Flow, topic: str, records: Sequence[tuple[int, list[tuple[str, bytes]]]]) -> None:
    """Records with headers, each in the partition of the number."""
    producer = Producer({**flow.kafka, "transactional.id": f"t-{flow.name}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition, headers in records:
        more: Any = headers
        producer.produce(topic, b"v", b"k%d" % partition, partition, headers=more)
    producer.commit_transaction(20)


def outputs(flow: Flow, *offsets: int) -> list[tuple[int, list[tuple[str, bytes]]]]:
    """Output made of records of partition 0."""
    return [(0, [("position", f"{flow.source}:0:{n}".encode())]) for n in offsets]


def letters(
    flow: Flow,
    *offsets: int,
    style: str = "dlq",
    group: str | None = None,
    topic: str | None = None,
) -> list[tuple[int, list[tuple[str, bytes]]]]:
    """Dead letters made of records of partition 0, by the flow's group unless told else."""
    prefix = f"__{style}.errors."
    named = "connector.name" if style == "connect" else "group"
    return [
        (
            0,
            [
                (f"{prefix}{named}", (group or flow.group_id).encode()),
                (f"{prefix}topic", (topic or flow.source).encode()),
                (f"{prefix}partition", b"0"),
                (f"{prefix}offset", b"%d" % n),
                (f"{prefix}reason", b"error"),
                (f"{prefix}format", b"2"),
            ],
        )
        for n in offsets
    ]


def judged(flow: Flow, topic: str, **more: Any) -> Findings:
    return verify(
        kafka=flow.kafka,
        inputs=[flow.source],
        outputs=[flow.target],
        dead_letter_topics=[topic],
        position_header="position",
        **more,
    )


@pytest.mark.parametrize("style", ["dlq", "streams", "connect"])
def test_output_or_dead_letter(flow: Flow, style: str) -> None:
    topic = letter_topic(flow)
    flow.produce(range(4), partition=0)
    write(flow, flow.target, outputs(flow, 0, 2))
    write(flow, topic, letters(flow, 1, style=style))
    found = judged(flow, topic)
    assert {kind: found.count(kind) for kind in (Kind.LOST, Kind.DUPLICATE)} == {
        Kind.LOST: 1,
        Kind.DUPLICATE: 0,
    }
    write(flow, topic, letters(flow, 3, style=style))
    assert judged(flow, topic).verdict is Verdict.SOUND


def test_output_and_dead_letter(flow: Flow) -> None:
    topic = letter_topic(flow)
    flow.produce(range(2), partition=0)
    write(flow, flow.target, outputs(flow, 0, 1))
    write(flow, topic, letters(flow, 1, style="dlq"))
    assert judged(flow, topic).count(Kind.DUPLICATE) == 1


def test_a_position_that_the_source_record_brought_along(flow: Flow) -> None:
    topic = letter_topic(flow)
    flow.produce(range(2), partition=0)
    write(flow, flow.target, outputs(flow, 0))
    # It is another query's dead letter itself, and has become one once more.
    ((_, earlier),) = letters(flow, 0, style="dlq")
    ((_, own),) = letters(flow, 1, style="connect")
    write(flow, topic, [(0, [*earlier, *own])])
    assert judged(flow, topic).verdict is Verdict.SOUND


MATCHINGS: list[dict[str, Any]] = [{}, {"header": "id"}, {"key": True}]


@pytest.mark.parametrize("matching", MATCHINGS, ids=["position", "header", "key"])
@pytest.mark.parametrize("style", ["dlq", "connect"])
def test_another_query_shares_source_and_dead_letter_topic(
    flow: Flow, matching: dict[str, Any], style: str
) -> None:
    """Only the query's own letters count: another's neither stand in for output nor double it."""
    topic = letter_topic(flow)
    fill(flow)
    writer = Writer(flow)
    writer.write([(0, n) for n in range(4)], {0: 5, 1: 0})

    def write_letter(group: str, offset: int) -> None:
        ((_, headers),) = letters(flow, offset, style=style, group=group)
        writer.begin()
        identity = {"id": name_of((0, offset)), **dict(headers)}
        writer.raw(identity, topic=topic, key=name_of((0, offset)))
        writer.commit()

    def found() -> Findings:
        return look(flow, dead_letter_topics=[topic], **matching)

    # Of the record that is lost, and of one that is written.
    write_letter("another", 4)
    write_letter("another", 0)
    lost = found()
    assert {kind: one.count for kind, one in lost.anomalies.items()} == {Kind.LOST: 1}
    (note,) = [note for note in lost.notes if "another query" in note]
    assert f"no letters of group '{flow.group_id}'" in note
    assert note.endswith(": 2")
    # The query's own, of what it has not written.
    write_letter(flow.group_id, 4)
    assert found().verdict is Verdict.SOUND
    # Without a group it is not known whose letters count.
    unknown = look(flow, dead_letter_topics=[topic], group_id=None, **matching)
    assert unknown.unjudged == {
        "dead letters of several groups, of which --group-id says the query's own": 3
    }


@pytest.mark.parametrize("matching", MATCHINGS, ids=["position", "header", "key"])
def test_letters_of_topics_that_are_no_inputs(flow: Flow, matching: dict[str, Any]) -> None:
    topic = letter_topic(flow)
    fill(flow)
    writer = Writer(flow)
    writer.write([(p, n) for p in range(2) for n in range(5)])
    ((_, headers),) = letters(flow, 1, group="another", topic="elsewhere")
    writer.begin()
    writer.raw({"id": b"0-1", **dict(headers)}, topic=topic, key=b"0-1")
    writer.commit()
    found = look(flow, dead_letter_topics=[topic], group_id=None, **matching)
    assert (found.verdict, counts(found)) == (Verdict.SOUND, {})
    (note,) = found.notes
    assert "dead letters of topics that are no inputs" in note
    assert note.endswith(": 1")


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5_000, str(1 << 63), "-1", ""])
def test_positions_that_are_none_are_outputs_of_no_input(flow: Flow, number: str) -> None:
    topic = letter_topic(flow)
    flow.produce(range(2), partition=0)
    position = f"{flow.source}:0:{number}".encode()
    forged = [
        (name, number.encode() if name.endswith(".offset") else content)
        for name, content in letters(flow, 1, style="dlq")[0][1]
    ]
    write(flow, flow.target, [*outputs(flow, 0, 1), (0, [("position", position)])])
    write(flow, topic, [(0, forged)])
    found = judged(flow, topic)
    assert (found.count(Kind.PHANTOM), found.verdict) == (2, Verdict.ANOMALIES)
    assert max(len(str(example.detail)) for example in found.found[Kind.PHANTOM].examples) < 200


@pytest.mark.parametrize("number", [b"9" * 5_000, b"9" * 19])
def test_numbers_of_outputs_that_are_none(flow: Flow, number: bytes) -> None:
    topic = letter_topic(flow)
    flow.produce(["a"], partition=0, headers=[("expect", number)])
    with pytest.raises(VerificationError, match="header 'expect' is not a number of outputs"):
        judged(flow, topic, expect_header="expect")


def test_records_with_a_header_name_that_is_not_utf8_have_no_position(flow: Flow) -> None:
    topic = letter_topic(flow)
    flow.produce([0], partition=0)
    write(flow, flow.target, outputs(flow, 0))
    write_not_utf8(flow, flow.target, 0, outputs(flow, 0)[0][1])
    write_not_utf8(flow, topic, 0, letters(flow, 0, style="dlq")[0][1])
    found = judged(flow, topic)
    assert (found.count(Kind.PHANTOM), found.count(Kind.DUPLICATE)) == (2, 0)


def test_what_is_expected_of_a_record_with_such_a_header_is_not_known(flow: Flow) -> None:
    topic = letter_topic(flow)
    write_not_utf8(flow, flow.source, 0, [("n", b"2")])
    with pytest.raises(VerificationError, match=rf"input {flow.source}:0:0.*not UTF-8"):
        judged(flow, topic, expect_header="n")
