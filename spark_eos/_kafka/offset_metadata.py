"""The metadata stored with the group's committed offsets; no I/O."""

# Kafka stores a client-defined text with each committed offset. In a KIP-848 group, each offset
# expires separately, so a partition whose offset has expired looks like a new partition. Therefore
# every offset's text lists the partitions of its topic that the group has known, ids of the group's
# topics, and records that may not have been written. In a query that stages its batches, the text
# in progress partition 0 describes the last staged batch. In a mirrored query, each text names the
# source partition that its offset stands for. Every text also names the owner of the offsets,
# because a group may be reused by mistake. The owner was added later, but older readers skip it, so
# the format's number has not changed. `kafka-consumer-groups.sh --reset-offsets` clears the text:
# an offset that an operator sets is used as it is.

import uuid
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from spark_eos._kafka.cluster import NO_ID
from spark_eos._kafka.stored_text import (
    FORMAT_KEY,
    SHORT_IDS,
    Owner,
    SourcePartition,
    StagedBatch,
    SuspectRange,
    check_text_format,
    compact,
    encode,
    index_fields,
    indexes_in,
    matched,
    strict_object,
)
from spark_eos._kafka.topic_partition import TopicPartition

# This many leading digits of a random topic id are enough to distinguish a group's topics.
_ID_DIGITS: Final = 8
# Each topic's id is in the texts of this many topics, or of all topics if there are fewer. A group
# forgets the id only if it loses the offsets of all these topics. A higher number would make texts
# too long in a group with many topics.
_LISTED_BY: Final = 16
# Maximum number of ids that keep a text within offset.metadata.max.bytes, 4096 by default.
_MAX_TOPICS: Final = 200
_POSITION_BEGINS: Final = f'{encode({"position": None})[:-1]},"position":'


def position_metadata(progress_topic: str) -> str:
    """Return the text for a staged query's position in a source, which only monitoring reads."""
    return encode({"position": "for monitoring only", "progress": progress_topic})


def is_position(text: str) -> bool:
    """Return True if an offset's text says that it is for monitoring only."""
    return text.startswith(_POSITION_BEGINS)


class CommittedOffset(NamedTuple):
    """A committed offset (the next offset to read) and its metadata, as the broker stores them."""

    offset: int
    metadata: str


Committed = dict[TopicPartition, CommittedOffset]
"""The committed offset of each partition."""


def has_text(committed: CommittedOffset) -> bool:
    """Return True if a client has stored a text; confluent-kafka stores "" as a zero byte."""
    return bool(committed.metadata.strip("\0"))


@dataclass(frozen=True)
class _Metadata:
    partitions: frozenset[int]
    topics: frozenset[str]
    suspect: SuspectRange | None
    staged: StagedBatch | None
    source: SourcePartition | None
    owner: Owner | None


