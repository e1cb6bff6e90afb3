"""A query's progress: its group's offsets, read once, and what their metadata says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions, has_text, is_position
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.progress_topic import COMMIT_PARTITION, first_position
from spark_eos._kafka.stored_text import SourcePartition, StagedBatch
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import ConfigurationError


@dataclass(frozen=True)
class PartitionStatus:
    """The group's position in one source partition; None means unknown."""

    topic: str
    partition: int
    committed: int | None  # the next offset to process
    last_stable: int | None  # the first offset that a read_committed consumer can't reach yet
    high_watermark: int | None  # the next offset to be written
    member: str | None  # the id of the member that the partition is assigned to
    log_start: int | None = None  # the first offset that is not deleted

    @property
    def lag(self) -> int | None:
        """Number of offsets from the committed offset to the last stable offset."""
        if self.committed is None or self.last_stable is None:
            return None
        return max(0, self.last_stable - self.committed)

    @property
    def deleted(self) -> int | None:
        """Number of deleted offsets from the committed offset on, which can no longer be read."""
        if self.committed is None or self.log_start is None:
            return None
        return max(0, self.log_start - self.committed)


@dataclass(frozen=True)
class MirroredPartition:
    """A mirrored query's progress in one source partition."""

    source: SourcePartition
    offset: int  # the next offset to read
    progress: TopicPartition  # the progress partition whose group offset this is


@dataclass(frozen=True)
class StagedStatus:
    """The last staged batch of a query."""

    topic: str  # the progress topic
    batch: StagedBatch
    # Files whose rows are all written and committed; all files if the batch has no rows.
    files_written: int

    @property
    def written(self) -> bool:
        """True if all rows of the batch are written and committed."""
        return self.files_written >= self.batch.files


@dataclass(frozen=True)
class GroupProgress:
    """All committed offsets of a group."""

    committed: Mapping[TopicPartition, CommittedOffset]

    @classmethod
    def read(cls, connections: Connections, group_id: str, deadline: Deadline) -> "GroupProgress":
        """Read the group's offsets, including the published positions of a staged query."""
        return cls(all_group_offsets(connections, group_id, deadline, positions=True))

    @cached_property
    def known(self) -> KnownPartitions:
        """The facts in the offsets' metadata, without positions, which are for monitoring only."""
        return KnownPartitions.of(
            {p: offset for p, offset in self.committed.items() if not is_position(offset.metadata)}
        )

    @cached_property
    def mirrored(self) -> tuple[MirroredPartition, ...]:
        """The source partitions that the offsets stand for; empty unless the query mirrors."""
        pairs = (
            MirroredPartition(source, self.committed[partition].offset, partition)
            for partition, source in self.known.sources.items()
        )
        return tuple(sorted(pairs, key=lambda pair: pair.source.topic_partition))

    @cached_property
    def staged(self) -> StagedStatus | None:
        """The last staged batch; None if no staged commit names one."""
        if not self._staged_commits:
            return None
        (topic, _), batch = max(
            self._staged_commits.items(), key=lambda item: (item[1].batch, item[0])
        )
        if batch.directory is None:
            # Without rows, no transaction moves the offsets of the batch's files.
            return StagedStatus(topic, batch, batch.files)
        end = first_position(batch.batch + 1)
        written = sum(
            name == topic and COMMIT_PARTITION < partition <= batch.files and offset.offset >= end
            for (name, partition), offset in self.committed.items()
        )
        return StagedStatus(topic, batch, written)

    @property
    def progress_topics(self) -> set[str]:
        """Topics whose offsets are not positions in their logs."""
        return {topic for topic, _ in self._staged_commits} | {
            pair.progress.topic for pair in self.mirrored
        }

    @property
    def foreign(self) -> tuple[TopicPartition, ...]:
        """Partitions whose offsets have metadata of another client."""
        others = self.known.set_by_others
        return tuple(sorted(p for p in others if has_text(self.committed[p])))

    @property
    def _staged_commits(self) -> dict[TopicPartition, StagedBatch]:
        return {
            p: staged for p, staged in self.known.staged.items() if p.partition == COMMIT_PARTITION
        }


def mirrored_progress(
    connections: Connections, group_id: str, deadline: Deadline
) -> tuple[MirroredPartition, ...]:
    """Return a mirrored query's progress; raise `ConfigurationError` if the group has none."""
    pairs = GroupProgress.read(connections, group_id, deadline).mirrored
    if not pairs:
        raise no_progress(group_id)
    return pairs


def check_source_cluster(pairs: Iterable[MirroredPartition], found: str) -> None:
    """Refuse a source cluster other than the one whose offsets are the query's progress."""
    for pair in pairs:
        if pair.source.cluster != found:
            raise ConfigurationError(
                f"{pair.progress} holds the progress in {pair.source.topic_partition} of cluster "
                f"{pair.source.cluster!r}, but source_kafka (--source-bootstrap-servers) points to "
                f"cluster {found!r}: give addresses of the cluster that the query reads"
            )


def no_progress(group_id: str, more: str = "") -> ConfigurationError:
    """Return the error for a group without an offset of a mirrored query."""
    return ConfigurationError(
        f"group {group_id!r} has no offset of a mirrored query: check --group-id, and that "
        f"--bootstrap-servers points to the target cluster{more}"
    )
