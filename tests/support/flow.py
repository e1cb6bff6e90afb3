"""Produces and consumes records, and asks the broker about groups."""

import heapq
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Message, Producer

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka import cluster, groups, offsets
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.open_transactions import described, open_transactions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import id_pattern
from spark_eos.options import Limits
from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.records import settled_ends
from support.stored_files import StoredFiles, stored_files


@dataclass
class Flow:
    """The topics, group and checkpoint of one test."""

    broker: EmbeddedKafka
    checkpoint: str
    worker_directory: str
    partitions: int = 2
    through: str | None = None  # a proxy's address
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:10])
    # Settings that the checkpoint needs in the session of a separate process.
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker.create_topic(self.source, self.partitions)
        self.broker.create_topic(self.target, self.partitions)

    @property
    def source(self) -> str:
        return f"in-{self.name}"

    @property
    def target(self) -> str:
        return f"out-{self.name}"

    @property
    def group_id(self) -> str:
        return f"group-{self.name}"

    @property
    def kafka(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap_servers}

    @property
    def bootstrap_servers(self) -> str:
        return self.through or self.broker.bootstrap_servers

    @property
    def source_servers(self) -> str:
        return self.bootstrap_servers

    @property
    def source_kafka(self) -> dict[str, Any] | None:
        return None

    @property
    def stored(self) -> StoredFiles:
        """The checkpoint's files."""
        return stored_files(self.checkpoint)

    def group_offsets(self, offsets: Mapping[int, int]) -> dict[TopicPartition, tuple[int, str]]:
        """The group's offsets, with their texts, that represent offsets of source partitions."""
        return {TopicPartition(self.source, p): (offset, "") for p, offset in offsets.items()}

    def options(self) -> dict[str, Any]:
        return {
            "kafka": self.kafka,
            "group_id": self.group_id,
            "topic": self.target,
            "checkpoint_location": self.checkpoint,
            "limits": Limits(worker_directory=self.worker_directory),
        }

    def produce(
        self,
        values: Iterable[Any],
        partition: int = -1,
        *,
        key: bytes | Callable[[Any], bytes] | None = None,
        **more: Any,
    ) -> None:
        """Appends values to the source topic: to one partition, or spread over all of them."""
        producer = Producer({"bootstrap.servers": self.source_servers})
        for number, value in enumerate(values):
            encoded = value if isinstance(value, bytes | None) else str(value).encode()
            chosen = number % self.partitions if partition < 0 else partition
            record_key = key(value) if callable(key) else key
            producer.produce(self.source, encoded, record_key, chosen, **more)
            producer.poll(0)
        assert producer.flush(120) == 0

    def produce_in_transaction(self, values: Iterable[str], *, commit: bool = True) -> None:
        """Appends each value to every partition of the source, and a marker."""
        with transaction(self.source_servers, commit=commit) as producer:
            for value in values:
                for partition in range(self.partitions):
                    producer.produce(self.source, value.encode(), partition=partition)

    def ends(self) -> list[int]:
        """End offsets of the source's partitions, once no transaction on them is open."""
        server = {"bootstrap.servers": self.source_servers}
        stable, ends = settled_ends(server, self.source, range(self.partitions), 30)
        assert stable == ends
        return [ends[partition] for partition in range(self.partitions)]

    def recreate(self, topic: str, partitions: int | None = None) -> None:
        self.broker.delete_topic(topic)
        self.broker.create_topic(topic, partitions or self.partitions)

    def add_partitions(self, partitions: int) -> None:
        """Adds partitions to the source until it has this many."""
        self.source_broker.add_partitions(self.source, partitions)
        self.partitions = partitions

    @property
    def source_broker(self) -> EmbeddedKafka:
        return self.broker

    def written(self, topic: str | None = None) -> list[Message]:
        """All records of the target topic that a read_committed consumer sees."""
        return consume(self.bootstrap_servers, topic or self.target)

    def values(self, topic: str | None = None) -> list[str]:
        """The target's values as text, in order of partition and offset."""
        return [(m.value() or b"").decode() for m in self.written(topic)]

    def merged_values(
        self, topic: str | None = None, *, key: Callable[[str], Any] | None = None
    ) -> list[str]:
        """The values merged from all partitions: ascending only if each partition's values are.

        Rows without a key may go to any partition.
        """
        partitions = defaultdict(list)
        for message in self.written(topic):
            partitions[message.partition()].append((message.value() or b"").decode())
        return [*heapq.merge(*partitions.values(), key=key)]

    @contextmanager
    def connections(self) -> Iterator[Connections]:
        plain = {"bootstrap.servers": self.bootstrap_servers}
        with closing(Connections(ClientSettings(plain))) as connections:
            yield connections

    def committed(self, *, stable: bool = True) -> dict[int, int]:
        """The group's committed offsets of the source topic, by partition."""
        with self.connections() as connections:
            topic = cluster.topics(connections, [self.source], _deadline())[self.source]
            found = offsets.group_offsets(
                connections,
                self.group_id,
                [TopicPartition(self.source, p) for p in range(topic.partitions)],
                {self.source: topic.topic_id},
                _deadline(),
                stable=stable,
            )
        return {partition: one.offset for (_, partition), one in found.items()}

    def group_positions(self) -> dict[TopicPartition, int]:
        """All of the group's committed offsets."""
        return {partition: one.offset for partition, one in self.group_commits().items()}

    def group_commits(self, *, stable: bool = True) -> dict[TopicPartition, CommittedOffset]:
        """All of the group's committed offsets, with their texts."""
        with self.connections() as connections:
            known = offsets.all_group_offsets(connections, self.group_id, _deadline())
            return offsets.group_offsets(
                connections, self.group_id, known, {}, _deadline(), stable=stable
            )

    def open_transactions(self) -> list[str]:
        """Transactional ids of the query that have a transaction open."""
        with self.connections() as connections:
            return open_transactions(
                connections, id_pattern("spark-eos", self.group_id), _deadline()
            )

    def ongoing_transactions(self) -> list[str]:
        """Transactional ids of open transactions that are not about to end."""
        with self.connections() as connections:
            found = (described(connections, one, _deadline()) for one in self.open_transactions())
            return [one.transactional_id for one in found if one and one.state == "Ongoing"]

    def wait_for_markers(self, transactional_id: str) -> None:
        """Waits until the last transaction's markers are written: EndTxn returns before that."""
        until = time.monotonic() + 60
        with self.connections() as connections:
            while described(connections, transactional_id, _deadline()) is not None:
                assert time.monotonic() < until, f"{transactional_id} has not ended"
                time.sleep(0.02)

    def members(self) -> list[groups.DescribedMember]:
        with self.connections() as connections:
            return list(groups.describe_group(connections, self.group_id, _deadline()).members)


