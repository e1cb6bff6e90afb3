"""The metadata stored with the group's committed offsets; no I/O.

Kafka stores a client-defined text with each committed offset. A KIP-848 group expires each offset
by its own age, so a partition whose offset has expired looks like a new partition. Therefore every
offset's text lists the partitions of its topic that the group has known, ids of the group's topics,
and the records that may not have been written. Of a query that stages its batches, the offset of
progress partition 0 tells of the last staged one; of a mirrored query, each offset tells which
source partition it stands for. All tell whose offsets they are, since a group may be reused by
mistake; that field came later, and readers without it pass over it, so the format's number is the
same. ``kafka-consumer-groups.sh --reset-offsets`` clears the text: an offset that an operator sets
is taken as it is.
"""

import base64
import json
import re
import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, groupby
from typing import Any, Final, NamedTuple

from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION, TOPIC_NAME
from spark_eos._client.persisted import FORMAT, check_format
from spark_eos._client.strict_json import matched, strict_object, whole
from spark_eos._kafka.cluster import NO_ID
from spark_eos._kafka.copy_names import batch_of_copy
from spark_eos._kafka.offset_owner import Owner
from spark_eos._kafka.topic_partition import TopicPartition

_FORMAT_KEY: Final = "spark-eos"
# Leading digits of the random topic id, enough to tell a group's topics apart.
_ID_DIGITS: Final = 8
# Each topic's id is in the texts of so many topics, or of all if there are fewer: it is forgotten
# only if all their offsets are lost. More would make long texts where there are many topics.
_TOLD_BY: Final = 16
# Limits that keep the text within offset.metadata.max.bytes, 4096 by default.
_MAX_TOPICS: Final = 200
_MAX_LIST: Final = 1_500
_MAX_BITS: Final = _MAX_LIST // 4 * 3  # bytes before they are text
# What a text may tell: a topic has fewer partitions by far.
_MAX_PARTITIONS: Final = 100_000
_RANGES: Final = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*|")
_BITS: Final = re.compile(r"[0-9A-Za-z+/]*={0,2}")
_TOPICS: Final = re.compile(r"[0-9a-z ]*")
_CLUSTER: Final = re.compile(r"[ -~]{0,255}")
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_QUERY: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")


_POSITION_BEGINS: Final = f'{{"{_FORMAT_KEY}":{FORMAT},"position":'


def position_metadata(progress_topic: str) -> str:
    """The text of a staged query's position in a source, which is for monitoring only.

    Nothing that decides reads such an offset: the query's progress is the staged commit.
    """
    return _json(
        {_FORMAT_KEY: FORMAT, "position": "for monitoring only", "progress": progress_topic}
    )


def is_position(text: str) -> bool:
    """Whether an offset's text says that it is for monitoring only.

    Example:
        >>> is_position(position_metadata("spark-eos-progress")), is_position("")
        (True, False)
    """
    return text.startswith(_POSITION_BEGINS)


class CommittedOffset(NamedTuple):
    """A committed offset and its metadata, as the broker stores them.

    Attributes:
        offset: Next offset to read.
    """

    offset: int
    metadata: str


def has_text(committed: CommittedOffset) -> bool:
    """Whether a client has stored a text; confluent-kafka stores an empty one as a zero byte."""
    return bool(committed.metadata.strip("\0"))


class SuspectRange(NamedTuple):
    """A range of source offsets below the committed one that may not have been written.

    Attributes:
        after: Offset after the last one of the range.
    """

    first: int
    after: int


