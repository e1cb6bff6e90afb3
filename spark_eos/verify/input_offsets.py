"""Reads a query's progress in its inputs from its group's offsets."""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka import TopicPartition

from spark_eos.errors import VerificationError
from spark_eos.verify.cluster import NO_ID, Cluster, Identity
from spark_eos.verify.group_offsets import CommittedOffsets, StoredOffsets
from spark_eos.verify.partitions import Partitions, name_of

# The metadata text of an offset in a progress topic names the source partition by the source
# cluster's id, topic, topic id in hexadecimal digits, and partition:
# {"spark-eos": 2, ..., "source": [...]}. In a staged query, the text describes the batch that was
# staged last: "staged": {...}. This module doesn't use the code that writes the text.
_FORMAT: Final = "spark-eos"
# Offsets that a staged query publishes for monitoring don't count as its progress.
_PUBLISHED: Final = '{"spark-eos":2,"position":'
_MOST_CHARS: Final = 4_096
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_MOST_PARTITIONS: Final = 1 << 31


@dataclass(frozen=True)
class InputOffsets:
    """Each partition's next offset, if committed, and names of partitions that stayed unstable."""

    committed: Mapping[TopicPartition, int]
    unstable: tuple[str, ...] = ()


def check_not_staged(group: CommittedOffsets) -> None:
    """Raise VerificationError for the group of a staged query, which has no input offsets."""
    offsets, _ = group.read(stable=False)
    if any(
        text.startswith(_PUBLISHED) or isinstance(_fields(text).get("staged"), dict)
        for _, text in offsets.values()
    ):
        raise VerificationError(
            f"group {group.group_id!r} belongs to a staged query, whose offsets do not show its "
            "progress in the inputs. Compare its output with rows that you compute (--expect). "
            "Leave out --group-id only if each input has an output of its own: all input then "
            "counts as processed"
        )


class DirectDelivery:
    """Reads progress from the group's offsets in the inputs themselves."""

    def __init__(self, group: CommittedOffsets, inputs: Partitions) -> None:
        self._group = group
        self._inputs = inputs

    def read(self, *, stable: bool) -> InputOffsets:
        """Read offsets like `CommittedOffsets.read`; if ``stable``, require at least one."""
        offsets, unstable = self._group.read(self._inputs, stable=stable)
        committed = {partition: stored.offset for partition, stored in _progress(offsets).items()}
        if stable and not committed:
            raise VerificationError(
                f"group {self._group.group_id!r} has no committed offset in any input topic: there "
                "is nothing to judge; check --group-id and --input"
            )
        return InputOffsets(
            committed,
            tuple(name_of(partition) for partition in self._inputs if partition in unstable),
        )


