"""How far a mirrored query has come in its source partitions, and setting it by hand."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_eos.admin.migration import set_offsets
from spark_eos.driver.progress_topic import (
    ProgressTopic,
    ensure_progress_topic,
    free_partitions,
)
from spark_eos.errors import ConfigurationError, TopicNotFoundError
from spark_eos.kafka import cluster
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.groups import describe_group
from spark_eos.kafka.offset_metadata import CommittedOffset, KnownPartitions, SourcePartition
from spark_eos.kafka.offsets import all_group_offsets, group_offsets

Place = tuple[str, int]
"""A (topic, partition) pair."""
Committed = Mapping[Place, CommittedOffset]


@dataclass(frozen=True)
class MirroredPartition:
    """A mirrored query's progress in one source partition.

    Attributes:
        source: The source partition, and its cluster's id.
        offset: The next source offset to read.
        place: The progress topic and partition whose group offset this is.
    """

    source: SourcePartition
    offset: int
    place: Place


def mirrored_partitions(committed: Committed) -> tuple[MirroredPartition, ...]:
    """The source partitions that a group's offsets stand for; empty unless a query mirrors.

    Args:
        committed: All offsets of the group by (topic, partition).

    Example:
        >>> place = ("spark-eos-progress", 0)
        >>> source = SourcePartition("9dZ", "orders", cluster.NO_ID, 3)
        >>> text = KnownPartitions(sources={place: source}).texts([place])[place]
        >>> (found,) = mirrored_partitions({place: CommittedOffset(120, text)})
        >>> found.source.topic, found.source.partition, found.offset
        ('orders', 3, 120)
    """
    sources = KnownPartitions.of(committed).sources
    found = (
        MirroredPartition(source, committed[place].offset, place)
        for place, source in sources.items()
    )
    return tuple(sorted(found, key=lambda one: (one.source.topic, one.source.partition)))


def group_progress(wire: Wire, group_id: str, deadline: Deadline) -> tuple[MirroredPartition, ...]:
    """Asks for a mirrored query's progress.

    Args:
        wire: Connections to the target's cluster, which has the group.
        group_id: The query's group.
        deadline: Limits all calls together.

    Raises:
        ConfigurationError: No offset of the group is that of a mirrored query.
    """
    found = mirrored_partitions(all_group_offsets(wire, group_id, deadline))
    if not found:
        raise _no_progress(group_id)
    return found


def _no_progress(group_id: str, more: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"group {group_id!r} has no offset of a mirrored query: check --group-id, and that "
        f"--bootstrap-servers leads to the target's cluster{more}"
    )


def set_progress(
    wire: Wire,
    group_id: str,
    wanted: Mapping[Place, int],
    deadline: Deadline,
    *,
    source_wire: Wire | None = None,
    progress_topic: str | None = None,
    dry_run: bool = False,
) -> dict[Place, int | None]:
    """Sets a mirrored query's progress while it is stopped.

    Marks that say that records may not be written are taken off the partitions that are set.

    Args:
        wire: Connections to the target's cluster.
        group_id: The query's group.
        wanted: The next offset to read, by (source topic, partition).
        deadline: Limits all calls together.
        source_wire: Connections to the source cluster; needed only for partitions that have no
            progress, which get a progress partition.
        progress_topic: The progress topic; needed only if no offset of the group tells of it.
        dry_run: Whether to change nothing.

    Returns:
        The offsets before, by (source topic, partition); None if there was none.

    Raises:
        ConfigurationError: The query runs; or a source partition has no progress and
            ``source_wire`` is not given, or no offset tells of the progress topic and it is not
            given; or another one is given; or the group has no progress, and partitions of a topic
            are left out.
        TopicNotFoundError: A source partition does not exist.
        KafkaResponseError: A transaction holds the offsets, or the broker refuses the new ones.
    """
    if describe_group(wire, group_id, deadline).members:
        raise ConfigurationError(
            f"group {group_id!r} has members: stop the query first, or its next commit undoes this"
        )
    committed = all_group_offsets(wire, group_id, deadline)
    before = mirrored_partitions(committed)
    known = KnownPartitions.of(committed)
    pairs = {(one.source.topic, one.source.partition): one for one in before}
    topic = before[0].place[0] if before else progress_topic
    if topic is None:
        raise _no_progress(group_id, ". To begin with an offset, give --progress-topic, too")
    if progress_topic not in (None, topic):
        raise ConfigurationError(
            f"the progress of group {group_id!r} is in topic {topic!r}, not in {progress_topic!r}"
        )
    places = {source: pairs[source].place for source in wanted if source in pairs}
    if missing := sorted(wanted.keys() - places.keys()):
        if source_wire is None:
            name, partition = missing[0]
            raise ConfigurationError(
                f"{name}-{partition} has no progress in group {group_id!r}: give "
                "--source-bootstrap-servers, so that it can be told which partition is meant"
            )
        sources = _sources(source_wire, missing, deadline, all_of_a_topic=not before)
        free = free_partitions(topic, (*known.partitions, *committed), len(missing))
        places |= {source: (topic, index) for source, index in zip(missing, free, strict=True)}
        more = {places[source]: sources[source] for source in missing}
        known = replace(known, sources={**known.sources, **more})
    if not dry_run:
        needed = 1 + max(index for _, index in places.values())
        info = ensure_progress_topic(wire, ProgressTopic(topic), deadline, partitions=needed)
        ids = {topic: info.topic_id}
        # Raises if a transaction is about to change them.
        group_offsets(wire, group_id, places.values(), ids, deadline, wait=False)
        known = known.including(places.values(), ids)
        kept = {
            place: doubt for place, doubt in known.doubts.items() if place not in places.values()
        }
        texts = replace(known, doubts=kept).texts(places.values())
        offsets = {places[source]: offset for source, offset in wanted.items()}
        set_offsets(wire, group_id, offsets, {topic: info}, deadline, texts)
    return {source: pairs[source].offset if source in pairs else None for source in wanted}


def _sources(
    wire: Wire, wanted: list[Place], deadline: Deadline, *, all_of_a_topic: bool
) -> dict[Place, SourcePartition]:
    id_ = cluster.cluster_id(wire, deadline)
    topics = cluster.topics(wire, {topic for topic, _ in wanted}, deadline)
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
