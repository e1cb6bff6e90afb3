"""What one batch is to do, checked against the group's committed offsets; pure."""

import pickle
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity

Positions = dict[TopicPartition, int]
Partitions = Collection[TopicPartition]


@dataclass(frozen=True)
class BatchRange:
    """A batch's source offsets: the first, unless a partition is new, and that after the last."""

    batch_id: int
    starts: Positions
    ends: Positions


@dataclass(frozen=True)
class PartitionPlan:
    """How a task treats one source partition."""

    # Of the topic whose offset in the group is committed.
    topic_id: uuid.UUID
    # 0 if the partition is new in the batch.
    start: int
    # After the batch's last offset.
    end: int
    # Rows below this offset are already written, and are skipped.
    committed: int
    member: MemberIdentity
    metadata: str
    # Whose offset in the group is committed; None for the source partition itself.
    progress: TopicPartition | None = None
    # In this attempt.
    max_dead_letters: int = 0
    # A task then commits nothing if all of its rows are dead letters of one error, and they are
    # more than a handful.
    defer_dead_letters: bool = False


# More tasks write these later than one, unless the query's own functions take their time.
_FEW_ROWS: Final = 1_000
_SHORT_WAIT_MS: Final = 100.0
# About what passes in each task before its first row.
_MS_TO_FIRST_ROW: Final = 10.0
# Starting a task in a Python worker takes as long as writing a few thousand rows.
_ROWS_PER_TASK: Final = 25_000
# A task sends one request, at least, to each target partition; a target is taken to have as many
# as the source. Requests of fewer records cost more than a task gains.
_ROWS_PER_REQUEST: Final = 200


def records_of(batch: BatchRange, committed: Positions) -> int:
    """The number of a batch's offsets; new partitions begin at their committed ones."""
    begins = {**committed, **batch.starts}
    return sum(max(0, end - begins.get(partition, 0)) for partition, end in batch.ends.items())


def wait_per_record(milliseconds: float, tasks: int, records: int) -> float:
    """How long tasks have waited for each record: for the source, and for the query itself."""
    return max(0.0, milliseconds - tasks * _MS_TO_FIRST_ROW) / max(1, records)


def task_count(
    records: int,
    partitions: int,
    cores: int,
    most_partitions: int | None = None,
    # For which a task has waited for a record in an earlier batch, if known.
    wait_ms: float | None = None,
) -> int:
    """How many Spark tasks to use for a number of records in a number of partitions."""
    rows_per_task = max(_ROWS_PER_TASK, _ROWS_PER_REQUEST * partitions)
    wanted = -(-records // rows_per_task)
    if wait_ms is None or wait_ms * records > _SHORT_WAIT_MS or records > _FEW_ROWS:
        wanted = max(wanted, cores)
    if most_partitions is not None:
        wanted = max(wanted, -(-partitions // most_partitions))
    return max(1, min(partitions, wanted))


BatchPlan = Mapping[TopicPartition, PartitionPlan]


class SharedPlan(dict[TopicPartition, PartitionPlan]):
    """A plan that a worker process reads once, however many of its tasks get it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (pickle.dumps(dict(self), pickle.HIGHEST_PROTOCOL),)


@lru_cache(maxsize=1)
def _unpickled(plan: bytes) -> SharedPlan:
    # A plan of 10,000 partitions takes 40 ms, and each of them may have a task.
    return SharedPlan(pickle.loads(plan))  # noqa: S301 - the driver has pickled the function, too


def batch_plan(
    batch: BatchRange,
    committed: Positions,
    members: Mapping[TopicPartition, MemberIdentity],
    topic_ids: Mapping[str, uuid.UUID],
    known: KnownPartitions,
) -> dict[TopicPartition, PartitionPlan]:
    """The plan for each of the batch's partitions."""
    texts = known.texts(batch.ends)
    return {
        partition: PartitionPlan(
            topic_id=topic_ids[partition.topic],
            start=batch.starts.get(partition, 0),
            end=end,
            committed=committed.get(partition, 0),
            member=members[partition],
            metadata=texts[partition],
        )
        for partition, end in batch.ends.items()
        if partition in members
    }


Value = TypeVar("Value")


@dataclass(frozen=True)
class PartitionPairs:
    """Translates between a group's partitions and the source partitions that they stand for."""

    sources: Mapping[TopicPartition, TopicPartition] = field(default_factory=dict)
    _progress: Mapping[TopicPartition, TopicPartition] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        reverse = {source: partition for partition, source in self.sources.items()}
        object.__setattr__(self, "_progress", reverse)

    def source(self, partition: TopicPartition) -> TopicPartition:
        """The source partition that one of the group's partitions stands for."""
        return self.sources.get(partition, partition)

    def progress(self, source: TopicPartition) -> TopicPartition:
        """The partition whose offset in the group is the progress of a source partition."""
        return self._progress.get(source, source)

    def by_source(self, values: Mapping[TopicPartition, Value]) -> dict[TopicPartition, Value]:
        """Values by source partition, of values by the group's partitions."""
        return {self.source(partition): value for partition, value in values.items()}

    def by_progress(self, values: Mapping[TopicPartition, Value]) -> dict[TopicPartition, Value]:
        """Values by the group's partitions, of values by source partition."""
        return {self.progress(source): value for source, value in values.items()}

    def task_plan(self, planned: BatchPlan) -> BatchPlan:
        """A plan for tasks, which see rows of source partitions."""
        if not self.sources:
            return planned
        return {
            self.source(partition): replace(part, progress=partition)
            for partition, part in planned.items()
        }

    # Words for the user -----------------------------------------------------------------------

    def name(self, partition: TopicPartition) -> str:
        """How to call one of the group's partitions."""
        if partition not in self.sources:
            return str(partition)
        return f"{self.source(partition)} (its progress is {partition})"

    def how_to_set(self, group_id: str, wanted: Mapping[TopicPartition, int | str]) -> str:
        """The command that sets the group's offsets while the query is stopped."""
        named = [(*self.source(partition), offset) for partition, offset in wanted.items()]
        if self.sources:
            # Kafka's tool limits offsets of progress partitions to the log's end, which is empty.
            sets = " ".join(f"--set {topic}:{index}={offset}" for topic, index, offset in named)
            return f"spark-eos progress --group-id {group_id} {sets}"
        return "; ".join(
            f"kafka-consumer-groups.sh --reset-offsets --group {group_id} --execute --topic "
            f"{topic}:{index} --to-offset {offset}"
            for topic, index, offset in named
        )
