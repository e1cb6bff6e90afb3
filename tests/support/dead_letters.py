"""Dead-letter topics and their records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from click.testing import CliRunner, Result
from confluent_kafka import Message, Producer
from kafka import KafkaProducer

from spark_eos._cli import main
from spark_eos._client.persisted import FORMAT
from support.flow import Flow
from support.jobs import job


class _NotUtf8(str):
    """A header name that is not UTF-8; Python clients accept only text as names."""

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
    """Writes records ``not UTF-8`` with these headers after two whose names are not UTF-8."""
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers)
    # The second error is raised from the first.
    named = [*2 * [(_NotUtf8("own?"), b"h")], *headers]
    for _ in range(number):
        producer.send(topic, b"not UTF-8", b"k", headers=named, partition=partition).get(60)
    producer.close()


def create_dead_letter_topic(flow: Flow, config: Mapping[str, str] | None = None) -> str:
    """Creates a dead-letter topic of three partitions for a flow."""
    topic = f"dlq-{flow.name}"
    flow.broker.create_topic(topic, 3, dict(config or {}))
    return topic


def headers_of(message: Message) -> dict[str, str]:
    headers: Any = message.headers() or ()
    return {name: (content or b"").decode() for name, content in headers}


def letters(flow: Flow) -> list[tuple[bytes | None, dict[str, str]]]:
    """Values and headers of the records in the flow's dead-letter topic."""
    return [(m.value(), headers_of(m)) for m in flow.written(f"dlq-{flow.name}")]


def dead_letters(flow: Flow, command: str, *more: str) -> Result:
    """Runs a command about the flow's dead-letter topic."""
    where = ("--bootstrap-servers", flow.bootstrap_servers, "--topic", f"dlq-{flow.name}")
    return CliRunner().invoke(main, ["dead-letters", command, *where, *more])


def write_dead_letters(
    flow: Flow,
    numbers: Iterable[int],
    *,
    style: str = "dlq",
    commit: bool = True,
    name: str | None = None,
    **more: Any,
) -> str:
    """Writes dead letters of the flow's source like a query; dead letter n has partition n % 2."""
    topic = name or f"dlq-{flow.name}"
    prefix = f"__{style}.errors."
    producer = Producer({**flow.kafka, "transactional.id": f"t-{flow.name}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for n in numbers:
        fields = {
            "topic": flow.source,
            "partition": str(n % 2),
            "offset": str(n),
            "reason": "error",
        }
        fields |= {"format": str(FORMAT)} | more
        headers = [(prefix + name, text.encode()) for name, text in fields.items()]
        producer.produce(
            topic,
            b"value %d" % n,
            b"k",
            n % 2,
            timestamp=1_000 + n,
            headers=[("own", b"h"), *headers],
        )
    producer.flush(60)
    if commit:
        producer.commit_transaction(20)
    else:
        producer.abort_transaction(20)
    # Commands and queries read up to the last stable offset, which follows the transaction's end.
    flow.written(topic)
    return topic


def replay_arguments(flow: Flow, *more: str, group: str = "replay") -> list[str]:
    """The job's arguments for replaying the flow's dead letters to their source topic."""
    return [
        *("--bootstrap-servers", flow.bootstrap_servers),
        *("--group-id", f"{group}-{flow.name}"),
        *("--source", f"dlq-{flow.name}"),
        *("--target", flow.source),
        *("--checkpoint-location", f"{flow.checkpoint}-{group}"),
        *more,
    ]


def replay(flow: Flow, *more: str, group: str = "replay") -> Result:
    """Runs the job that replays dead letters, in this process's Spark session."""
    main = job("replay_dead_letters").main
    return CliRunner().invoke(main, replay_arguments(flow, *more, group=group))
