"""The metadata stored with the group's committed offsets; no I/O."""

# Kafka stores a client-defined text with each committed offset. A KIP-848 group expires each offset
# by its own age, so a partition whose offset has expired looks like a new partition. Therefore
# every offset's text lists the partitions of its topic that the group has known, ids of the group's
# topics, and the records that may not have been written. Of a query that stages its batches, the
# offset of progress partition 0 tells of the last staged one; of a mirrored query, each offset
# tells which source partition it stands for. All tell whose offsets they are, since a group may be
# reused by mistake; that field came later, and readers without it pass over it, so the format's
# number is the same. `kafka-consumer-groups.sh --reset-offsets` clears the text: an offset that an
# operator sets is taken as it is.

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

# Leading digits of the random topic id, enough to tell a group's topics apart.
_ID_DIGITS: Final = 8
# Each topic's id is in the texts of so many topics, or of all if there are fewer: it is forgotten
# only if all their offsets are lost. More would make long texts where there are many topics.
_TOLD_BY: Final = 16
# So many keep the text within offset.metadata.max.bytes, 4096 by default.
_MAX_TOPICS: Final = 200
_POSITION_BEGINS: Final = f'{encode({"position": None})[:-1]},"position":'


def position_metadata(progress_topic: str) -> str:
    """Return the text of a staged query's position in a source; nothing that decides reads it."""
    return encode({"position": "for monitoring only", "progress": progress_topic})


def is_position(text: str) -> bool:
    """Return True if an offset's text says that it is for monitoring only."""
    return text.startswith(_POSITION_BEGINS)


class CommittedOffset(NamedTuple):
    """A committed offset, the next to read, and its metadata, as the broker stores them."""

    offset: int
    metadata: str


def has_text(committed: CommittedOffset) -> bool:
    """Whether a client has stored a text; confluent-kafka stores an empty one as a zero byte."""
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
    """Parse the text; None if it is another client's: nothing that we would write."""
    offset, text = committed
    try:
        fields = strict_object(text)
    except ValueError:
        return None
    if FORMAT_KEY not in fields:
        return None
    cure = (
        "; or, if no other version has used the group, another client has written the text of its "
        f"offset, {offset}: set it to the same while the query is stopped "
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
    # Short ids of their topics, the latest first; a recreated topic gets a new id.
    topics: tuple[str, ...] = ()
    suspects: Mapping[TopicPartition, SuspectRange] = field(default_factory=dict)
    staged: Mapping[TopicPartition, StagedBatch] = field(default_factory=dict)
    # Of a mirrored query, by the progress partition that stands for each.
    sources: Mapping[TopicPartition, SourcePartition] = field(default_factory=dict)
    # Committed by another client, such as an operator's tool: these tell of no other partition.
    set_by_others: frozenset[TopicPartition] = frozenset()
    # Whose offsets a topic has, as far as their texts tell, and whose they will be.
    owners: Mapping[str, frozenset[Owner]] = field(default_factory=dict)
    owner: Owner | None = None
    # Topics whose offsets are to tell of all topics, sorted.
    current: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, committed: Mapping[TopicPartition, CommittedOffset]) -> "KnownPartitions":
        """Read the metadata of a group's offsets."""
        # Most partitions of a topic have the same text.
        parsed: dict[str, _Metadata | None] = {}
        for partition, offset in committed.items():
            if offset.metadata not in parsed:
                parsed[offset.metadata] = _parse(partition, offset)
        told = {p: text for p, offset in committed.items() if (text := parsed[offset.metadata])}
        lists = {(p.topic, text.partitions) for p, text in told.items()}
        owners: dict[str, frozenset[Owner]] = {}
        for p, text in told.items():
            if text.owner is not None:
                owners[p.topic] = owners.get(p.topic, frozenset()) | {text.owner}
        return cls(
            frozenset(TopicPartition(t, n) for t, numbers in lists for n in numbers).union(told),
            tuple(sorted({topic for text in told.values() for topic in text.topics})),
            {p: text.suspect for p, text in told.items() if text.suspect is not None},
            {p: text.staged for p, text in told.items() if text.staged is not None},
            {p: text.source for p, text in told.items() if text.source is not None},
            frozenset(committed.keys() - told.keys()),
            owners,
        )

    def including(
        self,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[str, uuid.UUID | None],
    ) -> "KnownPartitions":
        """Return a copy with further partitions, whose offsets will tell of it all."""
        more = frozenset(partitions)
        names = tuple(sorted({topic for topic, _ in more}))
        ids = sorted({_short(topic_ids.get(topic)) for topic in names} - {""})
        others = sorted(set(self.topics) - set(ids))
        return replace(
            self, partitions=self.partitions | more, topics=(*ids, *others), current=names
        )

    def tells_nothing_of(self, topic: str) -> bool:
        """Whether a topic has offsets of which none tells what partitions the group has had."""
        return topic in self._topics_set_by_others and topic not in self._indexes

    def knows(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Return True if the group had an offset for a partition that has none now."""
        if partition in self.partitions:
            return True
        # If a topic has no offset left, the texts of other topics list the topic's id only.
        return partition.topic not in self._indexes and _short(topic_id) in self._topic_ids

    def texts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Format the metadata to commit with each of some partitions' offsets."""
        # One string object per topic, which pickle then writes only once.
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
        """Format what the metadata of all of a topic's partitions have in common."""
        indexes = index_fields(self._indexes.get(topic, ()))
        return encode({**indexes, "topics": " ".join(self._told_by(topic)), "owner": self.owner})

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

    def _told_by(self, topic: str) -> tuple[str, ...]:
        """The ids that the texts of a topic tell: all, or a part that is another for each topic."""
        ids, names = self.topics, self.current or (topic,)
        width = min(max(_TOLD_BY, -(-_TOLD_BY * len(ids) // len(names))), _MAX_TOPICS, len(ids))
        # Evenly spread, so that the texts of all topics tell of each id equally often.
        first = bisect_left(names, topic) * len(ids) // len(names)
        return ids[first : first + width] + ids[: max(0, first + width - len(ids))]


def mirrored_positions(
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """Return a mirrored group's offsets, by the source partitions that they stand for."""
    sources = KnownPartitions.of(committed).sources
    return {source.topic_partition: committed[p].offset for p, source in sources.items()}
