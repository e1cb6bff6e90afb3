"""Dead-letter topics, and what their records tell."""

from collections.abc import Mapping, Sequence
from typing import Any

from click.testing import CliRunner, Result
from confluent_kafka import Message
from kafka import KafkaProducer

from spark_eos._cli import main
from support.flow import Flow


class _NotUtf8(str):
    """A header's name whose bytes are not UTF-8; clients in Python take names as text only."""

    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:
        return b"own\xff"


def write_not_utf8(
    flow: Flow,
    topic: str,
    partition: int,
    headers: Sequence[tuple[str, bytes]] = (),
    number: int = 1,
) -> None:
    """Records ``not UTF-8`` with these headers, behind one whose name is not UTF-8."""
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers)
    named = [(_NotUtf8("own?"), b"h"), *headers]
    for _ in range(number):
        producer.send(topic, b"not UTF-8", b"k", headers=named, partition=partition).get(60)
    producer.close()


def letter_topic(flow: Flow, config: Mapping[str, str] | None = None) -> str:
    """A dead-letter topic of three partitions for a flow."""
    topic = f"dlq-{flow.name}"
    flow.broker.create_topic(topic, 3, dict(config or {}))
    return topic


def headers_of(message: Message) -> dict[str, str]:
    headers: Any = message.headers() or ()
    return {name: (content or b"").decode() for name, content in headers}


def dead_letters(flow: Flow, command: str, *more: str) -> Result:
    """Runs a command about the flow's dead-letter topic."""
    where = ("--bootstrap-servers", flow.bootstrap_servers, "--topic", f"dlq-{flow.name}")
    return CliRunner().invoke(main, ["dead-letters", command, *where, *more])


def replayed(flow: Flow, *more: str) -> int:
    """Replays letters of the flow's dead-letter topic for the first time; returns how many."""
    done = dead_letters(flow, "replay", "--from-beginning", *more)
    assert done.exit_code == 0, done.output
    return int(done.stdout.removeprefix("Replayed ").partition(" ")[0])
