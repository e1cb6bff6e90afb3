"""Record positions, and the single integer that the verifier stores for each."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from spark_eos.errors import ConfigurationError

SHIFT: Final = 48
"""Number of low bits that hold the offset; the bits above hold the place's number."""
OFFSETS: Final = (1 << SHIFT) - 1
_MAX_PLACES: Final = 1 << 15  # SQLite's integers have 63 bits and a sign


@dataclass(frozen=True, order=True)
class Position:
    """A record's topic, partition and offset.

    Example:
        >>> str(Position("orders", 0, 17))
        'orders:0:17'
    """

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Places:
    """Numbers all partitions of the topics; a partition's number is its place.

    Inputs and outputs may be in two clusters that have topics of the same names.

    Args:
        inputs: Number of partitions of each input topic.
        outputs: Number of partitions of each output topic.

    Raises:
        ConfigurationError: There are more than 32,768 partitions.
    """

    def __init__(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        self._partitions = [*_partitions(inputs), *_partitions(outputs)]
        if len(self._partitions) > _MAX_PLACES:
            raise ConfigurationError(
                f"more than {_MAX_PLACES:,} partitions can't be verified at once"
            )
        first_output = sum(inputs.values())
        self.inputs = range(first_output)
        self.outputs = range(first_output, len(self._partitions))

    def partition(self, place: int) -> tuple[str, int]:
        """Returns topic and partition of a place."""
        return self._partitions[place]

    def numbers(self, places: Iterable[int]) -> dict[tuple[str, int], int]:
        """Returns places of one cluster by topic and partition.

        Example:
            >>> places = Places({"orders": 1}, {"orders": 2})
            >>> places.numbers(places.inputs), places.numbers(places.outputs)
            ({('orders', 0): 0}, {('orders', 0): 1, ('orders', 1): 2})
        """
        return {self._partitions[place]: place for place in places}

    def name(self, place: int) -> str:
        """Returns ``topic:partition`` of a place."""
        topic, partition = self._partitions[place]
        return f"{topic}:{partition}"

    def position(self, number: int) -> Position:
        """Returns the position that an integer stands for."""
        return Position(*self._partitions[number >> SHIFT], number & OFFSETS)


def _partitions(topics: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    return ((topic, index) for topic, count in topics.items() for index in range(count))


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Returns sorted partition numbers by topic."""
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return found
