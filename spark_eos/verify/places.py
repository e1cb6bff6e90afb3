"""Positions in Kafka, and the one integer by which the verifier keeps each."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from spark_eos.errors import ConfigurationError

SHIFT: Final = 48
"""An integer holds the place's number above so many bits, and the offset in them."""
OFFSETS: Final = (1 << SHIFT) - 1
_MOST: Final = 1 << 15  # SQLite's integers have 63 bits and a sign


@dataclass(frozen=True, order=True)
class Position:
    """A record's topic, partition and offset."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Places:
    """The partitions of all topics in question, numbered.

    Args:
        inputs: Numbers of partitions, by input topic.
        outputs: Numbers of partitions, by output topic.

    Raises:
        ConfigurationError: There are more than 32,768.
    """

    def __init__(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        self._partitions = [*_partitions(inputs), *_partitions(outputs)]
        if len(self._partitions) > _MOST:
            raise ConfigurationError(f"more than {_MOST:,} partitions can't be verified at once")
        self.numbers: Mapping[tuple[str, int], int] = {
            partition: number for number, partition in enumerate(self._partitions)
        }
        first_output = sum(inputs.values())
        self.inputs = range(first_output)
        self.outputs = range(first_output, len(self._partitions))

    def partition(self, place: int) -> tuple[str, int]:
        """Topic and partition of a place."""
        return self._partitions[place]

    def name(self, place: int) -> str:
        """``topic:partition``."""
        topic, partition = self._partitions[place]
        return f"{topic}:{partition}"

    def position(self, number: int) -> Position:
        """The position that an integer stands for."""
        return Position(*self._partitions[number >> SHIFT], number & OFFSETS)


def _partitions(topics: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((topic, index) for topic, count in topics.items() for index in range(count))


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Sorted partition numbers by topic."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found
