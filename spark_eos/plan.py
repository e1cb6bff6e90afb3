"""What one batch will do; pure values, and checks against the group's committed offsets."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from spark_eos.errors import OffsetGapError, OffsetsLostError
from spark_eos.transaction_calls import MemberIdentity

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
        committed: rows below this offset are already written and are skipped; 0 if none are.
        member: the member that commits the partition's offsets.
    """

    topic_id: uuid.UUID
    committed: int
    member: MemberIdentity


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


def check_progress(group_id: str, batch: BatchRange, committed: Positions) -> None:
    """Compares a batch's range with what the group has committed.

    Raises:
        OffsetGapError: writing the range would skip records that nobody wrote.
        OffsetsLostError: nobody knows how much of the range is written already.
    """
    for partition in sorted(batch.starts.keys() & batch.ends.keys()):
        start = batch.starts[partition]
        name = f"{partition[0]}-{partition[1]}"
        offset = committed.get(partition)
        if offset is None:
            if batch.batch_id > 0:
                raise OffsetsLostError(
                    f"group {group_id!r} has no committed offset for {name}, although batch "
                    f"{batch.batch_id} starts at {start}: the offsets were deleted or have "
                    "expired, or the checkpoint is another sink's. Records may be written "
                    f"already, so nothing is written. Find out up to where {name} was written "
                    "and set the group's offset there (kafka-consumer-groups.sh "
                    "--reset-offsets), or start anew with another group_id and another "
                    "checkpoint_location"
                )
        elif offset < start:
            raise OffsetGapError(
                f"group {group_id!r} has committed {name} up to {offset}, but batch "
                f"{batch.batch_id} starts at {start}: offsets {offset} to {start - 1} would "
                "never be written, so nothing is. Delete the checkpoint at checkpoint_location "
                "to go on from the group's offsets (nothing is lost or doubled by that), or, to "
                f"skip these records, set the group's offset to {start} "
                "(kafka-consumer-groups.sh --reset-offsets)"
            )


def unsettled(batch: BatchRange, committed: Positions) -> Positions:
    """The ends that the group has yet to reach once all of the batch's rows are written."""
    return {
        partition: end
        for partition, end in batch.ends.items()
        if committed.get(partition, -1) < end
    }


def batch_plan(
    batch: BatchRange,
    committed: Positions,
    members: Mapping[tuple[str, int], MemberIdentity],
    topic_ids: Mapping[str, uuid.UUID],
) -> dict[tuple[str, int], PartitionPlan]:
    """The plan for the range's partitions; those that no member may commit are left out."""
    return {
        partition: PartitionPlan(
            topic_ids[partition[0]], committed.get(partition, 0), members[partition]
        )
        for partition in batch.ends
        if partition in members
    }
