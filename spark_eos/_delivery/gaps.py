"""Checks of a batch's range against the group's offsets; pure functions."""

from collections.abc import Mapping

from spark_eos._client.commands import Group
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange, Partitions
from spark_eos._worker.sources import Sources
from spark_eos.errors import OffsetGapError, RecordsLostError


def log_lags(
    starts: Positions, committed: Mapping[TopicPartition, int], partitions: Partitions
) -> bool:
    """Return True if the group is ahead of the checkpoint in some partition."""
    return any(committed[partition] > starts.get(partition, -1) for partition in partitions)


def check_not_cut(group: Group, batch: BatchRange, sources: Sources) -> None:
    """Refuse partitions in which the batch ends before it starts: their logs may be truncated."""
    for partition in sorted(batch.starts.keys() & batch.ends.keys()):
        start, end = batch.starts[partition], batch.ends[partition]
        if end < start:
            raise RecordsLostError(
                f"{sources.name(partition)} ends at {end}, and group {group.id!r} has read it up "
                f"to {start}, so nothing is written. Either a producer's transaction is open "
                f"before {start}; if so, start again once it has ended, with an empty "
                "checkpoint_location and the same group_id. Or brokers have lost the "
                "last records (unclean leader election, or a failed disk), and new records at "
                f"offsets {end} to {start - 1} would count as written; if so, set the group's "
                f"offset to {end} while the query is stopped "
                f"({sources.how_to_set(group, {partition: end})}), and start with an empty "
                "checkpoint_location"
            )


def check_no_gap(group: Group, batch: BatchRange, committed: Positions, sources: Sources) -> None:
    """Refuse a batch that starts above the group's offsets."""
    for partition in sorted(batch.starts.keys() & batch.ends.keys()):
        start = batch.starts[partition]
        offset = committed[partition]
        if offset < start:
            raise OffsetGapError(
                f"group {group.id!r} has committed {sources.name(partition)} up to {offset}, but "
                f"batch {batch.batch_id} starts at {start}: offsets {offset} to {start - 1} would "
                "never be written, so nothing is written. Delete the checkpoint at "
                "checkpoint_location to continue from the group's offsets (this loses and "
                "duplicates nothing), or, to "
                f"skip these records, set the group's offset to {start} "
                f"({sources.how_to_set(group, {partition: start})})"
            )
