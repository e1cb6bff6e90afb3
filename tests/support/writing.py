"""One worker's transactions without Spark, and its requests to the broker."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.parser import KafkaProtocol

from spark_eos._exactly_once import task
from spark_eos._exactly_once.members import GroupMembership
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka import cluster
from spark_eos._kafka.cluster import NO_ID
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.arrow_columns import writable_batches
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.plan import BatchPlan, BatchRange, batch_plan
from spark_eos._worker.producer import TransactionalProducer
from spark_eos._worker.records import SourceRows, source_rows
from spark_eos._worker.task_report import JobOutcome, job_outcome
from spark_eos._worker.transaction_size import FULL, TransactionSize
from spark_eos._worker.writer_settings import WriterSettings
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.members import deadline, started, writer_settings
from support.proxy_faults import Request
from support.sinks import changed

_KINDS: Final = {
    "topic": pa.string(),
    "key": pa.binary(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "error": pa.string(),
}


def row_batch(
    flow: Flow,
    partition: int,
    *offsets: int,
    source_topic: str | None = None,
    values: Sequence[bytes | None] | None = None,
    **columns: Sequence[Any] | pa.Array,
) -> pa.RecordBatch:
    """A task's Arrow batch of one source partition's records, by default of the flow's source.

    Values default to the partition and offset; ``columns`` are additional columns. Columns named
    in ``_KINDS`` may be plain sequences.
    """
    source = {
        "topic": pa.array([source_topic or flow.source] * len(offsets), pa.string()),
        "partition": pa.array([partition] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
    }
    given = values or [f"{partition}/{o}".encode() for o in offsets]
    return pa.RecordBatch.from_pydict(
        {
            "source": pa.StructArray.from_arrays(source.values(), source.keys()),
            "value": pa.array(given, pa.binary()),
            **{
                name: found if isinstance(found, pa.Array) else pa.array(found, _KINDS[name])
                for name, found in columns.items()
            },
        }
    )


def rows(flow: Flow, partition: int, *offsets: int, **more: Any) -> SourceRows:
    """Rows of one source partition's records; same arguments as `row_batch`."""
    (batch,) = writable_batches(iter([row_batch(flow, partition, *offsets, **more)]))
    (found,) = source_rows(batch)
    return found


@contextmanager
def transactions(
    flow: Flow,
    membership: GroupMembership,
    version: int = 6,
    known: KnownPartitions | None = None,
    **options: Any,
) -> Iterator[TransactionWriter]:
    """A worker's transactions, with all of the membership's partitions in their plan.

    With ``version`` 5, the plan has no topic ids, so that offsets are sent by topic name. Offsets'
    texts contain ``known``. ``options`` replace fields of the writer's settings.
    """
    assignment = membership.assignment()
    ids = dict.fromkeys(membership.topic_ids, NO_ID) if version < 6 else membership.topic_ids
    batch = BatchRange(0, {}, dict.fromkeys(assignment.partitions, 100))
    plan = batch_plan(batch, {}, assignment, ids, known or KnownPartitions())
    settings = changed(writer_settings(flow), **options)
    with closing(TransactionalProducer(settings)) as producer:
        yield TransactionWriter(producer, settings, plan)


@contextmanager
def writer(flow: Flow, **options: Any) -> Iterator[TransactionWriter]:
    """Transactions of a member that owns all partitions; arguments as for `transactions`."""
    with (
        started(flow) as membership,
        transactions(flow, membership, **options) as writing,
        closing(writing),
    ):
        yield writing


@contextmanager
def writer_with_dead_letters(
    flow: Flow, config: Mapping[str, str] | None = None, *, style: str = "dlq", **options: Any
) -> Iterator[TransactionWriter]:
    """Like `writer`, with a new dead-letter topic, which has this config."""
    topic = create_dead_letter_topic(flow, config)
    settings = DeadLetterSettings(topic=topic, headers=style)
    with writer(flow, dead_letters=settings, **options) as writing:
        yield writing


@contextmanager
def refuses(*words: object, again: bool, too_slow: bool | None = False) -> Iterator[None]:
    """Expects an error of a transaction with these words, and its consequences."""
    with pytest.raises(TransactionError) as failure:
        yield
    assert [word for word in map(str, words) if word not in str(failure.value)] == [], failure.value
    assert failure.value.again == again
    assert too_slow is None or failure.value.too_slow == too_slow


def plan_of(writing: TransactionWriter) -> BatchPlan:
    """The plan that the transactions follow."""
    return BatchPlan(writing._member, writing._plan)


def close_producers() -> None:
    """Closes the producers that tasks left in this process, as a worker does when it exits."""
    for producer in task._producers.values():
        producer.close()
    task._producers.clear()


def task_outcome(
    membership: GroupMembership,
    settings: WriterSettings,
    batches: Iterator[pa.RecordBatch],
    *,
    size: TransactionSize = FULL,
    **planned: Any,
) -> JobOutcome:
    """The outcome of a task's rows; ``planned`` replaces fields of each partition's plan."""
    assignment = membership.assignment()
    batch = BatchRange(0, {}, dict.fromkeys(assignment.partitions, 100))
    plan = batch_plan(batch, {}, assignment, membership.topic_ids, KnownPartitions())
    parts = {partition: replace(part, **planned) for partition, part in plan.partitions.items()}
    plan = replace(plan, partitions=parts)
    try:
        return outcome_of(task.write_task(settings, plan, size=size)(batches))
    finally:
        close_producers()


def take_over(flow: Flow, membership: GroupMembership) -> None:
    """Fences the member for the flow's source that a plan may name."""
    with flow.connections() as connections:
        topics = cluster.topics(connections, [flow.source], deadline())
    membership.take_over_own(
        topics, [TopicPartition(flow.source, p) for p in range(flow.partitions)]
    )


def refused(flow: Flow, writing: TransactionWriter, reason: str) -> TransactionError:
    """Checks that a commit that must fail leaves nothing behind."""
    with pytest.raises(TransactionError, match=reason) as refusal:
        writing.commit()
    assert flow.values() == []
    assert flow.committed() == {}
    assert flow.open_transactions() == []
    return refusal.value


def sent_requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that this process's kafka-python connections send from now on."""
    requests: list[Request] = []
    genuine = KafkaProtocol.send_request

    def send_request(self: Any, request: Any, correlation_id: int | None = None) -> Any:
        found = genuine(self, request, correlation_id)
        requests.append(Request(self.bytes_to_send[-1][4:], time.monotonic()))
        return found

    monkeypatch.setattr(KafkaProtocol, "send_request", send_request)
    return requests


def requests_naming(requests: list[Request], *topics: str) -> int:
    """The number of metadata requests that name all of the topics."""
    return sum(
        request.api_key == MetadataRequest.API_KEY
        and all(t.encode() in request.content for t in topics)
        for request in requests
    )


def speak_at_most(monkeypatch: pytest.MonkeyPatch, versions: dict[int, int]) -> None:
    """Limits the API versions, by API key, of brokers on connections opened from now on."""
    genuine = BrokerVersionData.__init__

    def init(self: Any, broker_version: Any = None, api_versions: Any = None) -> None:
        genuine(self, broker_version, api_versions)
        self.api_versions = {
            key: (first, min(last, versions.get(key, last)))
            for key, (first, last) in self.api_versions.items()
        }

    monkeypatch.setattr(BrokerVersionData, "__init__", init)


def outcome_of(reports: Iterable[pa.RecordBatch]) -> JobOutcome:
    return job_outcome(text for report in reports for text in report.column(0).to_pylist())