def _deadline() -> Deadline:
    return Deadline(60, "test")


@contextmanager
def transaction(bootstrap_servers: str, *, commit: bool = True) -> Iterator[Producer]:
    """A producer in a transaction, which is committed or aborted at the end of the block."""
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": f"writes-{uuid.uuid4()}"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    yield producer
    assert producer.flush(120) == 0
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def consume(bootstrap_servers: str, topic: str) -> list[Message]:
    """Return everything that a read_committed consumer sees up to the current end offsets.

    Fails if the last stable offset does not reach the end within half a minute. It takes a moment
    to write the markers of an ended transaction; after half a minute, a transaction is still open.
    """
    server = {"bootstrap.servers": bootstrap_servers}
    consumer = Consumer(
        {
            **server,
            "group.id": f"check-{uuid.uuid4()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # At the end of a partition, the broker would wait for more records.
            "fetch.wait.max.ms": 20,
        }
    )
    found: list[Message] = []
    with closing(consumer):
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in partitions])
        ends, all_ends = settled_ends(server, topic, partitions, 30)
        assert ends == all_ends, f"{topic}: last stable offsets {ends}, ends {all_ends}"
        until = time.monotonic() + 60
        asked = [confluent_kafka.TopicPartition(topic, p) for p in partitions]
        while any(
            position.offset < ends[position.partition]
            for position in consumer.position(asked)
            if ends[position.partition]
        ):
            assert time.monotonic() < until, f"{topic}: the end is not reached"
            for message in consumer.consume(1_000, timeout=0.02):
                assert message.error() is None, message.error()
                found.append(message)
    return sorted(found, key=lambda m: (m.partition() or 0, m.offset() or 0))
