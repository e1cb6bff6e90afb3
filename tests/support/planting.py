"""A simulated query, in which a test decides what goes wrong."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    Producer,
    TopicPartition,
)

from spark_eos.testing.broker_admin import admin_client
from spark_eos.verify import Findings, Kind, verify
from support import groups
from support.flow import Flow

Source = tuple[int, int]  # partition, offset


def name_of(source: Source) -> bytes:
    return b"%d-%d" % source


def fill(flow: Flow, count: int = 5, expect: Mapping[Source, bytes] | None = None) -> None:
    """Produces this many records to each source partition, each with its own key and header."""
    producer = Producer(flow.source_kafka or flow.kafka)
    for partition in range(flow.partitions):
        for offset in range(count):
            source = (partition, offset)
            headers: list[Any] = [("id", name_of(source))]
            if expect and source in expect:
                headers.append(("expect", expect[source]))
            producer.produce(flow.source, b"v", name_of(source), partition, headers=headers)
    assert producer.flush(60) == 0


def sources(*ranges: range) -> list[Source]:
    """Offsets of the first, second, ... source partition."""
    return [(partition, offset) for partition, one in enumerate(ranges) for offset in one]


ALL: Final = sources(range(5), range(5))
"""The positions of all records of a source filled by `fill`."""
ENDS: Final = {0: 5, 1: 5}
MATCHINGS: Final[list[dict[str, Any]]] = [
    {"position_header": "src"},
    {"header": "id"},
    {"key": True},
]


class Transactional:
    """A producer whose ended transactions have their markers in all partitions."""

    def __init__(self, flow: Flow, name: str) -> None:
        self._flow = flow
        self.transactional_id = f"{name}-{flow.name}"
        settings = {"transactional.id": self.transactional_id, "log_level": 0}
        self._producer = Producer({**flow.kafka, **settings})
        self._producer.init_transactions(60)

    def commit(self) -> None:
        self._producer.commit_transaction(20)
        self._flow.wait_for_markers(self.transactional_id)

    def abort(self) -> None:
        self._producer.abort_transaction(20)
        self._flow.wait_for_markers(self.transactional_id)


class Writer(Transactional):
    """A transactional producer of the query."""

    def __init__(self, flow: Flow, name: str = "writer") -> None:
        super().__init__(flow, name)

    def begin(
        self,
        written: Iterable[Source] = (),
        offsets: Mapping[int, int] | None = None,
        *,
        to: int | None = None,
        topic: str | None = None,
        **headers: bytes,
    ) -> None:
        self._producer.begin_transaction()
        for source in written:
            position = f"{self._flow.source}:{source[0]}:{source[1]}".encode()
            self._producer.produce(
                topic or self._flow.target,
                b"v",
                name_of(source),
                source[0] if to is None else to,
                headers={"src": position, "id": name_of(source), **headers},
            )
        assert self._producer.flush(60) == 0
        if offsets:
            consumer = Consumer({**self._flow.kafka, "group.id": self._flow.group_id})
            self._producer.send_offsets_to_transaction(
                [
                    TopicPartition(*partition, offset, metadata=text)
                    for partition, (offset, text) in self._flow.group_offsets(offsets).items()
                ],
                consumer.consumer_group_metadata(),
            )
            consumer.close()

    def raw(self, headers: dict[str, Any], *, topic: str | None = None, key: bytes = b"x") -> None:
        """Writes another output in the open transaction."""
        self._producer.produce(topic or self._flow.target, b"v", key, 0, headers=headers)
        assert self._producer.flush(60) == 0

    def write(
        self, written: Iterable[Source], offsets: Mapping[int, int] | None = None, **more: Any
    ) -> None:
        self.begin(written, offsets, **more)
        self.commit()


def set_offsets(flow: Flow, offsets: Mapping[int, int]) -> None:
    """Commits the group's offsets without a transaction."""
    found = flow.group_offsets(offsets)
    at = {partition: offset for partition, (offset, _) in found.items()}
    texts = {partition: text for partition, (_, text) in found.items()}
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, at, texts)


def remove(flow: Flow, topic: str, partition: int, before: int) -> None:
    """Removes the oldest records of a partition in the source's cluster, as retention does."""
    at = TopicPartition(topic, partition, before)
    # Without a name, it would be garbage-collected before it answers.
    admin = admin_client(flow.source_servers)
    admin.delete_records([at])[at].result(60)


def look(flow: Flow, **more: Any) -> Findings:
    """Verifies the flow, by positions by default."""
    if not {"header", "key"} & set(more):
        more.setdefault("position_header", "src")
    arguments: dict[str, Any] = {
        "kafka": flow.kafka,
        "source_kafka": flow.source_kafka,
        "inputs": [flow.source],
        "outputs": [flow.target],
        "group_id": flow.group_id,
        "timeout": 10,
        **more,
    }
    return verify(**arguments)


def judged(flow: Flow, found: Mapping[Kind, int], **more: Any) -> Findings:
    """Verifies the flow, and checks the counts of all findings, anomalies or not."""
    findings = look(flow, **more)
    assert counts(findings) == dict(found)
    return findings


def counts(findings: Findings) -> dict[Kind, int]:
    """All findings, anomalies or not."""
    return {kind: found.count for kind, found in findings.found.items() if found.count}


def examples(findings: Findings, kind: Kind) -> list[tuple[str, list[str], str]]:
    """Source, outputs and detail of each example, without topics."""
    return [
        (
            _short(example.source) or (example.name or b"").decode(),
            [_short(position) for position in example.outputs],
            example.detail,
        )
        for example in findings.found[kind].examples
    ]


def _short(position: Any) -> str:
    return "" if position is None else f"{position.partition}:{position.offset}"
