"""Sets a mirrored query's progress in its source partitions manually."""

from collections.abc import Mapping
from dataclasses import replace

from spark_eos._cli.migration import set_offsets
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.groups import describe_group
from spark_eos._kafka.offsets import group_offsets
from spark_eos._kafka.progress_topic import ensure_progress_topic, free_partitions
from spark_eos._kafka.stored_text import SourcePartition
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._status.group_progress import GroupProgress, check_source_cluster, no_progress
from spark_eos.errors import ConfigurationError, TopicNotFoundError
from spark_eos.options import ProgressTopic


def set_progress(
    connections: Connections,
    group_id: str,
    wanted: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    source_connections: Connections | None = None,  # for partitions without progress
    progress_topic: str | None = None,  # if no offset names the topic
    dry_run: bool = False,
) -> dict[TopicPartition, int | None]:
    """Set a stopped query's progress and clear suspect ranges; return the earlier offsets."""
    if describe_group(connections, group_id, deadline).members:
        raise ConfigurationError(
            f"group {group_id!r} has members: stop the query first, or its next commit undoes this"
        )
    progress = GroupProgress.read(connections, group_id, deadline)
    before, known = progress.mirrored, progress.known
    pairs = {pair.source.topic_partition: pair for pair in before}
    topic = before[0].progress.topic if before else progress_topic
    if topic is None:
        raise no_progress(group_id, ". To begin with an offset, give --progress-topic too")
    if progress_topic not in (None, topic):
        raise ConfigurationError(
            f"the progress of group {group_id!r} is in topic {topic!r}, not in {progress_topic!r}"
        )
    if known.staged or any(partition.topic != topic for partition in known.partitions):
        raise ConfigurationError(
            f"group {group_id!r} does not belong to a mirrored query, whose progress is in topic "
            f"{topic!r}: its offsets can't be set with this command"
        )
    assigned = {source: pairs[source].progress for source in wanted if source in pairs}
    if missing := sorted(wanted.keys() - assigned.keys()):
        if source_connections is None:
            raise ConfigurationError(
                f"{missing[0]} has no progress in group {group_id!r}: give "
                "--source-bootstrap-servers, so that the partition can be identified"
            )
        check_source_cluster(before, cluster.cluster_id(source_connections, deadline))
        sources = _sources(source_connections, missing, deadline, all_of_a_topic=not before)
        free = free_partitions(topic, (*known.partitions, *progress.committed), len(missing))
        assigned |= {
            source: TopicPartition(topic, index)
            for source, index in zip(missing, free, strict=True)
        }
        more = {assigned[source]: sources[source] for source in missing}
        known = replace(known, sources={**known.sources, **more})
    if not dry_run:
        needed = 1 + max(index for _, index in assigned.values())
        info = ensure_progress_topic(connections, ProgressTopic(topic), deadline, partitions=needed)
        ids = {topic: info.topic_id}
        # Raise if a transaction is about to change the offsets.
        group_offsets(connections, group_id, assigned.values(), ids, deadline, wait=False)
        known = known.including(assigned.values(), ids)
        kept = {
            partition: suspect
            for partition, suspect in known.suspects.items()
            if partition not in assigned.values()
        }
        texts = replace(known, suspects=kept).texts(assigned.values())
        offsets = {assigned[source]: offset for source, offset in wanted.items()}
        set_offsets(connections, group_id, offsets, ids, deadline, texts)
    return {source: pairs[source].offset if source in pairs else None for source in wanted}


def _sources(
    connections: Connections,
    wanted: list[TopicPartition],
    deadline: Deadline,
    *,
    all_of_a_topic: bool,
) -> dict[TopicPartition, SourcePartition]:
    id_ = cluster.cluster_id(connections, deadline)
    topics = cluster.topics(connections, {topic for topic, _ in wanted}, deadline)
    every = {
        TopicPartition(name, index)
        for name, info in topics.items()
        for index in range(info.partitions)
    }
    for partition in wanted:
        if partition not in every:
            raise TopicNotFoundError(f"{partition} does not exist in the source cluster")
    if all_of_a_topic and (others := sorted(every - set(wanted))):
        # The other partitions would count as new, although their progress may be lost as well.
        raise ConfigurationError(
            "the group has no progress left to show which of the topics' other partitions are "
            "new: set these too: " + ", ".join(f"{name}:{index}" for name, index in others)
        )
    return {
        partition: SourcePartition(
            id_, partition.topic, topics[partition.topic].topic_id, partition.partition
        )
        for partition in wanted
    }
