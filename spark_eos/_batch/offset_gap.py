"""Refuses a batch that begins after what its group has committed; pure."""

from spark_eos._batch.partition_pairs import PartitionPairs
from spark_eos._batch.plan import BatchRange, Positions
from spark_eos.errors import OffsetGapError


def check_no_gap(
    group_id: str, batch: BatchRange, committed: Positions, pairs: PartitionPairs
) -> None:
    """Checks that the batch starts no later than what the group has committed."""
    for partition in sorted(batch.starts.keys() & batch.ends.keys()):
        start = batch.starts[partition]
        offset = committed[partition]
        if offset < start:
            raise OffsetGapError(
                f"group {group_id!r} has committed {pairs.name(partition)} up to {offset}, but "
                f"batch {batch.batch_id} starts at {start}: offsets {offset} to {start - 1} would "
                "never be written, so nothing is. Delete the checkpoint at checkpoint_location "
                "to continue from the group's offsets (this loses and duplicates nothing), or, to "
                f"skip these records, set the group's offset to {start} "
                f"({pairs.how_to_set(group_id, {partition: start})})"
            )
