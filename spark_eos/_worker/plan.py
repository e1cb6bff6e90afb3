"""What one batch is to do, checked against the group's committed offsets; pure."""

import pickle
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity

Positions = dict[TopicPartition, int]
Partitions = Collection[TopicPartition]


@dataclass(frozen=True)
class BatchRange:
    """A batch's offsets: the first, unless a partition is new, and the one after the last."""

    batch_id: int
    starts: Positions
    ends: Positions


@dataclass(frozen=True)
class PartitionPlan:
    """How a task treats the rows of one of the group's partitions."""

    topic_id: uuid.UUID
    # 0 if the partition is new in the batch.
    start: int
    # After the batch's last offset.
    end: int
    # Rows below this offset are already written, and are skipped.
    committed: int
    member: MemberIdentity
    metadata: str
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
    """Return the number of a batch's offsets; new partitions begin at their committed ones."""
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
    """Return how many Spark tasks to use for a number of records in a number of partitions."""
    rows_per_task = max(_ROWS_PER_TASK, _ROWS_PER_REQUEST * partitions)
    wanted = -(-records // rows_per_task)
    if wait_ms is None or wait_ms * records > _SHORT_WAIT_MS or records > _FEW_ROWS:
        wanted = max(wanted, cores)
    if most_partitions is not None:
        wanted = max(wanted, -(-partitions // most_partitions))
    return max(1, min(partitions, wanted))


BatchPlan = Mapping[TopicPartition, PartitionPlan]


Value = TypeVar("Value")


class Shared(dict[TopicPartition, Value]):
    """A mapping that a worker process unpickles once, however many of its tasks get it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (pickle.dumps(dict(self), pickle.HIGHEST_PROTOCOL),)


@lru_cache(maxsize=2)
def _unpickled(mapping: bytes) -> Shared[Any]:
    # A plan of 10,000 partitions takes 40 ms, and each of them may have a task, which gets a plan
    # and its sources.
    return Shared(pickle.loads(mapping))  # noqa: S301 - the driver has pickled the function, too


def batch_plan(
    batch: BatchRange,
    committed: Positions,
    members: Mapping[TopicPartition, MemberIdentity],
    topic_ids: Mapping[str, uuid.UUID],
    known: KnownPartitions,
) -> dict[TopicPartition, PartitionPlan]:
    """Return the plan for each of the batch's partitions."""
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
