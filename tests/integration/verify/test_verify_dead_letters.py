"""The verifier counts dead letters as output: each input record is output or dead letter."""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from spark_eos.errors import VerificationError
from spark_eos.verify import Findings, Kind, Verdict, verify
from support.dead_letters import letter_topic, write_not_utf8
from support.flow import Flow


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


def letters(flow: Flow, *offsets: int, style: str) -> list[tuple[int, list[tuple[str, bytes]]]]:
    """Dead letters made of records of partition 0."""
    prefix = f"__{style}.errors."
    return [
        (
            0,
            [
                (f"{prefix}topic", flow.source.encode()),
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