class StagedBatch(NamedTuple):
    """The last staged batch of a query, as the offset of progress partition 0 tells.

    The file of progress partition ``n`` is written when the group's offset there has reached
    ``(batch + 1) << 32``; before, the offset is ``batch << 32 | row``, the next row to write.

    Attributes:
        query: Spark's id of the query.
        batch: Number of the batch.
        directory: Holds the batch's files; None for a batch without rows.
        rows: Number of rows in all files.
        files: The most files it may have, for the progress partitions from 1 on.
        fingerprint: 16 hexadecimal digits that tell one range of source offsets from another.

    Example:
        >>> batch = StagedBatch("5f1c", 7, "7-ab12cd34", 1_000, 32, "00d1e4a77b3c9f52")
        >>> partition = TopicPartition("spark-eos-progress", 0)
        >>> text = KnownPartitions(staged={partition: batch}).texts([partition])[partition]
        >>> KnownPartitions.of({partition: CommittedOffset(7, text)}).staged[partition] == batch
        True
    """

    query: str
    batch: int
    directory: str | None
    rows: int
    files: int
    fingerprint: str


class SourcePartition(NamedTuple):
    """The source partition, in another cluster, that a progress partition stands for.

    Attributes:
        cluster: Id of the source cluster.
        topic: Name of the topic.
        topic_id: Id of the topic; `NO_ID` of a cluster that has none (KIP-516).
        partition: Number of the partition.

    Example:
        >>> source = SourcePartition("9dZ-cluster", "orders", uuid.UUID(int=7), 3)
        >>> partition = TopicPartition("spark-eos-progress", 0)
        >>> text = KnownPartitions(sources={partition: source}).texts([partition])[partition]
        >>> KnownPartitions.of({partition: CommittedOffset(120, text)}).sources[partition] == source
        True
    """

    cluster: str
    topic: str
    topic_id: uuid.UUID
    partition: int

    @classmethod
    def parse(cls, fields: Any) -> "SourcePartition":
        """Reads what `as_json` has made."""
        cluster, topic, topic_id, partition = fields
        return cls(
            matched(cluster, _CLUSTER),
            matched(topic, TOPIC_NAME),
            uuid.UUID(matched(topic_id, _UUID)),
            whole(partition, MAX_PARTITION),
        )

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and number, as its own cluster knows it."""
        return TopicPartition(self.topic, self.partition)

    def as_json(self) -> list[str | int]:
        """The partition as a value of JSON."""
        return [self.cluster, self.topic, self.topic_id.hex, self.partition]


@dataclass(frozen=True)
class _Metadata:
    partitions: frozenset[int]
    topics: frozenset[str]
    suspect: SuspectRange | None
    staged: StagedBatch | None
    source: SourcePartition | None
    owner: Owner | None


def _parse(partition: TopicPartition, committed: CommittedOffset) -> _Metadata | None:
    """Parses the text; None if it is another client's: nothing that we would write."""
    offset, text = committed
    try:
        fields = strict_object(text)
        found = fields[_FORMAT_KEY]
    except (ValueError, KeyError):
        return None
    cure = (
        "; or, if no other version has used the group, another client has written the text of its "
        f"offset, {offset}: set it anew while the query is stopped (kafka-consumer-groups.sh "
        f"--reset-offsets --topic {partition.topic}:{partition.partition} --to-offset {offset}), "
        "which clears the text"
    )
    check_format(found, f"the offset of {partition} in the group", otherwise=cure)
    try:
        suspect, staged, source, owner = map(fields.get, ("suspect", "staged", "source", "owner"))
        return _Metadata(
            frozenset(_indexes(fields)),
            frozenset(matched(fields["topics"], _TOPICS).split()),
            None if suspect is None else _suspect(*suspect),
            None if staged is None else _staged(staged),
            None if source is None else SourcePartition.parse(source),
            None if owner is None else Owner.parse(owner),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _suspect(first: object, after: object) -> SuspectRange:
    return SuspectRange(whole(first, MAX_OFFSET), whole(after, MAX_OFFSET))


def _staged(fields: dict[str, Any]) -> StagedBatch:
    batch, directory = whole(fields["batch"], MAX_PARTITION), fields["directory"]
    if directory is not None and (
        not isinstance(directory, str) or batch_of_copy(directory) != batch
    ):
        raise ValueError("not the name of a copy of the batch")
    return StagedBatch(
        query=matched(fields["query"], _QUERY),
        batch=batch,
        directory=directory,
        rows=whole(fields["rows"], MAX_OFFSET),
        files=whole(fields["files"], MAX_PARTITION),
        fingerprint=matched(fields["fingerprint"], _FINGERPRINT),
    )


def ranges_of(numbers: Iterable[int]) -> str:
    """Formats numbers as ranges: ``{0, 1, 2, 5}`` as ``0-2,5``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)


def numbers_in(ranges: str) -> Iterable[int]:
    """Yields the numbers of ranges as `ranges_of` formats them."""
    after = 0
    for part in filter(None, matched(ranges, _RANGES).split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not after <= begin <= end < _MAX_PARTITIONS:
            raise ValueError("not ranges of partitions")
        yield from range(begin, end + 1)
        after = end + 1


def _index_fields(numbers: Collection[int]) -> dict[str, str]:
    """Formats partitions' numbers for a text, in which many ranges would have no room.

    ``among`` then has a bit for each number in ``partitions``: whether the partition is known.
    """
    ranges = ranges_of(numbers)
    if len(ranges) <= _MAX_LIST:
        return {"partitions": ranges}
    first, last = min(numbers), max(numbers)
    fields = {"partitions": f"{first}-{last}"}
    size = (last - first) // 8 + 1
    # Better too many: a partition wrongly listed as known is refused, never lost.
    if size <= _MAX_BITS:
        bits = sum(1 << number - first for number in numbers)
        fields["among"] = base64.b64encode(bits.to_bytes(size, "big")).decode()
    return fields


def _indexes(fields: Mapping[str, Any]) -> Iterable[int]:
    numbers = numbers_in(fields["partitions"])
    if "among" not in fields:
        return numbers
    bits = int.from_bytes(base64.b64decode(matched(fields["among"], _BITS)), "big")
    return compress(numbers, map(int, reversed(f"{bits:b}")))


def _short(topic_id: uuid.UUID | None) -> str:
    return "" if topic_id in (None, NO_ID) else topic_id.hex[:_ID_DIGITS]


@dataclass(frozen=True)
class KnownPartitions:
    """The source partitions that a group has ever had an offset for.

    Attributes:
        topics: Short ids of their topics, the latest first; a recreated topic gets a new id.
        sources: The source partitions of a mirrored query, by the progress partition that stands
            for each.
        set_by_others: Partitions whose offsets another client has committed, such as an operator's
            tool: these tell of no other partition.
        owners: Whose offsets a topic has, as far as their texts tell.
        owner: Whose offsets they will be.
        current: Names of the topics whose offsets are to tell of all topics, sorted.

    Example:
        >>> first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
        >>> known = KnownPartitions().including([first, second], {})
        >>> known.metadata("orders")
        '{"spark-eos":2,"partitions":"0-1","topics":""}'
        >>> found = {first: CommittedOffset(5, known.metadata("orders"))}
        >>> KnownPartitions.of(found).knows(second, None)
        True
    """

    partitions: frozenset[TopicPartition] = frozenset()
    topics: tuple[str, ...] = ()
    suspects: Mapping[TopicPartition, SuspectRange] = field(default_factory=dict)
    staged: Mapping[TopicPartition, StagedBatch] = field(default_factory=dict)
    sources: Mapping[TopicPartition, SourcePartition] = field(default_factory=dict)
    set_by_others: frozenset[TopicPartition] = frozenset()
    owners: Mapping[str, frozenset[Owner]] = field(default_factory=dict)
    owner: Owner | None = None
    current: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, committed: Mapping[TopicPartition, CommittedOffset]) -> "KnownPartitions":
        """Reads the metadata of a group's offsets."""
        indexes: dict[str, set[int]] = {}
        topics: set[str] = set()
        suspects: dict[TopicPartition, SuspectRange] = {}
        staged: dict[TopicPartition, StagedBatch] = {}
        sources: dict[TopicPartition, SourcePartition] = {}
        others: set[TopicPartition] = set()
        owners: dict[str, set[Owner]] = {}
        # Most partitions of a topic have the same text.
        parsed: dict[str, _Metadata | None] = {}
        for partition, one in committed.items():
            if one.metadata not in parsed:
                parsed[one.metadata] = _parse(partition, one)
            found = parsed[one.metadata]
            if found is None:
                others.add(partition)
                continue
            # Numbers, since each of a topic's many texts lists all of its partitions.
            own = indexes.setdefault(partition.topic, set())
            own.update({partition.partition}, found.partitions)
            topics |= found.topics
            if found.suspect is not None:
                suspects[partition] = found.suspect
            if found.staged is not None:
                staged[partition] = found.staged
            if found.source is not None:
                sources[partition] = found.source
            if found.owner is not None:
                owners.setdefault(partition.topic, set()).add(found.owner)
        return cls(
            frozenset(TopicPartition(t, p) for t, numbers in indexes.items() for p in numbers),
            tuple(sorted(topics)),
            suspects,
            staged,
            sources,
            frozenset(others),
            {topic: frozenset(found) for topic, found in owners.items()},
        )

    def including(
        self,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[str, uuid.UUID | None],
    ) -> "KnownPartitions":
        """Returns a copy with further partitions, whose offsets will tell of it all."""
        more = frozenset(partitions)
        names = tuple(sorted({topic for topic, _ in more}))
        ids = sorted({_short(topic_ids.get(topic)) for topic in names} - {""})
        others = sorted(set(self.topics) - set(ids))
        return replace(
            self, partitions=self.partitions | more, topics=(*ids, *others), current=names
        )

    def tells_nothing_of(self, topic: str) -> bool:
        """Whether a topic has offsets of which none tells what partitions the group has had."""
        return any(name == topic for name, _ in self.set_by_others) and not any(
            name == topic for name, _ in self.partitions
        )

    def knows(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Whether the group had an offset for a partition that has none now."""
        if partition in self.partitions:
            return True
        # If a topic has no offset left, the texts of other topics list the topic's id only.
        alone = not any(known == partition.topic for known, _ in self.partitions)
        return alone and _short(topic_id) in self.topics

    def texts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Formats the metadata to commit with each of some partitions' offsets."""
        # One string object per topic, which pickle then writes only once.
        shared: dict[str, str] = {}
        found = {}
        for partition in partitions:
            topic = partition.topic
            if topic not in shared:
                shared[topic] = self.metadata(topic)
            staged, source = self.staged.get(partition), self.sources.get(partition)
            own = {
                "suspect": self.suspects.get(partition),
                "staged": None if staged is None else staged._asdict(),
                "source": None if source is None else source.as_json(),
            }
            given = {name: value for name, value in own.items() if value is not None}
            found[partition] = shared[topic]
            if given:
                found[partition] = f"{shared[topic][:-1]},{_json(given)[1:]}"
        return found

    def metadata(self, topic: str) -> str:
        """Formats what the metadata of all of a topic's partitions have in common."""
        fields: dict[str, Any] = {
            _FORMAT_KEY: FORMAT,
            **_index_fields(self._indexes.get(topic, ())),
            "topics": " ".join(self._told_by(topic)),
        }
        if self.owner is not None:
            fields["owner"] = self.owner.as_json()
        return _json(fields)

    @cached_property
    def _indexes(self) -> dict[str, list[int]]:
        """The numbers of the known partitions, by topic."""
        found: dict[str, list[int]] = {}
        for topic, index in self.partitions:
            found.setdefault(topic, []).append(index)
        return found

    def _told_by(self, topic: str) -> tuple[str, ...]:
        """The ids that the texts of a topic tell: all, or a part that is another for each topic."""
        ids, names = self.topics, self.current or (topic,)
        width = max(_TOLD_BY, -(-_TOLD_BY * len(ids) // len(names)))
        # Evenly spread, so that the texts of all topics tell of each id equally often.
        first = bisect_left(names, topic) * len(ids) // len(names)
        around = (*ids[first:], *ids[:first])
        return around[: min(width, _MAX_TOPICS)]


def mirrored_positions(
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """A mirrored group's offsets, by the source partitions that they stand for."""
    sources = KnownPartitions.of(committed).sources
    return {source.topic_partition: committed[p].offset for p, source in sources.items()}


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
