"""Numbers partitions, so that SQL can hold the position of a record as one integer."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from kafka import TopicPartition

from spark_eos.errors import ConfigurationError
from spark_eos.verify.findings import Position

SHIFT: Final = 48
"""Number of low bits that hold the offset; the bits above hold the partition's number."""
OFFSETS: Final = (1 << SHIFT) - 1
_MOST: Final = 1 << 15  # SQLite's integers have 63 bits and a sign

Spans = Mapping[TopicPartition, tuple[int, int]]
"""First offset and end, by partition."""


def name_of(partition: TopicPartition) -> str:
    """Return ``topic:partition``."""
    return f"{partition[0]}:{partition[1]}"


def position_in(partition: TopicPartition, offset: int) -> Position:
    """Return the position of an offset in a partition."""
    return Position(partition[0], partition[1], offset)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic."""
    indexes: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        indexes.setdefault(topic, []).append(number)
    return indexes


def size(spans: Spans) -> int:
    """Return the number of offsets in spans."""
    return sum(max(0, end - low) for low, end in spans.values())


class Partitions(Collection[TopicPartition]):
    """All partitions of some topics of one cluster, in the order of their numbers."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self._all = [
            TopicPartition(topic, number)
            for topic, count in topics.items()
            for number in range(count)
        ]
        if len(self._all) > _MOST:
            raise ConfigurationError(f"more than {_MOST:,} partitions can't be verified at once")
        self.bases: Mapping[TopicPartition, int] = {
            partition: number << SHIFT for number, partition in enumerate(self._all)
        }

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._all)

    def __contains__(self, partition: object) -> bool:
        return partition in self.bases

    def base(self, partition: TopicPartition) -> int:
        """Return the integer that stands for a partition's offset 0."""
        return self.bases[partition]

    def partition(self, at: int) -> TopicPartition:
        """Return the partition of the position that an integer stands for."""
        return self._all[at >> SHIFT]

    def position(self, at: int) -> Position:
        """Return the position that an integer stands for."""
        return position_in(self.partition(at), at & OFFSETS)

    def positions(self, *numbers: int | None) -> tuple[Position, ...]:
        """Return the distinct positions that integers stand for, without None."""
        return tuple(self.position(at) for at in dict.fromkeys(numbers) if at is not None)
