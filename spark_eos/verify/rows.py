"""What a comparison reads: rows of topics here, those of Parquet files in `parquet_rows`."""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from kafka import TopicPartition

from spark_eos.errors import escaped
from spark_eos.verify.partitions import OFFSETS, Partitions, Spans, size
from spark_eos.verify.records import Reader


class Row(NamedTuple):
    """A row or record; its number is one of its file, or its position as an integer."""

    number: int
    topic: str | None
    key: bytes | None
    value: bytes | None


class TopicRows:
    """The records of spans of partitions, which can be read again; ``total`` counts offsets."""

    has_key = True
    has_topic = False

    def __init__(self, reader: Reader, partitions: Partitions, spans: Spans) -> None:
        self._reader = reader
        self._partitions = partitions
        self._spans = spans
        self.total = size(spans)

    def read(self, advance: Callable[[int], None]) -> Iterator[list[Row]]:
        """Yields all records in batches."""
        return self._read(self._spans, advance)

    def pick(self, numbers: Collection[int]) -> Iterator[Row]:
        """Yields some records; reads from the first to the last of each partition."""
        wanted = frozenset(numbers)
        spans: dict[TopicPartition, tuple[int, int]] = {}
        for number in sorted(wanted):
            partition, offset = self._partitions.partition(number), number & OFFSETS
            spans[partition] = (spans.get(partition, (offset, 0))[0], offset + 1)
        if spans:
            for batch in self._read(spans, lambda _count: None):
                yield from (row for row in batch if row.number in wanted)

    def name(self, number: int) -> str:
        """``topic:partition:offset``, for people."""
        return str(self._partitions.position(number))

    def _read(self, spans: Spans, advance: Callable[[int], None]) -> Iterator[list[Row]]:
        for batch in self._reader.read(spans, advance):
            yield [
                Row(at, message.topic(), _bytes(message.key()), _bytes(message.value()))
                for at, message in batch
            ]


def _bytes(found: str | bytes | None) -> bytes | None:
    return found.encode() if isinstance(found, str) else found


def shown(data: bytes | None, most: int = 60) -> str | None:
    """Bytes as text that is safe to print, cut to a number of characters."""
    if data is None:
        return None
    # No character has more than four bytes.
    text = escaped(data[: 4 * most + 4].decode("utf-8", "backslashreplace"), keep="")
    return text if len(text) <= most else f"{text[:most]}..."
