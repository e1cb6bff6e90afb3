"""What a comparison reads: rows of Parquet files, and records of topics."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from spark_eos.client.printable import printable
from spark_eos.verify.places import OFFSETS, SHIFT, Places
from spark_eos.verify.reading import Reader


class Row(NamedTuple):
    """A row or record.

    Attributes:
        number: Its number in its source; a record's is its position as an integer of `places`.
        topic: Its topic; None if the source has no topics.
        key: Its key; None if it is null, or if the source has no keys.
        value: Its value; None if it is null.
    """

    number: int
    topic: str | None
    key: bytes | None
    value: bytes | None


class Rows(Protocol):
    """A source of rows, which can be read again."""

    @property
    def has_key(self) -> bool:
        """Whether rows have keys."""

    @property
    def has_topic(self) -> bool:
        """Whether rows say to which topic they belong."""

    @property
    def total(self) -> int:
        """How much there is to read, in units of ``advance``."""

    def read(self, advance: Callable[[int], None]) -> Iterator[list[Row]]:
        """Yields all rows in batches, and calls ``advance`` with how much was read.

        Raises:
            VerificationError: They can't be read.
        """

    def pick(self, numbers: Collection[int]) -> Iterator[Row]:
        """Yields the rows of some numbers, without those that are gone."""

    def name(self, number: int) -> str:
        """Returns where a row is, for people."""


class TopicRows:
    """The records of partitions, as a consumer with the reader's isolation level sees them.

    Args:
        reader: Reads them.
        places: All partitions.
        spans: First offset and end, by place.
    """

    has_key = True
    has_topic = False

    def __init__(
        self, reader: Reader, places: Places, spans: Mapping[int, tuple[int, int]]
    ) -> None:
        self._reader = reader
        self._places = places
        self._spans = spans

    @property
    def total(self) -> int:
        """Number of offsets."""
        return sum(max(0, end - low) for low, end in self._spans.values())

    def read(self, advance: Callable[[int], None]) -> Iterator[list[Row]]:
        """Yields all records in batches."""
        return self._read(self._spans, advance)

    def pick(self, numbers: Collection[int]) -> Iterator[Row]:
        """Yields some records; reads from the first to the last of each partition."""
        wanted = frozenset(numbers)
        spans: dict[int, tuple[int, int]] = {}
        for number in sorted(wanted):
            place, offset = number >> SHIFT, number & OFFSETS
            spans[place] = (spans.get(place, (offset, 0))[0], offset + 1)
        if spans:
            for batch in self._read(spans, lambda _count: None):
                yield from (row for row in batch if row.number in wanted)

    def name(self, number: int) -> str:
        """Returns ``topic:partition:offset``."""
        return str(self._places.position(number))

    def _read(
        self, spans: Mapping[int, tuple[int, int]], advance: Callable[[int], None]
    ) -> Iterator[list[Row]]:
        topics = {place: self._places.partition(place)[0] for place in spans}
        for batch in self._reader.read(spans, advance):
            yield [
                Row(at, topics[at >> SHIFT], _bytes(message.key()), _bytes(message.value()))
                for at, message in batch
            ]


def _bytes(found: str | bytes | None) -> bytes | None:
    return found.encode() if isinstance(found, str) else found


def shown(data: bytes | None, most: int = 60) -> str | None:
    r"""Returns bytes as text that is safe to print, cut to a number of characters.

    Bytes are decoded as UTF-8; invalid bytes and control characters are escaped.

    Example:
        >>> shown(b"a\nb\xff"), shown(b"abcdef", 3), shown(None)
        ('a\\nb\\xff', 'abc...', None)
    """
    if data is None:
        return None
    # No character has more than four bytes.
    text = printable(data[: 4 * most + 4].decode("utf-8", "backslashreplace"))
    return text if len(text) <= most else f"{text[:most]}..."
