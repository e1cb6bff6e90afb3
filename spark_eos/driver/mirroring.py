"""The mirrored road on the driver: the source is in another cluster than the group and the target.

A transaction can only move offsets of its own cluster. So each source partition has a progress
partition in the target's cluster, whose group offset is the next source offset to read. The text of
each offset tells which source partition it stands for (Kafka Connect's exactly-once source support,
KIP-618, keeps offsets in the target's cluster, too). A pair is never changed, so whoever has fenced
all others and has read the group's offsets knows all pairs.
"""

import contextlib
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_eos.batch.plan import BatchPlan, BatchRange, Partitions, Positions
from spark_eos.batch.source_places import Place, SourcePlaces
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.settings import ClientSettings
from spark_eos.driver.checkpoint_note import DIRECT, MIRRORED, Note
from spark_eos.driver.committed_offsets import CommittedOffsets
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.driver.offset_log import OffsetLog
from spark_eos.driver.progress_topic import ProgressTopic, ensure_progress_topic, free_partitions
from spark_eos.driver.road import other_road
from spark_eos.driver.rounds import Job
from spark_eos.errors import AuthorizationError, ConfigurationError, OffsetsLostError
from spark_eos.kafka.cluster import NO_ID, TopicInfo, cluster_id
from spark_eos.kafka.cluster import topics as cluster_topics
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.list_offsets import start_offsets
from spark_eos.kafka.offset_metadata import SourcePartition
from spark_eos.kafka.topic_cache import TopicCache, recreated, source_topics

# Errors name at most so many progress partitions.
_NAMED: Final = 5


@dataclass(frozen=True)
class MirroredSource:
    """The cluster that a mirrored query reads, and where it keeps its progress.

    Attributes:
        client: Client settings of the source cluster.
        progress_topic: The progress topic, in the target's cluster.
    """

    client: ClientSettings
    progress_topic: ProgressTopic


