"""One worker's transactions behind the proxy, and their effects."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer
from kafka.protocol.consumer import OffsetCommitResponse
from kafka.protocol.metadata import FindCoordinatorRequest

from spark_eos._client.error_codes import Code
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import end_offsets
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import ProducerIdAndEpoch, producer_id_and_epoch
from spark_eos._worker.producer import TransactionalProducer
from support.flow import Flow
from support.members import deadline, started
from support.proxy import KafkaProxy, Rule
from support.proxy_faults import Answer, Fault, Rewrite
from support.queries import until
from support.writing import refuses, rows, transactions


def answered(*codes: int) -> Rewrite:
    """The broker's answer with other error codes for the first partitions."""

    def change(_request: Any, answer: Any) -> None:
        found = [p for topic in answer.topics for p in topic.partitions]
        for partition, code in zip(found, codes, strict=False):
            partition.error_code = code

    return Rewrite(change)


def uncommitted(code: int) -> Answer:
    """An OffsetCommit answer with this code for each partition; the broker sees no request."""
    topic_class = OffsetCommitResponse.OffsetCommitResponseTopic

    def answer(request: Any) -> OffsetCommitResponse:
        topics = []
        for topic in request.topics:
            partitions = [
                topic_class.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
                for partition in topic.partitions
            ]
            one = topic_class(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            topics.append(one)
        return OffsetCommitResponse(throttle_time_ms=0, topics=topics)

    return Answer(answer)


def unstable(_request: Any, answer: Any) -> None:
    """Changes an OffsetFetch answer as if an open transaction held the offsets back."""
    for topic in answer.groups[0].topics:
        for partition in topic.partitions:
            partition.error_code, partition.committed_offset = Code.UNSTABLE_OFFSET_COMMIT, -1


@dataclass
class ProxiedWorker:
    """A member that owns both partitions of a flow, and a worker that writes for it."""

    flow: Flow
    proxy: KafkaProxy
    writing: TransactionWriter
    connections: Connections
    _consumer: Consumer
    _seen: dict[int, int] = field(default_factory=dict)

    @property
    def worker(self) -> TransactionalProducer:
        return self.writing._producer

    def add(self) -> tuple[dict[int, int], list[str]]:
        """Adds rows of both partitions to an open transaction; returns next offsets and values."""
        offsets = {partition: self.committed().get(partition, 0) for partition in (0, 1)}
        for partition, offset in offsets.items():
            self.writing.add(rows(self.flow, partition, offset, offset + 1))
        values = sorted(f"{p}/{o + n}" for p, o in offsets.items() for n in (0, 1))
        return {p: o + 2 for p, o in offsets.items()}, values

    def add_and_commit(self) -> ProducerIdAndEpoch:
        """Commits a transaction without disturbances; returns its producer."""
        return self.commits(lambda: None)

    def fails(
        self,
        *words: object,
        again: bool,
        age: float = 0,
        meanwhile: Callable[["ProxiedWorker"], object] = lambda _: None,
    ) -> None:
        """Checks that a commit fails with these words, and leaves nothing behind.

        The transaction counts as ``age`` seconds old. ``meanwhile`` is called before the commit,
        once the broker has the rows. Afterwards, the proxy has no rules.
        """
        before = self.committed()
        self.add()
        self.worker.records.flush(deadline())
        self.writing._began -= age
        used = self.worker.identity
        meanwhile(self)
        with refuses(*words, again=again, too_slow=None if age else False):
            self.writing.commit()
        self.proxy.reset()
        self.assert_nothing_left(before, used)

    def commits(self, meanwhile: Callable[[], object]) -> ProducerIdAndEpoch:
        """Commits a transaction, with a disturbance after the broker has its rows."""
        offsets, values = self.add()
        self.worker.records.flush(deadline())
        identity = self.worker.identity
        meanwhile()
        self.writing.commit()
        assert self.committed() == offsets
        assert self.news() == values
        return identity

    def hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Limits the worker's attempts to commit offsets to 0.1 s until the test ends.

        Records may take longer to be acknowledged, as they do on a busy machine.
        """
        send = self.writing._send_offsets

        def hurried(deadline: Deadline) -> None:
            send(Deadline(0.1, deadline.setting))

        monkeypatch.setattr(self.writing, "_send_offsets", hurried)

    def on_offsets(self, fault: Fault, times: int | None = 1) -> Rule:
        """Applies ``fault`` to the worker's next TxnOffsetCommit requests."""
        return self.proxy.on(TxnOffsetCommitRequest, fault, times=times)

    def group_look_ups(self) -> Rule:
        """Counts how often the group's coordinator is looked up from now on."""
        kind = CoordinatorType.GROUP
        return self.proxy.on(
            FindCoordinatorRequest, Fault(), times=None, where=lambda m: m.key_type == kind
        )

    def committed(self) -> dict[int, int]:
        """The group's offsets, once no transaction on them is pending."""
        return self.flow.committed()

    def news(self) -> list[str]:
        """New values that a read_committed consumer sees, sorted.

        Fails if a transaction stays open on the target.
        """
        target = self.flow.target

        def ends() -> dict[int, int]:
            found = end_offsets(self.connections, [target], deadline())
            stable = {p: e.last_stable for (_, p), e in found.items() if e is not None}
            high = {p: e.high_watermark for (_, p), e in found.items() if e is not None}
            return stable if stable == high else {}

        # The markers of a committed transaction are written shortly after its end is answered.
        wanted = until(ends, lambda: f"{target} without open transactions")
        found: list[str] = []

        def read() -> bool:
            for m in self._consumer.consume(100, timeout=0.02):
                assert m.error() is None, m.error()
                found.append((m.value() or b"").decode())
            asked = [confluent_kafka.TopicPartition(target, p) for p in wanted]
            found_at = self._consumer.position(asked)
            return all(max(at.offset, 0) >= wanted[at.partition] for at in found_at)

        until(read, lambda: f"{target} up to {wanted}")
        return sorted(found)

    def assert_nothing_left(self, before: dict[int, int], used: ProducerIdAndEpoch) -> None:
        """Checks that nothing was written or left open, and the producer is fenced and gone."""
        assert self.committed() == before
        assert self.news() == []
        assert self.flow.open_transactions() == []
        assert self.worker._producer is None
        now = producer_id_and_epoch(self.connections, used.transactional_id, deadline())
        assert (now.producer_id, now.epoch) > (used.producer_id, used.epoch)

    def assert_as_before(self, used: ProducerIdAndEpoch) -> None:
        """Checks that the producer continues with its epoch."""
        self.worker.begin(lambda: None)
        assert self.worker.identity == used
        self.worker.commit(deadline())

    def change_plan(self, partition: int, **changes: Any) -> None:
        """Changes one source partition's plan; arguments are fields of ``PartitionPlan``."""
        source = TopicPartition(self.flow.source, partition)
        self.writing._plan = {
            **self.writing._plan,
            source: replace(self.writing._plan[source], **changes),
        }


@contextmanager
def proxied_worker(flow: Flow, proxy: KafkaProxy) -> Iterator[ProxiedWorker]:
    consumer = Consumer(
        {
            "bootstrap.servers": flow.bootstrap_servers,
            "group.id": f"check-{flow.name}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
        }
    )
    with (
        started(flow) as membership,
        transactions(flow, membership) as writing,
        flow.connections() as connections,
        closing(consumer),
    ):
        consumer.assign(
            [confluent_kafka.TopicPartition(flow.target, p, 0) for p in range(flow.partitions)]
        )
        yield ProxiedWorker(flow, proxy, writing, connections, consumer)
