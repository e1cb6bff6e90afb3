"""Migrates a query from Spark's own sink: its checkpoint's offsets become the group's offsets."""

from collections.abc import Mapping
from uuid import UUID

from spark_eos._checkpoint.offset_log import FinishedBatches
from spark_eos._client.commands import Group
from spark_eos._client.error_codes import DENIED, Code, code_names
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.groups import describe_group
from spark_eos._kafka.list_offsets import end_offsets, start_offsets
from spark_eos._kafka.offsets import all_group_offsets, commit_offsets
from spark_eos._kafka.open_transactions import lingering_transactions
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.sources import Sources
from spark_eos.acls import read_group, read_topic
from spark_eos.errors import (
    CheckpointError,
    ConfigurationError,
    KafkaResponseError,
    TopicNotFoundError,
)


def check_finished(batches: FinishedBatches, *, repeat_unfinished: bool) -> None:
    """Refuse a checkpoint whose last batch was begun but not finished."""
    if batches.unfinished is None or repeat_unfinished:
        return
    raise CheckpointError(
        f"batch {batches.unfinished} of the checkpoint was begun but not finished: some or all of "
        "its rows may already be written. Run the unchanged query once more with "
        ".trigger(availableNow=True) and let it end; or give --repeat-unfinished to write all "
        "rows of that batch again, which duplicates the rows already written"
    )


def check_unused(
    connections: Connections, group_id: str, prefix: str, wanted: Positions, deadline: Deadline
) -> bool:
    """Check that the group is unused; return True if its offsets still have to be set."""
    group = Group(group_id, connections.principal)
    members = describe_group(connections, group_id, deadline).members
    if members:
        raise ConfigurationError(
            f"group_id {group_id!r} has a live member: {members[0]}. Stop that consumer "
            "or query, or choose another group_id"
        )
    if lingering_transactions(connections, prefix, group_id, deadline):
        raise ConfigurationError(
            f"group_id {group_id!r} has open transactions: a spark-eos query has used it. "
            "Choose another group_id, or end the transactions: "
            f"{group.own_tool('abort', '--prefix', prefix)}"
        )
    offsets = all_group_offsets(connections, group_id, deadline)
    committed = {partition: offset.offset for partition, offset in offsets.items()}
    if committed and committed != wanted:
        first = min(committed)
        raise ConfigurationError(
            f"group_id {group_id!r} already has offsets, such as "
            f"{committed[first]} of {first}: it belongs to another query, "
            "or this query has already run with it. Choose another group_id, or delete the group "
            f"({group.tool('--delete')})"
        )
    return committed != wanted


def check_topics(
    connections: Connections, group_id: str, wanted: Positions, deadline: Deadline
) -> dict[str, UUID | None]:
    """Check that the checkpoint's offsets exist in the source topics; return the topics' ids."""
    names = {topic for topic, _ in wanted}
    existing = cluster.topics(connections, names, deadline)
    starts = start_offsets(connections, existing, deadline)
    ends = end_offsets(connections, existing, deadline)
    for partition, offset in sorted(wanted.items()):
        if partition not in ends:
            raise TopicNotFoundError(
                f"the checkpoint has offsets of {partition}, which does not exist on this cluster"
            )
        end, start = ends[partition], starts.get(partition)
        if end is None or start is None:
            raise TopicNotFoundError(f"{partition} has no leader at the moment; try again")
        if offset > end.high_watermark:
            raise CheckpointError(
                f"the checkpoint has read {partition} up to {offset}, but it ends at "
                f"{end.high_watermark}: the topic was deleted and recreated, or this is "
                "another cluster"
            )
        if offset < start:
            group = Group(group_id, connections.principal)
            command = Sources().how_to_set(group, {partition: start})
            raise CheckpointError(
                f"the checkpoint has read {partition} up to {offset}, but it begins at {start}: "
                f"offsets {offset} to {start - 1} were deleted by the topic's retention before "
                "they were read. If you can do without them, set the group's offsets of all "
                f"partitions yourself, here to {start} ({command})"
            )
    return {name: topic.topic_id for name, topic in existing.items()}


def set_offsets(
    connections: Connections,
    group_id: str,
    wanted: Positions,
    ids: Mapping[str, UUID | None],
    deadline: Deadline,
    texts: Mapping[TopicPartition, str],
) -> None:
    """Commit offsets to a group; the broker refuses them if the group has members."""
    codes = commit_offsets(connections, group_id, None, wanted, ids, deadline, metadata=texts)
    what = f"setting the offsets of group {group_id!r}"
    bad = {code for code in codes.values() if code != Code.NONE}
    if denied := bad & DENIED.keys():
        code = min(denied)
        topics = sorted({partition.topic for partition, own in codes.items() if own == code})
        needed = [read_group(group_id), *map(read_topic, topics)]
        raise connections.refusal(what, code, needed)
    if bad:
        raise KafkaResponseError(
            f"{what}: {code_names(bad)}. If a consumer has joined the group in the meantime, stop "
            "that consumer",
            min(bad),
        )
