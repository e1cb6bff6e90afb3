"""Positions of rows with staged delivery, as offsets of progress partitions; pure.

A progress partition holds no records: only the group's offset of it counts. Partition 0 has the
staged commit, which says what copy of which batch is being written. Each other one stands for one
file of the copy. A position is ``batch << 32 | row``, so the offset that follows the last row
of batch 7 in every partition is ``8 << 32``, whatever number of rows each had.
"""

from collections.abc import Sequence
from typing import Final

from spark_eos._batch.plan import BatchRange
from spark_eos._batch.task_report import JobOutcome
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import WriteError

COMMIT_PARTITION: Final = 0
"""The progress partition whose committed offset names the staged batch."""

_ROW_BITS: Final = 32
# Kafka's offsets are signed 64-bit numbers.
_MAX_BATCH: Final = (1 << (62 - _ROW_BITS)) - 1


def first_position(batch_id: int) -> int:
    """The position of a batch's first row in any file.

    Example:
        >>> first_position(1)
        4294967296
    """
    if batch_id > _MAX_BATCH:
        raise WriteError(
            f"batch {batch_id} is beyond what an offset can hold ({_MAX_BATCH}): continue with "
            "another group_id and another checkpoint_location"
        )
    return batch_id << _ROW_BITS


def progress_range(topic: str, partitions: int, batch_id: int, known: int) -> BatchRange:
    """The range of a staged batch: all progress partitions, from this batch to the next.

    Example:
        >>> batch = progress_range("progress", 2, batch_id=0, known=2)
        >>> for partition, end in batch.ends.items():
        ...     print(partition, batch.starts[partition], end)
        progress-0 0 4294967296
        progress-1 0 4294967296
    """
    start, end = first_position(batch_id), first_position(batch_id + 1)
    return BatchRange(
        batch_id,
        {TopicPartition(topic, index): start for index in range(min(known, partitions))},
        {TopicPartition(topic, index): end for index in range(partitions)},
    )


def rows_read(outcomes: Sequence[JobOutcome]) -> int:
    """How many rows of the copy the tasks have read and committed, now or in an earlier attempt."""
    last = {p: part for outcome in outcomes for p, part in outcome.partitions.items()}
    return sum(part.rows + part.skipped + part.dead_letters for part in last.values())