class Mirroring:
    """Keeps the pairs of progress and source partitions of one run.

    Args:
        wire: Connections to the target's cluster.
        source_wire: Connections to the source cluster.
        settings: Writer settings.
        topic: The progress topic.
        offset_log: The query's checkpoint.
        offsets: The group's committed offsets.
        group_timeout_ms: Time limit of each call, in milliseconds.
    """

    def __init__(
        self,
        wire: Wire,
        source_wire: Wire,
        settings: WriterSettings,
        topic: ProgressTopic,
        offset_log: OffsetLog,
        offsets: CommittedOffsets,
        group_timeout_ms: int,
    ) -> None:
        self._wire = wire
        self._source_wire = source_wire
        self._settings = settings
        self._topic = topic
        self._offset_log = offset_log
        self._offsets = offsets
        self._group_timeout_ms = group_timeout_ms
        self._topics = TopicCache(
            source_wire,
            max_block_ms=settings.max_block_ms,
            max_idle_ms=settings.metadata_max_idle_ms,
        )
        self._cluster = ""
        self._ids: dict[str, uuid.UUID] = {}
        # Progress partitions in use of which nobody knows what they stand for.
        self._unknown: set[Place] = set()
        self._batch: BatchRange | None = None

    # The start --------------------------------------------------------------------------------

    def everything(self, batch_id: int) -> BatchRange:
        """A range of all progress partitions, to fence and read them before any pair is known.

        Args:
            batch_id: Spark's number of the batch.

        Raises:
            AuthorizationError: The progress topic may not be read, or not be created.
        """
        deadline = group_deadline(self._group_timeout_ms)
        topic = ensure_progress_topic(self._wire, self._topic, deadline)
        places = {(topic.name, index): 0 for index in range(topic.partitions)}
        return BatchRange(batch_id, {}, places)

    def learn(self, note: Note) -> None:
        """Learns the pairs from the group's offsets, or else from the checkpoint.

        All older runs must be fenced, and all offsets of the group read.

        Args:
            note: The checkpoint's note.

        Raises:
            ConfigurationError: The group's progress is that of another cluster, or in another
                topic.
            CheckpointError: The group's offsets are those of a direct query.
        """
        self._cluster = cluster_id(self._source_wire, group_deadline(self._group_timeout_ms))
        known = self._offsets.known
        sources = dict(known.sources)
        if note.group_id == self._settings.group_id:
            paired = {(source.topic, source.partition) for source in sources.values()}
            for number, source in note.sources.items():
                if (source.topic, source.partition) not in paired:
                    sources.setdefault((self._topic.name, number), source)
        for (topic, number), source in sorted(sources.items()):
            self._check_pair(topic, number, source)
        own = {self._topic.name, *(topic for topic, _ in sources)}
        if any(topic not in own for topic, _ in known.partitions):
            raise other_road(DIRECT, MIRRORED)
        used = {*known.partitions, *self._offsets.committed}
        self._unknown = {p for p in used if p[0] == self._topic.name} - sources.keys()
        self._offsets.known = replace(known, sources=sources)
        self._pair()

    def _check_pair(self, topic: str, number: int, source: SourcePartition) -> None:
        group = self._settings.group_id
        if topic != self._topic.name:
            raise ConfigurationError(
                f"the progress of group {group!r} is in topic {topic!r}, not in "
                f"{self._topic.name!r}: set progress_topic={topic!r}"
            )
        if source.cluster != self._cluster:
            raise ConfigurationError(
                f"{topic}-{number} holds the progress of group {group!r} in "
                f"{source.topic}-{source.partition} of cluster {source.cluster!r}, and "
                f"source_kafka leads to cluster {self._cluster!r}, whose offsets mean something "
                "else: set source_kafka to the cluster that the query has read before, or use "
                "another group_id and another checkpoint_location"
            )

    def _pair(self) -> None:
        sources = self._offsets.known.sources
        self._offsets.places = SourcePlaces(
            {place: (source.topic, source.partition) for place, source in sources.items()}
        )

    # One batch --------------------------------------------------------------------------------

    def batch_range(self, batch_id: int) -> BatchRange:
        """The batch's range in the progress partitions; new source partitions get one each.

        Progress partitions of which the batch has nothing are in it too, so that their offsets are
        renewed as all others are.

        Args:
            batch_id: Spark's number of the batch.

        Raises:
            OffsetsLostError: A source topic was recreated; or a source partition seems new, and
                may be one whose offset was lost.
            ConfigurationError: The source is in the target's cluster.
            AuthorizationError: The progress topic needs more partitions, and may not be altered.
        """
        source = self._batch = self._offset_log.batch_range(batch_id)
        # After a lost session, the offsets may have told of pairs that a newer run has made.
        self._pair()
        topics = self.check_source()
        if new := sorted(source.ends.keys() - set(self._offsets.places.sources.values())):
            self._add(new, topics)
        places, committed = self._offsets.places, self._offsets.committed
        idle = {
            place: committed[place]
            for place, read in places.sources.items()
            if read not in source.ends and place in committed
        }
        return BatchRange(
            batch_id,
            places.by_progress(source.starts) | idle,
            places.by_progress(source.ends) | idle,
        )

    def check_source(self) -> dict[str, TopicInfo]:
        """Checks that the batch's source topics are those whose offsets the group has.

        Before and after the batch is written: Kafka itself checks only the progress topic's id.

        Returns:
            The topics by name.

        Raises:
            OffsetsLostError: One was deleted and recreated.
            TopicNotFoundError: One does not exist.
        """
        assert self._batch is not None  # noqa: S101 - batch_range comes first
        names = {topic for topic, _partition in self._batch.ends}
        group = self._settings.group_id
        topics = source_topics(self._topics, names, self._ids, group)
        self._ids |= {name: topic.topic_id for name, topic in topics.items()}
        for source in self._offsets.known.sources.values():
            # One by one: an operator may have set the progress of some since it was recreated.
            now = topics.get(source.topic)
            if now and now.topic_id != source.topic_id != NO_ID:
                raise recreated(source.topic, source.topic_id, now.topic_id, group)
        return topics

    def _add(self, new: Collection[Place], topics: dict[str, TopicInfo]) -> None:
        known, topic = self._offsets.known, self._topic.name
        if self._unknown:
            raise self._ambiguous(new)
        self._check_other_cluster({name: topics[name] for name, _ in new})
        free = free_partitions(topic, (*known.partitions, *known.sources), len(new))
        pairs = {
            (topic, number): SourcePartition(
                self._cluster, source, topics[source].topic_id, partition
            )
            for (source, partition), number in zip(new, free, strict=True)
        }
        needed = 1 + max(number for _, number in pairs)
        deadline = group_deadline(self._group_timeout_ms)
        ensure_progress_topic(self._wire, self._topic, deadline, partitions=needed)
        self._offsets.known = replace(known, sources={**known.sources, **pairs})
        self._pair()

    def _check_other_cluster(self, new: Mapping[str, TopicInfo]) -> None:
        """Refuses the target's cluster as the source: a copy could feed itself for ever."""
        deadline = group_deadline(self._group_timeout_ms)
        here: dict[str, TopicInfo] = {}
        # Topics that may not even be described are not written.
        with contextlib.suppress(AuthorizationError):
            here = cluster_topics(self._wire, new, deadline)
        for name, topic in sorted(here.items()):
            if NO_ID != topic.topic_id == new[name].topic_id:
                raise ConfigurationError(
                    f"source_kafka leads to the cluster of kafka: both have topic {name!r} with "
                    f"id {topic.topic_id}. Set source_kafka to the cluster that has the source, "
                    "or leave source_kafka out if both are one"
                )

    def _ambiguous(self, new: Iterable[Place]) -> OffsetsLostError:
        group = self._settings.group_id
        lost = ", ".join(f"{topic}-{index}" for topic, index in sorted(self._unknown)[:_NAMED])
        first = min(new)
        wanted = SourcePlaces({("", 0): first}).how_to_set(group, {("", 0): "N"})
        wanted += " --source-bootstrap-servers ..."
        if not self._offsets.places.sources:
            wanted += f" --progress-topic {self._topic.name}"
        return OffsetsLostError(
            f"group {group!r} has used {len(self._unknown)} progress partitions of which nothing "
            f"tells any more what they stand for ({lost}): their offsets have expired "
            "(offsets.retention.minutes), were deleted, or were set by other tools. So whether "
            f"{first[0]}-{first[1]} is new is not known, and nothing is written. Put the query's "
            "checkpoint back, which may know; or find out up to where each source partition was "
            "written (spark-eos verify) and set the progress of those that have none while the "
            f"query is stopped ({wanted}); or start over with another group_id and another "
            "checkpoint_location"
        )

    def note(self, note: Note) -> Note:
        """Adds to a note what a mirrored query notes."""
        sources = {number: source for (_, number), source in self._offsets.known.sources.items()}
        return replace(note, delivery=MIRRORED, sources=sources)

    def first_offsets(self, new: Collection[Place]) -> Positions:
        """The first offsets of source partitions, by progress partition."""
        places = self._offsets.places
        topics = {places.source(place)[0] for place in new}
        deadline = group_deadline(self._group_timeout_ms)
        return places.by_progress(start_offsets(self._source_wire, topics, deadline))

    def job(self, job: Job) -> Job:
        """A job on the group's partitions, of one on the source's."""

        def run(
            settings: WriterSettings,
            batch: BatchRange,
            batch_plan: BatchPlan,
            only: Partitions | None,
        ) -> JobOutcome:
            places = self._offsets.places
            # Not `batch`, which has progress partitions that Spark does not read.
            del batch
            assert self._batch is not None  # noqa: S101 - batch_range comes first
            planned, chosen = places.task_plan(batch_plan), places.chosen(only)
            return places.outcome(job(settings, self._batch, planned, chosen))

        return run
