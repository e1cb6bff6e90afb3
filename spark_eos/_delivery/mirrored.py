"""Mirrored delivery: offsets of progress partitions are positions in another cluster."""

# A transaction can commit offsets only in its own cluster. So each source partition is paired with
# a progress partition in the target's cluster. Pairs never change, and a run knows all of them once
# it has fenced older runs and read the offsets.

import contextlib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from spark_eos._checkpoint.marker import DIRECT, MIRRORED, Marker
from spark_eos._delivery.base import RunParts
from spark_eos._delivery.direct import DirectDelivery
from spark_eos._delivery.ownership import changed_delivery
from spark_eos._exactly_once.delivery import Batch, PlannedBatch
from spark_eos._kafka.cluster import NO_ID, TopicInfo, cluster_id
from spark_eos._kafka.cluster import topics as cluster_topics
from spark_eos._kafka.offset_metadata import Committed, mirrored_positions
from spark_eos._kafka.progress_topic import ensure_progress_topic, free_partitions
from spark_eos._kafka.stored_text import SourcePartition
from spark_eos._kafka.topic_cache import TopicCache, recreated, source_topics
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange, Partitions
from spark_eos._worker.sources import Sources
from spark_eos._worker.task_report import JobOutcome
from spark_eos.errors import AuthorizationError, ConfigurationError, OffsetsLostError

# An error names at most this many progress partitions.
_NAMED: Final = 5


