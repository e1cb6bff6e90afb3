"""Splits a task's Arrow batches into source rows and Kafka records; without I/O."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos._client.letter_headers import Header
from spark_eos._client.librdkafka_api import ANY_PARTITION
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.sources import Sources

SOURCE_TOPIC = "source_topic"
SOURCE_PARTITION = "source_partition"
SOURCE_OFFSET = "source_offset"
TOPIC_IS_SOURCE = "topic_is_source"
"""The column that is true if the query reads a row's target topic by a pattern."""
# A transaction may end between two slices. With smaller slices, the fixed work for each slice would
# take longer than the work on its rows.
_SLICE_ROWS = 10_000
_SLICE_BYTES = 4 << 20


def text_in(texts: pa.Array, row: int) -> str | None:
    """Return a string of a column; escape the bytes that are not UTF-8."""
    # Spark's strings may hold any bytes, for example after `cast("string")` of binary values.
    content = texts[row].as_buffer()
    return None if content is None else content.to_pybytes().decode(errors="backslashreplace")


def _not_utf8(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask of a column's strings that are not UTF-8."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        # Few columns have such a string, so this may be slow.
        contents = [text.as_buffer() for text in texts]
        return np.array([b is not None and not is_utf8(b.to_pybytes()) for b in contents], bool)
    return np.zeros(len(texts), bool)


def is_utf8(content: bytes) -> bool:
    """Return True if the bytes are valid UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def column_of(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column of that name, or None."""
    index = rows.schema.get_field_index(name)
    return None if index < 0 else rows.column(index)


@dataclass(frozen=True)
class SourceRows:
    """Consecutive rows of one source partition, with the columns of `writable_batches`."""

    # The group's partition, whose offset is committed.
    partition: TopicPartition
    # The source partition, which messages and headers name.
    source: TopicPartition
    rows: pa.RecordBatch

    @property
    def offsets(self) -> pa.Array:
        """Each row's source offset, ascending if `in_order`; equal for rows of one record."""
        return self.rows.column(SOURCE_OFFSET)

    @property
    def in_order(self) -> bool:
        """True if no row follows a row with a greater offset."""
        offsets = self.offsets
        return len(offsets) < 2 or bool(pc.all(pc.less_equal(offsets[:-1], offsets[1:])).as_py())

    @property
    def first_offset(self) -> int:
        return int(self.offsets[0].as_py())

    @property
    def last_offset(self) -> int:
        return int(self.offsets[len(self.offsets) - 1].as_py())

    def position(self, row: int) -> str:
        """Return where a row came from, for error messages."""
        return f"source {self.source} offset {self.offsets[row].as_py()}"

    @property
    def positions(self) -> str:
        """The positions that the rows came from, for error messages."""
        if self.first_offset == self.last_offset:
            return self.position(0)
        return f"source {self.source} offsets {self.first_offset} to {self.last_offset}"

    def zero_timestamps(self, without: Collection[int]) -> int:
        """Count the rows, except those in ``without``, whose timestamp 0 is written as 1 ms."""
        timestamps = column_of(self.rows, "timestamp")
        if timestamps is None:
            return 0
        zeros = pc.indices_nonzero(pc.equal(timestamps, 0))
        return len(zeros) - len(set(without).intersection(zeros.to_pylist()))

    def _of(self, rows: pa.RecordBatch) -> "SourceRows":
        return SourceRows(self.partition, self.source, rows)

    def at_or_above(self, offset: int) -> "SourceRows":
        """Return the rows whose source offset is ``offset`` or greater."""
        if not len(self.offsets) or self.first_offset >= offset:
            return self
        below = pc.sum(pc.less(self.offsets, offset)).as_py()
        return self._of(self.rows.slice(below))

    def before_last_record(self) -> tuple["SourceRows", "SourceRows"]:
        """Split off the last record's rows, because more of them may follow."""
        last = pc.sum(pc.less(self.offsets, self.last_offset)).as_py()
        return (
            self._of(self.rows.slice(0, last)),
            self._of(self.rows.slice(last)),
        )

    def slices(
        self,
        room: Callable[[], int] = lambda: _SLICE_ROWS,
        max_bytes: Callable[[], int] = lambda: _SLICE_BYTES,
    ) -> Iterator["SourceRows"]:
        """Yield slices of at most ``room()`` rows, cut between records where possible."""
        total = self.rows.num_rows
        row_bytes = max(1, self.rows.nbytes // max(1, total))
        start = 0
        while start < total:
            # The limits grow while rows are written.
            most = min(_SLICE_ROWS, min(_SLICE_BYTES, max_bytes()) // row_bytes)
            end = min(start + max(1, min(most, room())), total)
            if end < total and self.offsets[end] == self.offsets[end - 1]:
                first = pc.sum(pc.less(self.offsets, self.offsets[end])).as_py()
                end = first if first > start else end
            yield self._of(self.rows.slice(start, end - start))
            start = end


def source_rows(batch: pa.RecordBatch, sources: Sources = Sources()) -> Iterator[SourceRows]:
    """Split an Arrow batch where the source partition changes, and name the group's partition."""
    if not batch.num_rows:
        return
    topics, partitions = batch.column(SOURCE_TOPIC), batch.column(SOURCE_PARTITION)
    if topics.null_count or partitions.null_count or batch.column(SOURCE_OFFSET).null_count:
        raise TransactionError(
            "a row has no source, or its source is a topic that the query does not read: keep the "
            "`source` column of sink.read as it is",
            again=False,
        )
    changes = pc.indices_nonzero(
        pc.or_(pc.not_equal(topics[1:], topics[:-1]), pc.not_equal(partitions[1:], partitions[:-1]))
    ).to_pylist()
    starts = [0, *(change + 1 for change in changes)]
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        source = TopicPartition(text_in(topics, start) or "", partitions[start].as_py())
        yield SourceRows(sources.partition(source), source, batch.slice(start, end - start))


@dataclass(frozen=True)
class RowTopics:
    # The distinct topics, including None if there are rows without a topic.
    names: Sequence[str | None]
    # For each row, the index of its topic in the names.
    codes: npt.NDArray[np.integer[Any]]

    def __getitem__(self, row: int) -> str | None:
        return self.names[int(self.codes[row])]

    def rows(self, name: str | None) -> npt.NDArray[np.intp]:
        """Return the rows to write to a topic."""
        # Names that are not UTF-8 may be equal once they are escaped.
        codes = [code for code, own in enumerate(self.names) if own == name]
        return np.flatnonzero(np.isin(self.codes, codes))

    def firsts(self, without: Collection[int] = ()) -> dict[str | None, int]:
        """Return each topic with its first row, ignoring the rows in ``without``."""
        left = np.ones(len(self.codes), bool)
        left[list(without)] = False
        rows = np.flatnonzero(left)
        if len(self.names) == 1:
            return dict(zip(self.names, rows[:1].tolist(), strict=False))
        codes, first_rows = np.unique(self.codes[left], return_index=True)
        firsts = {
            self.names[code]: int(row) for code, row in zip(codes, rows[first_rows], strict=True)
        }
        return dict(sorted(firsts.items(), key=lambda pair: pair[1]))


def target_topics(part: SourceRows, default: str | None) -> RowTopics:
    """Return each row's target topic: its own, or the default."""
    own = column_of(part.rows, "topic")
    if own is None or own.null_count == len(own):
        return RowTopics([default], np.zeros(part.rows.num_rows, np.intp))
    if default is not None:
        own = pc.fill_null(own, default)
    encoded = own.dictionary_encode(null_encoding="encode")
    names = [text_in(encoded.dictionary, code) for code in range(len(encoded.dictionary))]
    return RowTopics(names, np.asarray(encoded.indices))


INVALID_HEADER: Final = "a header is null, or its name is null, not UTF-8 or contains U+0000"
"""The message for the rows that `rows_with_invalid_header` returns."""


def rows_with_invalid_header(rows: pa.RecordBatch) -> list[int]:
    """Return the rows with a header that can't be written: librdkafka ends names at U+0000."""
    column = column_of(rows, "headers")
    if column is None:
        return []
    items = column.flatten()
    names = items.field("key")
    ended = pc.match_substring(names, "\0")
    # `ended` is null where the name is null.
    invalid = np.asarray(pc.or_(items.is_null(), pc.fill_null(ended, fill_value=True)))
    counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    of_items = np.repeat(np.arange(len(column)), counts)
    return sorted(set(of_items[invalid | _not_utf8(names)].tolist()))


# librdkafka takes 0 to mean the time of writing. So 1970-01-01T00:00:00Z can't be written, and
# becomes the next millisecond.
NOW: Final = 0
EPOCH: Final = 1
# The timestamp of a record that has none, as written by old producers; every topic accepts it.
NO_TIMESTAMP: Final = -1


def producer_timestamp(milliseconds: int | None) -> int:
    """Return the timestamp to pass to librdkafka's producer."""
    return NOW if milliseconds is None else milliseconds or EPOCH


class RecordContent(NamedTuple):
    key: bytes | None
    value: bytes | None
    # None if the headers can't be read or written.
    headers: Sequence[Header] | None
    # Milliseconds since 1970; None for the time of writing.
    timestamp: int | None
    # By default, librdkafka's partitioner chooses.
    partition: int = ANY_PARTITION


def record_content(rows: pa.RecordBatch, row: int) -> RecordContent:
    """Return the content of a row's record; without headers if one of them can't be written."""
    key, value, timestamp = (
        None if column is None else column[row].as_py()
        for column in (column_of(rows, name) for name in ("key", "value", "timestamp"))
    )
    if rows_with_invalid_header(rows.slice(row, 1)):
        return RecordContent(key, value, None, timestamp)
    own = column_of(rows, "headers")
    headers = None if own is None else own[row].as_py()
    return RecordContent(key, value, [(h["key"], h["value"]) for h in headers or ()], timestamp)
