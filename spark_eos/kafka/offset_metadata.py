"""What is kept in the metadata of the group's committed offsets; pure.

Kafka stores a text of the client's own with each offset it commits. A KIP-848 group drops an
offset by that offset's age alone, so a partition whose offset has expired looks like one that was
added just now. Hence every offset tells which partitions the group has known, and which of its
records may not be written. ``kafka-consumer-groups.sh --reset-offsets`` empties the text: an
offset that an operator has set counts as it is.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

from spark_eos.kafka.cluster import NO_ID

_FORMAT: Final = "spark-eos"
# Of a topic's id, which is random: enough to tell a group's topics apart.
_ID_DIGITS: Final = 8
# offset.metadata.max.bytes is 4096 unless set: room for so many topics, and so long a list.
_MOST_TOPICS: Final = 200
_LONGEST_LIST: Final = 1_500


class CommittedOffset(NamedTuple):
    """A committed offset with its metadata, as the broker holds it."""

    offset: int
    metadata: str


class Doubt(NamedTuple):
    """Source offsets below the committed one that may not be written: first, and after the last."""

    first: int
    after: int


@dataclass(frozen=True)
class _Metadata:
    partitions: frozenset[int]
    topics: frozenset[str]
    doubt: Doubt | None


def _parse(text: str) -> _Metadata | None:
    """The metadata; None for an offset that somebody else has committed."""
    try:
        fields: dict[str, Any] = json.loads(text)
        if fields.pop(_FORMAT) != 1:
            return None
        doubt = fields.get("doubt")
        return _Metadata(
            frozenset(_numbers(fields["partitions"])),
            frozenset(fields["topics"].split()),
            None if doubt is None else Doubt(*map(int, doubt)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _ranges(numbers: Iterable[int]) -> str:
    """``{0, 1, 2, 5}`` as ``0-2,5``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in run] for _, run in runs]
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)
    # Rather too many: what is wrongly taken for known is refused, never lost.
    return text if len(text) <= _LONGEST_LIST else f"{found[0][0]}-{found[-1][-1]}"


def _numbers(ranges: str) -> Iterable[int]:
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _short(topic_id: uuid.UUID | None) -> str:
    return "" if topic_id in (None, NO_ID) else topic_id.hex[:_ID_DIGITS]


@dataclass(frozen=True)
class KnownPartitions:
    """The source partitions that a group has ever had an offset for.

    Attributes:
        partitions: (topic, partition) pairs.
        topics: Short ids of their topics, the latest first; a topic that is deleted and created
            anew has another.
        doubts: Offsets that may not be written, by (topic, partition).

    Example:
        >>> known = KnownPartitions().including([("orders", 0), ("orders", 1)], {})
        >>> known.metadata("orders")
        '{"spark-eos":1,"partitions":"0-1","topics":""}'
        >>> found = {("orders", 0): CommittedOffset(5, known.metadata("orders"))}
        >>> KnownPartitions.of(found).knows("orders", 1, None)
        True
    """

    partitions: frozenset[tuple[str, int]] = frozenset()
    topics: tuple[str, ...] = ()
    doubts: Mapping[tuple[str, int], Doubt] = field(default_factory=dict)

    @classmethod
    def of(cls, committed: Mapping[tuple[str, int], CommittedOffset]) -> "KnownPartitions":
        """What the metadata of a group's offsets tells; offsets of somebody else tell nothing."""
        partitions: set[tuple[str, int]] = set()
        topics: set[str] = set()
        doubts: dict[tuple[str, int], Doubt] = {}
        # The same text stands at most partitions of a topic.
        parsed: dict[str, _Metadata | None] = {}
        for (topic, index), (_, text) in committed.items():
            if text not in parsed:
                parsed[text] = _parse(text)
            found = parsed[text]
            if found is None:
                continue
            partitions |= {(topic, index), *((topic, other) for other in found.partitions)}
            topics |= found.topics
            if found.doubt is not None:
                doubts[topic, index] = found.doubt
        return cls(frozenset(partitions), tuple(sorted(topics)), doubts)

    def including(
        self,
        partitions: Iterable[tuple[str, int]],
        topic_ids: Mapping[str, uuid.UUID | None],
    ) -> "KnownPartitions":
        """The same, and further partitions with the ids of their topics."""
        more = frozenset(partitions)
        ids = sorted({_short(topic_ids.get(topic)) for topic, _ in more} - {""})
        others = (topic for topic in self.topics if topic not in ids)
        return KnownPartitions(self.partitions | more, (*ids, *others), self.doubts)

    def knows(self, topic: str, partition: int, topic_id: uuid.UUID | None) -> bool:
        """Whether the group has had an offset for a partition, of which there is none now."""
        if (topic, partition) in self.partitions:
            return True
        # Of a topic without any offset only the topic itself is told, by the other topics.
        alone = not any(known == topic for known, _ in self.partitions)
        return alone and _short(topic_id) in self.topics

    def metadata(self, topic: str, doubt: Doubt | None = None) -> str:
        """The metadata to commit with the offset of one of a topic's partitions."""
        fields: dict[str, Any] = {
            _FORMAT: 1,
            "partitions": _ranges(index for known, index in self.partitions if known == topic),
            "topics": " ".join(self.topics[:_MOST_TOPICS]),
        }
        if doubt is not None:
            fields["doubt"] = doubt
        return json.dumps(fields, separators=(",", ":"))
