"""Converts rows, a whole column at a time, to arrays of librdkafka's C structures; no I/O."""

# The arrays point into the rows' Arrow buffers, which must live until the records are acknowledged.

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos._client.librdkafka_api import ANY_PARTITION, ARGUMENT, MESSAGE, Array, Kind
from spark_eos._worker.records import EPOCH, NOW, column_of

Integers = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]
# The address of empty contents that have no buffer; the address 0 would mean null.
_SOMEWHERE: Final = 1


def one_by_one(rows: pa.RecordBatch) -> bool:
    """Return True if any row has a header, timestamp or partition, and so needs its own call."""
    # All rows are then sent one by one, to keep them in order.
    for name in ("timestamp", "partition"):
        column = column_of(rows, name)
        if column is not None and column.null_count < len(column):
            return True
    headers = column_of(rows, "headers")
    return headers is not None and bool(pc.sum(pc.list_value_length(headers)).as_py())


def messages(rows: pa.RecordBatch, numbers: Integers) -> Array:
    """Return an `rd_kafka_message_t` per row: key, value, number; a null value is a tombstone."""
    made = np.zeros(rows.num_rows, MESSAGE)
    made["value"], made["value_size"] = _contents(column_of(rows, "value"), len(made))
    made["key"], made["key_size"] = _contents(column_of(rows, "key"), len(made))
    made["number"] = numbers
    return made


@dataclass(frozen=True)
class Arguments:
    """The arguments of ``rd_kafka_produceva`` for several rows."""

    # All rows' arguments, one after the other.
    array: Array
    # How many arguments each row has.
    counts: Integers
    # The memory that holds the headers' names.
    names: Any


def arguments(rows: pa.RecordBatch, topics: Addresses, numbers: Integers) -> Arguments:
    """Return the arguments for each row: like `messages`, plus partition, timestamp and headers."""
    # For a null partition, the partitioner chooses. A null timestamp means the time of writing; a
    # timestamp of 0 becomes 1 ms.
    count = rows.num_rows
    timestamps = column_of(rows, "timestamp")
    if timestamps is not None:
        timestamps = pc.if_else(pc.equal(timestamps, 0), EPOCH, timestamps)
    fixed = (
        (Kind.TOPIC, topics, 0),
        (Kind.PARTITION, _integers(column_of(rows, "partition"), ANY_PARTITION), 0),
        (Kind.VALUE, *_contents(column_of(rows, "value"), count)),
        (Kind.KEY, *_contents(column_of(rows, "key"), count)),
        (Kind.NUMBER, numbers, 0),
        (Kind.TIMESTAMP, _integers(timestamps, NOW), 0),
    )
    headers = column_of(rows, "headers")
    numbers_of = np.zeros(count, np.int64)
    if headers is not None:
        numbers_of += np.asarray(pc.fill_null(pc.list_value_length(headers), 0))
    counts = numbers_of + len(fixed)
    starts = np.cumsum(counts) - counts
    array = np.zeros(int(counts.sum()), ARGUMENT)
    for place, (kind, first, second) in enumerate(fixed):
        at = starts + place
        array["kind"][at] = kind
        array["first"].view(np.int64)[at] = np.asarray(first).astype(np.int64)
        array["second"][at] = second
    names = None
    if headers is not None:
        is_header = array["kind"] == 0
        items = headers.flatten()
        names, lengths = _names(items.field("key"))
        array["kind"][is_header] = Kind.HEADER
        array["first"][is_header] = lengths
        array["second"][is_header], array["third"][is_header] = _contents(
            items.field("value"), len(items)
        )
    return Arguments(array, counts, names)


def _names(column: pa.Array) -> tuple[Any, Addresses]:
    """Return the distinct names as C strings, and the address of each header's name."""
    encoded = column.dictionary_encode()
    texts = [name.as_py().encode() + b"\0" for name in encoded.dictionary]
    memory = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    starts = np.cumsum([0, *map(len, texts)], dtype=np.uint64)[: len(texts)]
    codes = np.asarray(encoded.indices)
    return memory, np.uint64(memory.ctypes.data) + starts[codes]


def _integers(column: pa.Array | None, default: int) -> Integers | int:
    return default if column is None else np.asarray(pc.fill_null(column, default))


def _contents(column: pa.Array | None, count: int) -> tuple[Addresses, Addresses]:
    """Return the address (0 for null) and the size in bytes of each value of a binary column."""
    if column is None or not count:
        return np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    is_large = pa.types.is_large_binary(column.type)
    if not is_large and not pa.types.is_binary(column.type):
        # Buffers of other types have another layout, so librdkafka would read unrelated memory.
        raise TypeError(f"keys, values and headers must be binary, not {column.type}")
    width = np.dtype(np.int64 if is_large else np.int32)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, width, count + 1, column.offset * width.itemsize)
    base = _SOMEWHERE if data is None else data.address or _SOMEWHERE
    at = bounds[:-1].astype(np.uint64) + np.uint64(base)
    sizes = np.diff(bounds).astype(np.uint64)
    if column.null_count:
        null = np.asarray(column.is_null())
        at[null], sizes[null] = 0, 0
    return at, sizes
