"""Source records that were deleted before they were read (retention, delete_records); pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spark_eos.batch.plan import BatchRange, Positions


@dataclass(frozen=True)
class LostRecords:
    """Offsets of a source partition whose records were gone before they could be written.

    Attributes:
        topic: source topic.
        partition: source partition.
        first: the first offset that was not written.
        after: the offset after the last one that is gone.
        certain: whether they were gone before the batch was read; if not, they were deleted while
            it was, and some of them may be written.
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
    """What lies between the group's offsets and the first records there are.

    Args:
        batch: the batch's range.
        committed: next offset by (topic, partition), when the batch began.
        first_offsets: the first offset there is now, by (topic, partition).

    Example:
        >>> batch = BatchRange(1, {("orders", 0): 5}, {("orders", 0): 9})
        >>> [str(lost) for lost in lost_records(batch, {("orders", 0): 5}, {("orders", 0): 7})]
        ['orders-0 offsets 5 to 6']
    """
    found = []
    for (topic, partition), end in sorted(batch.ends.items()):
        place = (topic, partition)
        position = max(batch.starts.get(place, 0), committed.get(place, 0))
        after = min(first_offsets.get(place, 0), end)
        if after > position:
            found.append(LostRecords(topic, partition, position, after))
    return tuple(found)


def deleted_meanwhile(
    before: Iterable[LostRecords], now: Iterable[LostRecords]
) -> tuple[LostRecords, ...]:
    """What was deleted while the batch was read.

    Args:
        before: what was lost when the batch began.
        now: the same, counted again at its end.

    Example:
        >>> began, ended = LostRecords("orders", 0, 5, 7), LostRecords("orders", 0, 5, 9)
        >>> [str(lost) for lost in deleted_meanwhile([began], [ended])]
        ['orders-0 offsets 7 to 8']
    """
    known = {(lost.topic, lost.partition): lost.after for lost in before}
    found = []
    for lost in now:
        first = known.get((lost.topic, lost.partition), lost.first)
        if lost.after > first:
            found.append(replace(lost, first=first, certain=False))
    return tuple(found)
