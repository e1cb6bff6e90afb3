"""The driver's work per source partition, for queries of any size and without brokers."""

import json
import pickle
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from spark_eos._batch_report import batch_report
from spark_eos._checkpoint.marker import Marker
from spark_eos._checkpoint.offset_log import parse_positions
from spark_eos._checks.dead_letter_limit import DeadLetterLimit
from spark_eos._client.commands import Group
from spark_eos._client.settings import ClientSettings
from spark_eos._delivery.data_loss_check import lost_records, unreadable
from spark_eos._delivery.missing_offsets import Evidence
from spark_eos._exactly_once.members import Member, committable
from spark_eos._kafka.heartbeats import heartbeat_request
from spark_eos._kafka.list_offsets import led_by
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions
from spark_eos._kafka.stored_text import Owner, SourcePartition
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import Assignment
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.plan import BatchPlan, BatchRange, Shared, batch_plan
from spark_eos._worker.sources import Sources
from spark_eos._worker.task_report import (
    Counters,
    JobOutcome,
    PartitionOutcome,
    job_outcome,
    report_batch,
)
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import Principal

_SETTINGS = WriterSettings(
    client=ClientSettings({"bootstrap.servers": "localhost:9092"}), group_id="group", topic=None
)


@dataclass
class ManyPartitions:
    """The state of a query with three partitions per topic."""

    partitions: list[TopicPartition]
    ids: dict[str, uuid.UUID]

    @classmethod
    def of(cls, size: int) -> "ManyPartitions":
        topics = [f"topic-{number}" for number in range(size // 3)]
        partitions = [TopicPartition(topic, index) for topic in topics for index in range(3)]
        return cls(partitions, {topic: uuid.uuid4() for topic in topics})

    @property
    def member(self) -> Member:
        epochs = {(self.ids[topic], index): 1 for topic, index in self.partitions}
        return Member("spark-eos-0", "id", 1, epochs)

    @property
    def assigned(self) -> Assignment:
        return Assignment(self.member.identity, frozenset(self.partitions))

    @property
    def known(self) -> KnownPartitions:
        return KnownPartitions().including(self.partitions, self.ids)

    @property
    def range(self) -> BatchRange:
        return BatchRange(1, self.at(100), self.at(120))

    def at(self, offset: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.partitions, offset)

    def committed(self, known: KnownPartitions) -> dict[TopicPartition, CommittedOffset]:
        texts = known.texts(self.partitions)
        return {partition: CommittedOffset(100, text) for partition, text in texts.items()}


Work = Callable[[ManyPartitions], Callable[[], object]]
"""Does uncounted preparations, and returns the work to count."""


def _heartbeat(query: ManyPartitions) -> Callable[[], Any]:
    member = query.member
    return partial(heartbeat_request, "group", member.identity, query.ids, member.owned)


def _plan(query: ManyPartitions) -> Callable[[], BatchPlan]:
    return partial(batch_plan, query.range, query.at(100), query.assigned, query.ids, query.known)


def _pickled(query: ManyPartitions) -> Callable[[], object]:
    plan = Shared(_plan(query)().partitions)
    return partial(pickle.dumps, plan)


def _read(query: ManyPartitions) -> Callable[[], object]:
    return partial(KnownPartitions.of, query.committed(query.known))


def _read_mirrored(query: ManyPartitions) -> Callable[[], object]:
    progress = [TopicPartition("progress", number) for number in range(len(query.partitions))]
    sources = {
        partition: SourcePartition("cluster", topic, query.ids[topic], index)
        for partition, (topic, index) in zip(progress, query.partitions, strict=True)
    }
    known = replace(KnownPartitions().including(progress, {}), sources=sources)
    return partial(KnownPartitions.of, ManyPartitions(progress, {}).committed(known))


def _leaders(query: ManyPartitions) -> Callable[[], object]:
    # There are as many brokers as topics.
    leaders = {partition: number // 3 for number, partition in enumerate(query.partitions)}
    return partial(led_by, leaders)


def _new(query: ManyPartitions) -> Callable[[], object]:
    """Half of the topics were created while the query was stopped, and match its pattern."""
    before = query.partitions[: len(query.partitions) // 2]
    known = KnownPartitions().including(before, query.ids)
    known = replace(known, set_by_others=frozenset(before))
    group = Group("group", Principal(None, "kafka:9092"))
    evidence = Evidence(group, known, query.ids, Marker(), begun_now=False)
    batch = BatchRange(1, dict.fromkeys(before, 100), query.at(120))
    return partial(evidence.initial_offsets, batch, dict.fromkeys(before, 100))


def _marker(query: ManyPartitions) -> Callable[[], object]:
    marker = _marker_of(query)
    return lambda: Marker.parse(marker.following(marker).text())


def _lost(query: ManyPartitions) -> Callable[[], object]:
    batch, committed, first = query.range, query.at(100), query.at(50)
    return lambda: (lost_records(batch, committed, first), unreadable(batch, committed, first))


def _reports(query: ManyPartitions) -> Callable[[], object]:
    outcomes = {p: PartitionOutcome(next_offset=120, rows=20) for p in query.partitions}

    def report() -> object:
        found = report_batch("written", None, Counters(), outcomes)
        return job_outcome(found.column(0).to_pylist())

    return report


def _batch_report(query: ManyPartitions) -> Callable[[], object]:
    outcome = JobOutcome({p: PartitionOutcome(next_offset=120, rows=20) for p in query.partitions})
    plan = _plan(query)()
    return partial(
        batch_report,
        _SETTINGS,
        "query",
        "run",
        6,
        query.range,
        Sources(),
        [outcome],
        plan,
        {},
        (),
        "direct",
    )


def _dead_letters(query: ManyPartitions) -> Callable[[], object]:
    plan = _plan(query)()
    settings = replace(_SETTINGS, dead_letters=DeadLetterSettings(topic="dead", limit=0.1))
    limit = DeadLetterLimit(settings, query.range, query.at(100), None)
    return partial(limit.plan, plan, None, [])


def _committable(query: ManyPartitions) -> Callable[[], object]:
    return partial(committable, query.member)


def _offset_log(query: ManyPartitions) -> Callable[[], object]:
    text = json.dumps({topic: dict.fromkeys(map(str, range(3)), 120) for topic in query.ids})
    return partial(parse_positions, [text], "offsets/1")


DRIVER_WORK: Final[Mapping[str, Work]] = {
    "making a heartbeat": _heartbeat,
    "which partitions the member may commit": _committable,
    "reading the texts of all offsets": _read,
    "the same, of a mirrored query": _read_mirrored,
    "finding new partitions among known ones": _new,
    "reading a batch's offsets from Spark": _offset_log,
    "a batch's plan": _plan,
    "pickling it": _pickled,
    "its dead letters' limit": _dead_letters,
    "the checkpoint's marker": _marker,
    "leaders to ask for what was deleted": _leaders,
    "what was deleted": _lost,
    "tasks' reports": _reports,
    "the batch's report": _batch_report,
}


def _marker_of(query: ManyPartitions) -> Marker:
    return Marker("group", query.ids, partitions=dict.fromkeys(query.ids, frozenset(range(3))))


DRIVER_BYTES: Final[Mapping[str, Callable[[ManyPartitions], int]]] = {
    "a heartbeat": lambda query: len(_heartbeat(query)().encode(version=1)),
    "a batch's plan, pickled": lambda query: len(pickle.dumps(Shared(_plan(query)().partitions))),
    "the texts of all offsets": lambda query: sum(map(len, _texts(query))),
    "the longest of them": lambda query: max(map(len, _texts(query))),
    "the checkpoint's marker": lambda query: len(_marker_of(query).text()),
}


def _texts(query: ManyPartitions) -> Iterable[str]:
    known = replace(query.known, owner=Owner("5f1c0a2b", "orders-enriched"))
    return known.texts(query.partitions).values()