def _parse(partition: TopicPartition, committed: CommittedOffset) -> _Metadata | None:
    """Parse the text; return None if another client, not spark-eos, must have written it."""
    offset, text = committed
    try:
        fields = strict_object(text)
    except ValueError:
        return None
    if FORMAT_KEY not in fields:
        return None
    cure = (
        "; or, if no other version has used the group, another client has written the text of its "
        f"offset, {offset}: set the same offset again while the query is stopped "
        "(kafka-consumer-groups.sh --reset-offsets), which clears the text"
    )
    check_text_format(fields, f"the offset of {partition} in the group", otherwise=cure)
    try:
        suspect, staged, source, owner = map(fields.get, ("suspect", "staged", "source", "owner"))
        return _Metadata(
            indexes_in(fields["partitions"], fields.get("among", "")),
            frozenset(matched(fields["topics"], SHORT_IDS).split()),
            None if suspect is None else SuspectRange.parse(suspect),
            None if staged is None else StagedBatch.parse(staged),
            None if source is None else SourcePartition.parse(source),
            None if owner is None else Owner.parse(owner),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _short(topic_id: uuid.UUID | None) -> str:
    return "" if topic_id in (None, NO_ID) else topic_id.hex[:_ID_DIGITS]


@dataclass(frozen=True)
class KnownPartitions:
    """The source partitions that a group has ever had an offset for."""

    partitions: frozenset[TopicPartition] = frozenset()
    # Short ids of the partitions' topics, the latest first; a recreated topic gets a new id.
    topics: tuple[str, ...] = ()
    suspects: Mapping[TopicPartition, SuspectRange] = field(default_factory=dict)
    staged: Mapping[TopicPartition, StagedBatch] = field(default_factory=dict)
    # A mirrored query's source partitions, by the progress partition that stands for each.
    sources: Mapping[TopicPartition, SourcePartition] = field(default_factory=dict)
    # Partitions whose offset was committed by another client, such as an operator's tool. These
    # offsets have no list of partitions.
    set_by_others: frozenset[TopicPartition] = frozenset()
    # The owners of each topic's offsets, as far as the texts name them.
    owners: Mapping[str, frozenset[Owner]] = field(default_factory=dict)
    # The owner to write into texts.
    owner: Owner | None = None
    # The topics whose texts together list the ids of all topics, sorted.
    current: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, committed: Mapping[TopicPartition, CommittedOffset]) -> "KnownPartitions":
        """Return the known partitions, read from the metadata of a group's offsets."""
        # Most partitions of a topic have the same text.
        parsed: dict[str, _Metadata | None] = {}
        for partition, offset in committed.items():
            if offset.metadata not in parsed:
                parsed[offset.metadata] = _parse(partition, offset)
        texts = {p: text for p, offset in committed.items() if (text := parsed[offset.metadata])}
        lists = {(p.topic, text.partitions) for p, text in texts.items()}
        owners: dict[str, frozenset[Owner]] = {}
        for p, text in texts.items():
            if text.owner is not None:
                owners[p.topic] = owners.get(p.topic, frozenset()) | {text.owner}
        return cls(
            frozenset(TopicPartition(t, n) for t, numbers in lists for n in numbers).union(texts),
            tuple(sorted({topic for text in texts.values() for topic in text.topics})),
            {p: text.suspect for p, text in texts.items() if text.suspect is not None},
            {p: text.staged for p, text in texts.items() if text.staged is not None},
            {p: text.source for p, text in texts.items() if text.source is not None},
            frozenset(committed.keys() - texts.keys()),
            owners,
        )

    def including(
        self,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[str, uuid.UUID | None],
    ) -> "KnownPartitions":
        """Return a copy with further partitions, whose texts will list everything known."""
        more = frozenset(partitions)
        names = tuple(sorted({topic for topic, _ in more}))
        ids = sorted({_short(topic_ids.get(topic)) for topic in names} - {""})
        others = sorted(set(self.topics) - set(ids))
        return replace(
            self, partitions=self.partitions | more, topics=(*ids, *others), current=names
        )

    def tells_nothing_of(self, topic: str) -> bool:
        """Return True if a topic has offsets, but none of their texts lists partitions."""
        return topic in self._topics_set_by_others and topic not in self._indexes

    def knows(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Return True if the group had an offset for a partition that has none now."""
        if partition in self.partitions:
            return True
        # If a topic has no offsets left, only its id is still listed, in other topics' texts.
        return partition.topic not in self._indexes and _short(topic_id) in self._topic_ids

    def texts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Format the metadata to commit with each partition's offset."""
        # Use one string object per topic, so that pickle writes it only once.
        shared: dict[str, str] = {}
        texts = {}
        for partition in partitions:
            topic = partition.topic
            if topic not in shared:
                shared[topic] = self.metadata(topic)
            staged, source = self.staged.get(partition), self.sources.get(partition)
            own = {
                "suspect": self.suspects.get(partition),
                "staged": None if staged is None else staged.as_json(),
                "source": None if source is None else source.as_json(),
            }
            given = {name: value for name, value in own.items() if value is not None}
            texts[partition] = shared[topic]
            if given:
                texts[partition] = f"{shared[topic][:-1]},{compact(given)[1:]}"
        return texts

    def metadata(self, topic: str) -> str:
        """Format the part of the metadata that all of a topic's partitions share."""
        indexes = index_fields(self._indexes.get(topic, ()))
        return encode({**indexes, "topics": " ".join(self._listed_by(topic)), "owner": self.owner})

    @cached_property
    def _indexes(self) -> dict[str, list[int]]:
        indexes: dict[str, list[int]] = {}
        for topic, index in self.partitions:
            indexes.setdefault(topic, []).append(index)
        return indexes

    @cached_property
    def _topic_ids(self) -> frozenset[str]:
        return frozenset(self.topics)

    @cached_property
    def _topics_set_by_others(self) -> set[str]:
        return {topic for topic, _ in self.set_by_others}

    def _listed_by(self, topic: str) -> tuple[str, ...]:
        """Return the ids to list in a topic's texts: all, or a different part for each topic."""
        ids, names = self.topics, self.current or (topic,)
        width = max(_LISTED_BY, -(-_LISTED_BY * len(ids) // len(names)))
        width = min(width, _MAX_TOPICS, len(ids))
        # Spread the parts evenly, so that the texts list each id equally often.
        first = bisect_left(names, topic) * len(ids) // len(names)
        return ids[first : first + width] + ids[: max(0, first + width - len(ids))]


def mirrored_positions(
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """Return a mirrored group's offsets by the source partitions that they stand for."""
    sources = KnownPartitions.of(committed).sources
    return {source.topic_partition: committed[p].offset for p, source in sources.items()}
