"""A task's work per source partition does not grow with the number of partitions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from spark_eos._exactly_once import task
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker import topic_rules
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.plan import BatchRange, PartitionPlan, Shared, batch_plan
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.members import started, writer_settings
from support.sinks import changed
from support.writing import close_producers, outcome_of, row_batch, rows, writer

_PARTITIONS = 40


class _CountedPlan(Shared[PartitionPlan]):
    """A plan that counts its reads."""

    reads = 0

    def _read(self, number: int = 1) -> None:
        type(self).reads += number

    def __getitem__(self, partition: TopicPartition) -> PartitionPlan:
        self._read()
        return super().__getitem__(partition)

    def __contains__(self, partition: object) -> bool:
        self._read()
        return super().__contains__(partition)

    def get(self, partition: TopicPartition, default: Any = None) -> Any:
        self._read()
        return super().get(partition, default)

    def items(self) -> Any:
        self._read(len(self))
        return super().items()


@pytest.mark.slow
def test_many_source_partitions(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "Shared", _CountedPlan)
    flow.partitions = _PARTITIONS
    flow.broker.add_partitions(flow.source, _PARTITIONS)
    settings = changed(
        writer_settings(flow),
        dead_letters=DeadLetterSettings(topic=create_dead_letter_topic(flow)),
        max_transaction_records=1,
    )

    flow.produce(range(_PARTITIONS))

    def batches() -> Iterator[pa.RecordBatch]:
        for partition in range(_PARTITIONS):
            yield row_batch(flow, partition, 0, error=pa.array(["no id"]))

    with started(flow) as membership:
        assignment = membership.assignment()
        batch = BatchRange(0, {}, dict.fromkeys(assignment.partitions, 1))
        plan = batch_plan(batch, {}, assignment, membership.topic_ids, KnownPartitions())
        parts = {p: replace(part, max_dead_letters=1) for p, part in plan.partitions.items()}
        plan = replace(plan, partitions=parts)
        try:
            outcome = outcome_of(task.write_task(settings, plan)(batches()))
        finally:
            close_producers()
    assert outcome.reason is None
    assert (outcome.dead.total, outcome.counters.transactions) == (_PARTITIONS, _PARTITIONS)
    assert flow.committed() == dict.fromkeys(range(_PARTITIONS), 1)
    assert 0 < _CountedPlan.reads <= 20 * _PARTITIONS


@pytest.mark.slow
def test_many_target_topics(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [f"{flow.target}-{number}" for number in range(_PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": flow.bootstrap_servers})
    for made in admin.create_topics([NewTopic(name, 1) for name in targets]).values():
        made.result(60)
    looked_at = []
    genuine = topic_rules._limit

    def limit(known: Any) -> int:
        looked_at.append(known)
        return genuine(known)

    monkeypatch.setattr(topic_rules, "_limit", limit)
    with writer(flow) as writing:
        for number, target in enumerate(targets * 2):
            found = rows(flow, 0, number, topic=pa.array([target]))
            assert writing.ready(found)
            writing.add(found)
        writing.commit()
    assert [len(flow.values(target)) for target in targets] == [2] * _PARTITIONS
    assert 0 < len(looked_at) <= 3 * _PARTITIONS
