"""Plans what a batch's tasks write, given the group's committed offsets; no I/O."""

import pickle
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._kafka.transactions import Assignment, MemberIdentity

Partitions = Collection[TopicPartition]
Value = TypeVar("Value")


@dataclass(frozen=True)
class BatchRange:
    """A batch's start offset in each partition that isn't new, and its end offset in each one."""

    batch_id: int
    starts: Positions
    ends: Positions


@dataclass(frozen=True)
class PartitionPlan:
    """How a task treats the rows of one of the group's partitions."""

    topic_id: uuid.UUID
    # The batch's first offset; 0 if the partition is new in the batch.
    start: int
    # The offset after the batch's last one.
    end: int
    # Rows below this offset are already written and are skipped.
    committed: int
    metadata: str
    # The limit on dead letters in this attempt.
    max_dead_letters: int = 0
    # If True, a task commits nothing when all of its rows are dead letters with the same error, and
    # there are more than a handful.
    defer_dead_letters: bool = False


@dataclass(frozen=True)
class BatchPlan:
    """How the tasks of one attempt treat rows, and the group member that commits their offsets."""

    member: MemberIdentity
    # Only the partitions that the member is assigned.
    partitions: Mapping[TopicPartition, PartitionPlan]


# Up to this many rows, one task is faster than several, unless the query's own functions are slow.
_FEW_ROWS: Final = 1_000
_SHORT_WAIT_MS: Final = 100.0
# Roughly how long each task waits for its first row.
_MS_TO_FIRST_ROW: Final = 10.0
# Starting a task in a Python worker takes as long as writing a few thousand rows.
_ROWS_PER_TASK: Final = 25_000
# A task sends at least one request to each target partition; assume that the target has as many
# partitions as the source. With smaller requests, another task would cost more than it gains.
_ROWS_PER_REQUEST: Final = 200


# In a further attempt, tasks are smaller: a task that failed may have had too many rows.
# But each task is sent the plan of all partitions, so one task per partition would send data that
# grows with the square of their number.
_TASKS_PER_CORE: Final = 8


def records_of(batch: BatchRange, committed: Positions) -> int:
    """Return a batch's number of offsets; new partitions begin at their committed offsets."""
    begins = {**committed, **batch.starts}
    return sum(max(0, end - begins.get(partition, 0)) for partition, end in batch.ends.items())


def wait_per_record(milliseconds: float, tasks: int, records: int) -> float:
    """Return how long tasks waited per record, for the source and the query's own functions."""
    return max(0.0, milliseconds - tasks * _MS_TO_FIRST_ROW) / max(1, records)


def task_count(
    records: int,
    partitions: int,
    cores: int,
    most_partitions: int | None = None,
    # How long tasks of an earlier batch waited for each record, if known.
    wait_ms: float | None = None,
) -> int:
    """Return how many Spark tasks to use for a number of records in a number of partitions."""
    rows_per_task = max(_ROWS_PER_TASK, _ROWS_PER_REQUEST * partitions)
    wanted = -(-records // rows_per_task)
    if wait_ms is None or wait_ms * records > _SHORT_WAIT_MS or records > _FEW_ROWS:
        wanted = max(wanted, cores)
    return _possible_task_count(wanted, partitions, most_partitions)


def further_task_count(partitions: int, cores: int, most_partitions: int | None = None) -> int:
    """Return how many Spark tasks to use for an attempt that is not a batch's first one."""
    return _possible_task_count(cores * _TASKS_PER_CORE, partitions, most_partitions)


def _possible_task_count(wanted: int, partitions: int, most_partitions: int | None) -> int:
    """Return the task count nearest to the wanted one; ``most_partitions``: the limit per task."""
    if most_partitions is not None:
        wanted = max(wanted, -(-partitions // most_partitions))
    return max(1, min(partitions, wanted))


class Shared(dict[TopicPartition, Value]):
    """A mapping that a worker process unpickles only once for all of its tasks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (pickle.dumps(dict(self), pickle.HIGHEST_PROTOCOL),)


@lru_cache(maxsize=2)
def _unpickled(mapping: bytes) -> Shared[Any]:
    # Unpickling a plan of 10,000 partitions takes 40 ms, and each partition may have its own task.
    # The cache has two entries: the plan and its sources.
    return Shared(pickle.loads(mapping))  # noqa: S301 - the driver also pickled the function


def batch_plan(
    batch: BatchRange,
    committed: Positions,
    assignment: Assignment,
    topic_ids: Mapping[str, uuid.UUID],
    known: KnownPartitions,
) -> BatchPlan:
    """Return the plan for those of the batch's partitions that the member is assigned."""
    texts = known.texts(batch.ends)
    partitions = {
        partition: PartitionPlan(
            topic_id=topic_ids[partition.topic],
            start=batch.starts.get(partition, 0),
            end=end,
            committed=committed.get(partition, 0),
            metadata=texts[partition],
        )
        for partition, end in batch.ends.items()
        if partition in assignment.partitions
    }
    return BatchPlan(assignment.member, partitions)