class MirroredDelivery(DirectDelivery):
    """Progress partitions stand for source partitions in another cluster."""

    name = MIRRORED
    why = f"{DirectDelivery.why}, in another cluster"
    uses_progress_topic = True

    @classmethod
    def rejection(cls, *, other_cluster: bool) -> str | None:
        if other_cluster:
            return None
        return (
            "delivery='mirrored' is for a source in another cluster: give its client settings as "
            "source_kafka, or leave delivery out"
        )

    @classmethod
    def positions(cls, offsets: Committed) -> Positions:
        return mirrored_positions(offsets)

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._topics = TopicCache(parts.start.source, parts.settings.limits)
        self._cluster = ""
        self._ids: dict[str, uuid.UUID] = {}
        # Progress partitions in use whose source is unknown.
        self._unknown: set[TopicPartition] = set()

    # The start --------------------------------------------------------------------------------

    def partitions_to_fence(self, batch: Batch) -> Partitions:
        """Return all progress partitions, to fence and read them before any pair is known."""
        del batch
        connections, deadline = self._start.target, self._settings.group_deadline()
        topic = ensure_progress_topic(connections, self._topic, deadline)
        return {TopicPartition(topic.name, index) for index in range(topic.partitions)}

    def learn(self, batch: Batch) -> None:
        """Learn the sources from the group's offsets, or else from the checkpoint."""
        marker = self._marker(batch)
        self._cluster = cluster_id(self._start.source, self._settings.group_deadline())
        known = self._offsets.known
        sources = dict(known.sources)
        if marker.group_id == self._group_id:
            paired = {source.topic_partition for source in sources.values()}
            for number, source in marker.sources.items():
                if source.topic_partition not in paired:
                    sources.setdefault(TopicPartition(self._topic.name, number), source)
        for partition, source in sorted(sources.items()):
            self._check_pair(partition, source)
        own = {self._topic.name, *(topic for topic, _ in sources)}
        if any(topic not in own for topic, _ in known.partitions):
            raise changed_delivery(DIRECT, MIRRORED)
        used = {*known.partitions, *self._offsets.committed}
        self._unknown = {p for p in used if p.topic == self._topic.name} - sources.keys()
        self._offsets.learn(replace(known, sources=sources))
        super().learn(batch)

    def _check_pair(self, partition: TopicPartition, source: SourcePartition) -> None:
        group = self._group_id
        if partition.topic != self._topic.name:
            raise ConfigurationError(
                f"the progress of group {group!r} is in topic {partition.topic!r}, not in "
                f"{self._topic.name!r}: set progress_topic={partition.topic!r}"
            )
        if source.cluster != self._cluster:
            raise ConfigurationError(
                f"{partition} holds the progress of group {group!r} in "
                f"{source.topic_partition} of cluster {source.cluster!r}, but "
                f"source_kafka points to cluster {self._cluster!r}, where the same offsets mean "
                "other records: point source_kafka at the cluster that the query read before, or "
                "use another group_id and another checkpoint_location"
            )

    # One batch --------------------------------------------------------------------------------

    def plan(self, batch: Batch) -> PlannedBatch:
        """Pair new source partitions with progress partitions; renew idle pairs with the batch."""
        source, offsets = batch.source, self._offsets
        topics = self._check_source(batch)
        if new := sorted(source.ends.keys() - set(offsets.sources.by_partition.values())):
            self._add(new, topics)
        sources = offsets.sources
        starts, ends = (
            {sources.partition(read): offset for read, offset in positions.items()}
            for positions in (source.starts, source.ends)
        )
        idle = sources.by_partition.keys() & offsets.committed.keys() - ends.keys()
        settings = self._settings
        if (letters := settings.dead_letters) is not None:
            # Dead letters name the cluster of their records.
            settings = replace(settings, dead_letters=replace(letters, cluster=self._cluster))
        return PlannedBatch(batch, BatchRange(batch.id, starts, ends), settings, sources, idle)

    def _check_source(self, batch: Batch) -> dict[str, TopicInfo]:
        """Refuse recreated source topics: Kafka itself checks only the progress topic's id."""
        names = {topic for topic, _ in batch.source.ends}
        group = self._group_id
        topics = source_topics(self._topics, names, self._ids, group)
        self._ids |= {name: topic.topic_id for name, topic in topics.items()}
        for source in self._offsets.known.sources.values():
            # Compare each pair: an operator may have set the progress of some partitions since.
            now = topics.get(source.topic)
            if now and now.topic_id != source.topic_id != NO_ID:
                raise recreated(source.topic, source.topic_id, now.topic_id, group)
        return topics

    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        self._check_source(planned.batch)
        return super().check_written(planned, outcomes)

    def _new_marker(self, planned: PlannedBatch) -> Marker:
        known = self._offsets.known.sources
        sources = {number: source for (_, number), source in known.items()}
        marker = super()._new_marker(planned)
        return replace(marker, partitions={}, sources=sources)

    def _add(self, new: Collection[TopicPartition], topics: dict[str, TopicInfo]) -> None:
        known, topic = self._offsets.known, self._topic.name
        if self._unknown:
            raise self._ambiguous(new)
        self._check_other_cluster({name: topics[name] for name, _ in new})
        free = free_partitions(topic, (*known.partitions, *known.sources), len(new))
        pairs = {
            TopicPartition(topic, number): SourcePartition(
                self._cluster, source, topics[source].topic_id, partition
            )
            for (source, partition), number in zip(new, free, strict=True)
        }
        needed = 1 + max(number for _, number in pairs)
        deadline = self._settings.group_deadline()
        ensure_progress_topic(self._start.target, self._topic, deadline, partitions=needed)
        self._offsets.learn(replace(known, sources={**known.sources, **pairs}))

    def _check_other_cluster(self, new: Mapping[str, TopicInfo]) -> None:
        """Refuse the target's cluster as the source: the query could feed itself forever."""
        deadline = self._settings.group_deadline()
        here: dict[str, TopicInfo] = {}
        # A topic that the query may not describe can't be a target either.
        with contextlib.suppress(AuthorizationError):
            here = cluster_topics(self._start.target, new, deadline)
        for name, topic in sorted(here.items()):
            if NO_ID != topic.topic_id == new[name].topic_id:
                raise ConfigurationError(
                    f"source_kafka points to the same cluster as kafka: both have topic {name!r} "
                    f"with id {topic.topic_id}. Point source_kafka at the source's cluster, "
                    "or leave source_kafka out if there is only one cluster"
                )

    def _ambiguous(self, new: Iterable[TopicPartition]) -> OffsetsLostError:
        group = self._group_id
        lost = ", ".join(map(str, sorted(self._unknown)[:_NAMED]))
        first, any_ = min(new), TopicPartition("", 0)
        source = self._start.source
        more = ["--source-bootstrap-servers", source.bootstrap_servers]
        if source.principal.command_config is not None:
            more += ["--source-kafka-config", "FILE"]
        if not self._offsets.sources.by_partition:
            more += ["--progress-topic", self._topic.name]
        pair = Sources({any_: first})
        wanted = pair.how_to_set(self._settings.group, {any_: "N"}, *more)
        return OffsetsLostError(
            f"group {group!r} has used {len(self._unknown)} progress partitions whose source "
            f"partitions are no longer known ({lost}): their offsets have expired "
            "(offsets.retention.minutes), were deleted, or were set by other tools. So it is not "
            f"known whether {first} is new, and nothing is written. Restore the query's "
            "checkpoint, which may name these source partitions; or find out how far each source "
            "partition was written (spark-eos verify) and set the missing progress while the "
            f"query is stopped ({wanted}); or start over with another group_id and another "
            "checkpoint_location"
        )