class MirroredDelivery:
    """Reads progress from the group's offsets in a progress topic, one per source partition."""

    def __init__(
        self, group: CommittedOffsets, inputs: Partitions, target: Cluster, source: Cluster
    ) -> None:
        self._group = group
        self._inputs = inputs
        self._topics = sorted({topic for topic, _ in inputs})
        self._target = target
        self._source = source

    def read(self, *, stable: bool) -> InputOffsets:
        """Read offsets like `CommittedOffsets.read`; if ``stable``, require at least one."""
        offsets, _ = self._group.read(stable=False)
        stored = _progress(offsets)
        unstable: set[TopicPartition] = set()
        if stable:
            more, unstable = self._group.read(self._awaited(stored), stable=True)
            stored |= _progress(more)
        committed = self._committed(stored)
        if stable and not committed:
            raise VerificationError(
                f"group {self._group.group_id!r} has no committed offset that stands for a "
                "partition of an input topic: there is nothing to judge; check --group-id, --input "
                "and whether you may describe the query's progress topic"
            )
        return InputOffsets(committed, tuple(map(name_of, sorted(unstable))))

    def _awaited(self, stored: StoredOffsets) -> set[TopicPartition]:
        """Return the partitions in which a pending offset, even a first one, may be an input's."""
        sources = {
            partition: source
            for partition, source in _sources(stored).items()
            if source is not None
        }
        # A group in its first transaction has no progress yet, and may commit it in any topic.
        topics = sorted({topic for topic, _ in sources})
        counts = self._target.partition_counts(topics or None)
        # A progress partition never changes its source partition.
        others = {
            partition for partition, source in sources.items() if source.topic not in self._topics
        }
        # The broker reports a pending first offset only for partitions named in the request.
        return {*Partitions(counts)} - others

    def _committed(self, stored: StoredOffsets) -> dict[TopicPartition, int]:
        sources = _sources(stored)
        progress = {topic for (topic, _), source in sources.items() if source is not None}
        read = self._source.identity(self._topics)
        holders: dict[TopicPartition, TopicPartition] = {}
        for partition, source in sorted(sources.items()):
            if source is None:
                if partition.topic in progress:
                    raise self._without_source(partition)
                continue
            self._check(partition, source, read)
            at = TopicPartition(source.topic, source.partition)
            if at in holders:
                raise VerificationError(
                    f"{name_of(holders[at])} and {name_of(partition)} both hold the progress of "
                    f"group {self._group.group_id!r} in {name_of(at)}: it is not known which of "
                    "them counts"
                )
            holders[at] = partition
        return {
            at: stored[partition].offset for at, partition in holders.items() if at in self._inputs
        }

    def _without_source(self, partition: TopicPartition) -> VerificationError:
        return VerificationError(
            f"the offset of group {self._group.group_id!r} in {name_of(partition)} does not tell "
            "which source partition it stands for: another tool has set it. To repair it, run the "
            "query once with its checkpoint"
        )

    def _check(self, partition: TopicPartition, source: "Source", read: Identity) -> None:
        what = (
            f"{name_of(partition)} holds the progress of group {self._group.group_id!r} in "
            f"{source.topic}:{source.partition} of"
        )
        if source.cluster != read.cluster:
            raise VerificationError(
                f"{what} cluster {source.cluster!r}, but --source-bootstrap-servers points to "
                f"cluster {read.cluster!r}: give addresses of the cluster that the query reads from"
            )
        topic_id = read.topics.get(source.topic, NO_ID)
        if NO_ID not in (source.topic_id, topic_id) and source.topic_id != topic_id:
            raise VerificationError(
                f"{what} topic id {source.topic_id}, but the topic at "
                f"--source-bootstrap-servers has topic id {topic_id}: it was deleted and "
                "recreated, or it belongs to another cluster"
            )


class Source(NamedTuple):
    """The source partition that an offset stands for."""

    cluster: str
    topic: str
    topic_id: uuid.UUID
    partition: int


def source_of(text: str) -> Source | None:
    """Return the source partition that an offset's text names, or None."""
    fields = _fields(text)
    try:
        version, (cluster, topic, topic_id, partition) = fields[_FORMAT], fields["source"]
        if not (_UUID.fullmatch(topic_id) and isinstance(cluster, str) and isinstance(topic, str)):
            return None
        if (version, type(version), type(partition)) != (2, int, int):
            return None
        if not 0 <= partition < _MOST_PARTITIONS:
            return None
        return Source(cluster, topic, uuid.UUID(topic_id), partition)
    except (ValueError, KeyError, TypeError):
        return None


def _fields(text: str) -> dict[str, Any]:
    """Parse an offset's metadata text; return {} unless spark-eos wrote the text."""
    if len(text) > _MOST_CHARS:
        return {}
    try:
        # confluent-kafka appends a NUL to the metadata text of offsets.
        fields = json.loads(text.rstrip("\0"))
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) and _FORMAT in fields else {}


def _sources(stored: StoredOffsets) -> dict[TopicPartition, Source | None]:
    return {partition: source_of(text) for partition, (_, text) in stored.items()}


def _progress(offsets: StoredOffsets) -> StoredOffsets:
    return {
        partition: stored
        for partition, stored in offsets.items()
        if not stored.text.startswith(_PUBLISHED)
    }
