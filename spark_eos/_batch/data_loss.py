"""Source records that were deleted before they were read (retention, delete_records); pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_eos._batch.plan import BatchRange, Positions
from spark_eos._kafka.topic_partition import TopicPartition


@dataclass(frozen=True)
class LostRecords:
    """Offsets of a source partition whose records were deleted before they could be written.

    Reported in `BatchReport.lost` with ``fail_on_data_loss=False``.

    Attributes:
        topic: Source topic.
        partition: Source partition.
        first: The first offset that was not written.
        after: The offset after the last deleted one.
        certain: Whether the records were deleted before the batch was read. If False, they were
            deleted while it was read, and some of them may be written; or before a staged batch was
            repeated, which is written from its copy: then they are missing from the query's state.

    Examples:
        >>> str(LostRecords("orders", 0, 5, 7))
        'orders-0 offsets 5 to 6'
    """

    topic: str
    partition: int
    first: int
    after: int
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.first} to {self.after - 1}"


def lost_records(
    batch: BatchRange, committed: Positions, first_offsets: Positions
) -> tuple[LostRecords, ...]:
    """The batch's records between the group's offsets and the first records that still exist.

    ``committed``: as before the batch; ``first_offsets``: those that still exist, of all partitions
    that have something to be lost.

    Example:
        >>> orders = TopicPartition("orders", 0)
        >>> batch = BatchRange(1, {orders: 5}, {orders: 9})
        >>> [str(lost) for lost in lost_records(batch, {orders: 5}, {orders: 7})]
        ['orders-0 offsets 5 to 6']
    """
    found = []
    for partition, first in sorted(first_offsets.items()):
        position = max(batch.starts.get(partition, 0), committed.get(partition, 0))
        after = min(first, batch.ends[partition])
        if after > position:
            found.append(LostRecords(*partition, position, after))
    return tuple(found)


def unreadable(
    batch: BatchRange, committed: Positions, first_offsets: Positions
) -> dict[TopicPartition, int]:
    """Where the batch would read records again that are written, and deleted by now.

    ``committed`` and ``first_offsets``: as those of `lost_records`.

    Example:
        >>> orders = TopicPartition("orders", 0)
        >>> unreadable(BatchRange(1, {orders: 5}, {orders: 9}), {orders: 9}, {orders: 7})
        {TopicPartition(topic='orders', partition=0): 5}
    """
    found = {}
    for partition, first in sorted(first_offsets.items()):
        start = batch.starts.get(partition, 0)
        if start < batch.ends[partition] and start < first <= committed.get(partition, 0):
            found[partition] = start
    return found


def deleted_meanwhile(
    before: Iterable[LostRecords], now: Iterable[LostRecords]
) -> tuple[LostRecords, ...]:
    """The records that were deleted while the batch was read.

    ``before``: what was lost when the batch began; ``now``: at its end.

    Example:
        >>> began, ended = LostRecords("orders", 0, 5, 7), LostRecords("orders", 0, 5, 9)
        >>> [str(lost) for lost in deleted_meanwhile([began], [ended])]
        ['orders-0 offsets 7 to 8']
    """
    known = {TopicPartition(lost.topic, lost.partition): lost.after for lost in before}
    found = []
    for lost in now:
        first = known.get(TopicPartition(lost.topic, lost.partition), lost.first)
        if lost.after > first:
            found.append(replace(lost, first=first, certain=False))
    return tuple(found)
