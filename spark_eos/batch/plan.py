"""What one batch will do; pure values, and checks against the group's committed offsets."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from spark_eos.errors import OffsetGapError
from spark_eos.kafka.offset_metadata import KnownPartitions
from spark_eos.kafka.transactions import MemberIdentity

Positions = dict[tuple[str, int], int]


@dataclass(frozen=True)
class BatchRange:
    """The source offsets of one micro-batch.

    Attributes:
        batch_id: Spark's number of the batch.
        starts: first offset, by (topic, partition); a partition that appeared in this batch is
            not in it.
        ends: offset after the last, by (topic, partition).
    """

    batch_id: int
    starts: Positions
    ends: Positions


@dataclass(frozen=True)
class PartitionPlan:
    """How a task treats one source partition.

    Attributes:
        topic_id: the source topic's id.
        start: the first offset of the batch; 0 if the batch is the first to have the partition.
        end: the offset after the batch's last.
        committed: rows below this offset are already written and are skipped.
        member: the member that commits the partition's offsets.
        metadata: the text that is committed with them.
    """

    topic_id: uuid.UUID
    start: int
    end: int
    committed: int
    member: MemberIdentity
    metadata: str


# Starting a task in a Python worker takes as long as writing a few thousand.
_ROWS_OF_A_TASK = 25_000
# As many consumers as an executor keeps (spark.kafka.consumer.cache.capacity). Before Spark 4.2 a
# task holds those of all its partitions until it ends.
_PARTITIONS_OF_A_TASK = 64


def task_count(batch: BatchRange, cores: int) -> int:
    """How many Spark tasks the batch's source partitions are worth.

    Args:
        batch: the batch's range; if a partition has no start, it counts as large.
        cores: tasks that can run at a time, Spark's default parallelism.

    Returns:
        At most one task for each source partition, and no fewer than there are cores to run them.
    """
    partitions = len(batch.ends)
    if batch.starts.keys() != batch.ends.keys():
        return partitions
    records = sum(batch.ends.values()) - sum(batch.starts.values())
    wanted = max(cores, -(-records // _ROWS_OF_A_TASK), -(-partitions // _PARTITIONS_OF_A_TASK))
    return min(partitions, wanted)


BatchPlan = Mapping[tuple[str, int], PartitionPlan]
_NOTHING_KNOWN = KnownPartitions()


def check_progress(group_id: str, batch: BatchRange, committed: Positions) -> None:
    """Compares a batch's range with what the group has committed.

    Raises:
        OffsetGapError: writing the range would skip records that nobody wrote.
    """
    for partition in sorted(batch.starts.keys() & batch.ends.keys()):
        start = batch.starts[partition]
        name = f"{partition[0]}-{partition[1]}"
        offset = committed[partition]
        if offset < start:
            raise OffsetGapError(
                f"group {group_id!r} has committed {name} up to {offset}, but batch "
                f"{batch.batch_id} starts at {start}: offsets {offset} to {start - 1} would "
                "never be written, so nothing is. Delete the checkpoint at checkpoint_location "
                "to go on from the group's offsets (nothing is lost or doubled by that), or, to "
                f"skip these records, set the group's offset to {start} "
                "(kafka-consumer-groups.sh --reset-offsets)"
            )


def batch_plan(
    batch: BatchRange,
    committed: Positions,
    members: Mapping[tuple[str, int], MemberIdentity],
    topic_ids: Mapping[str, uuid.UUID],
    known: KnownPartitions = _NOTHING_KNOWN,
) -> dict[tuple[str, int], PartitionPlan]:
    """The plan for the range's partitions; those that no member may commit are left out."""
    # One text for all partitions of a topic, which pickle then writes once.
    metadata = {topic: known.metadata(topic) for topic in {topic for topic, _ in batch.ends}}
    return {
        partition: PartitionPlan(
            topic_id=topic_ids[partition[0]],
            start=batch.starts.get(partition, 0),
            end=end,
            committed=committed.get(partition, 0),
            member=members[partition],
            metadata=metadata[partition[0]],
        )
        for partition, end in batch.ends.items()
        if partition in members
    }
