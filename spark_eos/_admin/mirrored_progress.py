"""Setting by hand how far a mirrored query has come in its source partitions."""

from collections.abc import Mapping
from dataclasses import replace

from spark_eos._admin.group_progress import GroupProgress, Place, no_progress
from spark_eos._admin.migration import set_offsets
from spark_eos._driver.progress_topic import ensure_progress_topic, free_partitions
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.groups import describe_group
from spark_eos._kafka.offset_metadata import SourcePartition
from spark_eos._kafka.offsets import group_offsets
from spark_eos.errors import ConfigurationError, TopicNotFoundError
from spark_eos.options import ProgressTopic


def set_progress(
    connections: Connections,
    group_id: str,
    wanted: Mapping[Place, int],
    deadline: Deadline,
    *,
    source_connections: Connections | None = None,
    progress_topic: str | None = None,
    dry_run: bool = False,
) -> dict[Place, int | None]:
    """Sets a mirrored query's progress while it is stopped, by (source topic, partition).

    Takes marks of records that may not be written off these partitions. ``source_connections`` is
    needed only for partitions that have no progress yet, ``progress_topic`` if no offset tells
    of it.
    """
    if describe_group(connections, group_id, deadline).members:
        raise ConfigurationError(
            f"group {group_id!r} has members: stop the query first, or its next commit undoes this"
        )
    progress = GroupProgress.read(connections, group_id, deadline)
    before, known = progress.mirrored, progress.known
    pairs = {(one.source.topic, one.source.partition): one for one in before}
    topic = before[0].place[0] if before else progress_topic
    if topic is None:
        raise no_progress(group_id, ". To begin with an offset, give --progress-topic, too")
    if progress_topic not in (None, topic):
        raise ConfigurationError(
            f"the progress of group {group_id!r} is in topic {topic!r}, not in {progress_topic!r}"
        )
    places = {source: pairs[source].place for source in wanted if source in pairs}
    if missing := sorted(wanted.keys() - places.keys()):
        if source_connections is None:
            name, partition = missing[0]
            raise ConfigurationError(
                f"{name}-{partition} has no progress in group {group_id!r}: give "
                "--source-bootstrap-servers, so that it can be told which partition is meant"
            )
        sources = _sources(source_connections, missing, deadline, all_of_a_topic=not before)
        free = free_partitions(topic, (*known.partitions, *progress.committed), len(missing))
        places |= {source: (topic, index) for source, index in zip(missing, free, strict=True)}
        more = {places[source]: sources[source] for source in missing}
        known = replace(known, sources={**known.sources, **more})
    if not dry_run:
        needed = 1 + max(index for _, index in places.values())
        info = ensure_progress_topic(connections, ProgressTopic(topic), deadline, partitions=needed)
        ids = {topic: info.topic_id}
        # Raises if a transaction is about to change them.
        group_offsets(connections, group_id, places.values(), ids, deadline, wait=False)
        known = known.including(places.values(), ids)
        kept = {
            place: suspect
            for place, suspect in known.suspects.items()
            if place not in places.values()
        }
        texts = replace(known, suspects=kept).texts(places.values())
        offsets = {places[source]: offset for source, offset in wanted.items()}
        set_offsets(connections, group_id, offsets, {topic: info}, deadline, texts)
    return {source: pairs[source].offset if source in pairs else None for source in wanted}


def _sources(
    connections: Connections, wanted: list[Place], deadline: Deadline, *, all_of_a_topic: bool
) -> dict[Place, SourcePartition]:
    id_ = cluster.cluster_id(connections, deadline)
    topics = cluster.topics(connections, {topic for topic, _ in wanted}, deadline)
    for topic, partition in wanted:
        if topic not in topics or partition >= topics[topic].partitions:
            raise TopicNotFoundError(f"{topic}-{partition} does not exist in the source cluster")
    every = {(name, index) for name, info in topics.items() for index in range(info.partitions)}
    if all_of_a_topic and (others := sorted(every - set(wanted))):
        # They would count as new, although theirs may be lost as well.
        raise ConfigurationError(
            "the group has no progress left that tells whether other partitions of the topics are "
            "new: set these, too: " + ", ".join(f"{name}:{index}" for name, index in others)
        )
    return {
        (topic, partition): SourcePartition(id_, topic, topics[topic].topic_id, partition)
        for topic, partition in wanted
    }
