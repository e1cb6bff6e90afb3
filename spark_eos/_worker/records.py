"""A task's Arrow batches as source rows and Kafka records; without I/O."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_eos._client.timestamps import NOW, producer_timestamp
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import PrintableError

SOURCE_TOPIC = "source_topic"
SOURCE_PARTITION = "source_partition"
SOURCE_OFFSET = "source_offset"
# A transaction may end between two slices. They are small, so that it ends close to its limits.
_SLICE_ROWS = 1_000
_SLICE_BYTES = 4 << 20


class RowError(PrintableError, ValueError):
    """A row has no source, or an invalid header."""


def column_of(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """A column; None if there is none of that name."""
    index = rows.schema.get_field_index(name)
    return None if index < 0 else rows.column(index)


@dataclass(frozen=True)
class SourceRows:
    """Consecutive rows of one source partition.

    Attributes:
        rows: The rows, with the columns of `spark_eos._worker.arrow_columns.writable_batches`.
    """

    source: TopicPartition
    rows: pa.RecordBatch

    @property
    def offsets(self) -> pa.Array:
        """Each row's source offset, ascending if `in_order`; equal for rows of one record."""
        return self.rows.column(SOURCE_OFFSET)

    @property
    def in_order(self) -> bool:
        """Whether no row follows one with a greater offset."""
        offsets = self.offsets
        return len(offsets) < 2 or bool(pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py())

    @property
    def first_offset(self) -> int:
        """The first row's source offset."""
        return int(self.offsets[0].as_py())

    @property
    def last_offset(self) -> int:
        """The last row's source offset."""
        return int(self.offsets[len(self.offsets) - 1].as_py())

    def position(self, row: int) -> str:
        """Where a row came from, for error messages."""
        return f"source {self.source} offset {self.offsets[row].as_py()}"

    def zero_timestamps(self, without: Collection[int] = ()) -> int:
        """Number of rows whose timestamp is 0, which is written as 1 ms; without some rows."""
        timestamps = column_of(self.rows, "timestamp")
        if timestamps is None:
            return 0
        found = pc.indices_nonzero(pc.equal(timestamps, 0))
        return len(found) - len(set(without).intersection(found.to_pylist()))

    def at_or_above(self, offset: int) -> "SourceRows":
        """The rows whose source offset is ``offset`` or greater."""
        if not len(self.offsets) or self.first_offset >= offset:
            return self
        below = pc.sum(pc.less(self.offsets, offset)).as_py()
        return SourceRows(self.source, self.rows.slice(below))

    def before_last_record(self) -> tuple["SourceRows", "SourceRows"]:
        """The rows before the last record's, and those of the last record, which may continue."""
        last = pc.sum(pc.less(self.offsets, self.last_offset)).as_py()
        return (
            SourceRows(self.source, self.rows.slice(0, last)),
            SourceRows(self.source, self.rows.slice(last)),
        )

    def slices(
        self, max_rows: int = _SLICE_ROWS, max_bytes: int = _SLICE_BYTES
    ) -> Iterator["SourceRows"]:
        """Yields the rows in slices of bounded size, cut between records where possible."""
        total = self.rows.num_rows
        row_bytes = max(1, self.rows.nbytes // max(1, total))
        max_bytes = min(_SLICE_BYTES, max_bytes)
        step = max(1, min(_SLICE_ROWS, max_rows, max_bytes // row_bytes))
        start = 0
        while start < total:
            end = min(start + step, total)
            if end < total and self.offsets[end] == self.offsets[end - 1]:
                first = pc.sum(pc.less(self.offsets, self.offsets[end])).as_py()
                end = first if first > start else end
            yield SourceRows(self.source, self.rows.slice(start, end - start))
            start = end


def source_rows(batch: pa.RecordBatch) -> Iterator[SourceRows]:
    """Splits an Arrow batch where the source partition changes.

    Example:
        >>> batch = pa.RecordBatch.from_pydict(
        ...     {
        ...         SOURCE_TOPIC: ["orders"] * 3,
        ...         SOURCE_PARTITION: [0, 0, 1],
        ...         SOURCE_OFFSET: [7, 8, 3],
        ...     }
        ... )
        >>> [(str(found.source), found.first_offset) for found in source_rows(batch)]
        [('orders-0', 7), ('orders-1', 3)]
    """
    if not batch.num_rows:
        return
    topics, partitions = batch.column(SOURCE_TOPIC), batch.column(SOURCE_PARTITION)
    if topics.null_count or partitions.null_count or batch.column(SOURCE_OFFSET).null_count:
        raise RowError(
            "a row has no source, or that of a topic which the query does not read: keep the "
            "`source` column of sink.read as it is"
        )
    changes = pc.indices_nonzero(
        pc.or_(pc.not_equal(topics[1:], topics[:-1]), pc.not_equal(partitions[1:], partitions[:-1]))
    ).to_pylist()
    starts = [0, *(change + 1 for change in changes)]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        source = TopicPartition(topics[start].as_py(), partitions[start].as_py())
        yield SourceRows(source, batch.slice(start, end - start))


def _values(rows: pa.RecordBatch, column: str) -> list[Any] | None:
    found = column_of(rows, column)
    return None if found is None else found.to_pylist()


def target_topics(found: SourceRows, default: str | None) -> list[str | None]:
    """Each row's target topic: its own, or the default."""
    own = _values(found.rows, "topic")
    if own is None:
        return [default] * found.rows.num_rows
    return [default if topic is None else topic for topic in own]


def produce_arguments(
    found: SourceRows,
    topics: list[str | None],
    on_delivery: Any,
    without: Collection[int] = (),
) -> Iterator[tuple[Any, ...]]:
    """Positional arguments of ``Producer.produce`` for each row.

    A null value is a tombstone; for a null partition, the partitioner chooses; a null timestamp
    means the time of writing; one of 0 becomes 1 ms.
    """
    rows = found.rows
    values = _values(rows, "value")
    keys = _values(rows, "key") or repeat(None)
    partitions = _values(rows, "partition")
    timestamps = _values(rows, "timestamp")
    headers = _values(rows, "headers")
    columns: list[Any] = [topics, values, keys]
    columns.append(
        repeat(-1) if partitions is None else [-1 if p is None else p for p in partitions]
    )
    columns.append(repeat(on_delivery))
    if timestamps is not None or headers is not None:
        columns.append(repeat(on_delivery))
        columns.append(
            repeat(NOW) if timestamps is None else [*map(producer_timestamp, timestamps)]
        )
    if headers is not None:
        columns.append(
            [
                None if n in without else _header_pairs(found, n, row)
                for n, row in enumerate(headers)
            ]
            if without
            else [_header_pairs(found, n, row) for n, row in enumerate(headers)]
        )
    return zip(*columns, strict=False)


INVALID_HEADER: Final = "a header is null, or has no key or one with U+0000"
"""What is wrong with a row of which `is_header_name` is false, for a text."""


def is_header_name(name: str | None) -> bool:
    """Whether a header can have this name; confluent-kafka ends names at U+0000."""
    return name is not None and "\0" not in name


def _header_pairs(
    found: SourceRows, row: int, headers: list[dict[str, Any] | None] | None
) -> list[tuple[str, bytes | None]] | None:
    pairs = []
    for header in headers or ():
        if header is None or not is_header_name(header["key"]):
            raise RowError(f"{found.position(row)}: {INVALID_HEADER}")
        pairs.append((header["key"], header["value"]))
    return pairs or None


def message_contents(
    found: SourceRows,
) -> Iterator[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]:
    """Key, value, headers and timestamp, as produced, of the record that each row makes.

    Headers that are null or have no key are left out.
    """
    count = found.rows.num_rows
    keys, values, headers, timestamps = (
        _values(found.rows, name) or [None] * count
        for name in ("key", "value", "headers", "timestamp")
    )
    for key, value, own, timestamp in zip(keys, values, headers, timestamps, strict=True):
        pairs = [(h["key"], h["value"]) for h in own or () if h and h["key"] is not None]
        yield key, value, pairs, producer_timestamp(timestamp)


def find_record(found: SourceRows, key: bytes | None, value: bytes | None) -> int | None:
    """The first row with this key and value."""
    values = _values(found.rows, "value") or []
    keys = _values(found.rows, "key") or [None] * len(values)
    pairs = zip(keys, values, strict=True)
    return next((row for row, pair in enumerate(pairs) if pair == (key, value)), None)
