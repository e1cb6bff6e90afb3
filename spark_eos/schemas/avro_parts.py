"""Reads Avro types into columns, one value of every record in a batch at a time."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_eos.schemas.avro_kinds import UNITS
from spark_eos.schemas.columns import Read, containers, of_values, offsets_of, read_texts
from spark_eos.schemas.cursor import Cursor, placed
from spark_eos.schemas.formats import OneByOne

# Number of digits that always fit into a 64-bit integer.
_LONG_DIGITS: Final = 18
# The first items of all arrays are read together, then all second items, and so on. Once this many
# items have been read, the remaining records are left out if there are fewer than this many, or
# fewer than one for every 64 items that have been read: each step takes time and memory.
_FEW: Final = 8
_PER_RECORD: Final = 64


def leaf(writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
    """Return a function that reads a type that contains no other types."""
    name = writer["type"]
    if name in {"bytes", "fixed"}:
        return _bytes(writer, reader, kind)
    if name in {"int", "long"}:
        return _integer(name, reader, kind)
    makers: dict[str, Callable[[], Read]] = {
        "null": lambda: lambda cursor: pa.nulls(len(cursor)),
        "boolean": lambda: _boolean,
        "float": lambda: _floating("<f4", pa.float32(), kind),
        "double": lambda: _floating("<f8", pa.float64(), kind),
        "string": lambda: text,
        "enum": lambda: _enum(writer, reader),
    }
    return makers[name]()


def _floating(code: str, own: pa.DataType, kind: pa.DataType | None) -> Read:
    return lambda cursor: of_values(cursor.number(code), own).cast(kind or own)


def _boolean(cursor: Cursor) -> pa.Array:
    bytes_ = cursor.byte()
    cursor.refuse(bytes_ > 1)
    return pa.array(bytes_ == 1)


def _integer(name: str, reader: Any, kind: pa.DataType | None) -> Read:
    unit = str(reader.get("logicalType", "")).partition("timestamp-")[2]
    factor, divisor = UNITS.get(unit, (1, 1))
    most = 2**31 - 1 if name == "int" else (2**63 - 1) // factor
    is_checked = most < 2**63 - 1

    def read(cursor: Cursor) -> pa.Array:
        values = cursor.long()
        if is_checked:
            cursor.refuse((values > most) | (values < -most))
        if kind is None:
            return pa.nulls(len(cursor))
        if pa.types.is_floating(kind):
            return of_values(values.astype(np.float64), kind)
        if kind.bit_width == 32:
            return of_values(values.astype(np.int32), kind)
        if factor != 1:
            values = values * factor
        return of_values(values if divisor == 1 else np.floor_divide(values, divisor), kind)

    return read


def text(cursor: Cursor) -> pa.Array:
    """Read strings."""
    return read_texts(cursor, cursor.text())


def _enum(writer: Any, reader: Any) -> Read:
    if not writer["symbols"]:
        raise OneByOne
    # Symbols that the reader's enum lacks become its default, or are errors.
    kept = [symbol if symbol in reader["symbols"] else None for symbol in writer["symbols"]]
    symbols, unknown = pa.array(kept, pa.string()), np.array([symbol is None for symbol in kept])

    def read(cursor: Cursor) -> pa.Array:
        indices = cursor.long()
        wrong = (indices < 0) | (indices >= len(kept))
        cursor.refuse(wrong)
        indices = np.where(wrong, 0, indices)
        cursor.refuse(unknown[indices])
        return symbols.take(pa.array(indices))

    return read


def _bytes(writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
    size = writer.get("size")
    if size != reader.get("size"):
        raise OneByOne
    if reader.get("logicalType") == "decimal" and kind is not None:
        return _decimal(reader["precision"], kind, size)
    if kind is not None and not pa.types.is_binary(kind):
        raise OneByOne  # a UUID as text
    return lambda cursor: cursor.text() if size is None else cursor.slices(size)


def _decimal(precision: int, kind: pa.DataType, size: int | None) -> Read:
    most = 10 ** min(precision, _LONG_DIGITS) - 1

    def read(cursor: Cursor) -> pa.Array:
        sizes = cursor.long() if size is None else np.full(len(cursor), size)
        # Only numbers that fit into eight bytes are read here: in a longer number, the bytes before
        # the last eight must repeat the sign. Other numbers are read one by one.
        cursor.refuse((sizes < 0) | (sizes > 16))
        sizes = np.clip(sizes, 0, 16)
        _, ends = cursor.span(sizes)
        words = cursor.batch.words(">i8")
        low, high = (words[ends - before].astype(np.int64) for before in (8, 16))
        unused = 64 - 8 * np.minimum(sizes, 8)
        # A number without bytes is 0. The limit of 56 prevents shifts by 64 bits.
        low = np.where(sizes == 0, 0, (low << np.minimum(unused, 56)) >> np.minimum(unused, 56))
        rest = 64 - 8 * np.clip(sizes - 8, 1, 8)
        sign = low >> 63
        cursor.refuse((sizes > 8) & ((high << rest) >> rest != sign))
        cursor.refuse((low > most) | (low < -most))
        both = np.stack([low, sign], axis=1)
        return pa.Array.from_buffers(kind, len(low), [None, pa.py_buffer(both)])

    return read


def blocks(
    items: Callable[[Cursor], list[pa.Array]],
    kinds: list[pa.DataType],
    kind: pa.DataType | None,
    least: int,  # how many bytes an item takes at least
) -> Read:
    """Return a function that reads arrays or maps of one block; others are read one by one."""

    def read(cursor: Cursor) -> pa.Array:
        counts = _counts(cursor, least, is_passed=kind is None)
        offsets = offsets_of(counts)
        parts: list[list[pa.Array]] = []
        places: list[np.ndarray] = []
        left, number = np.flatnonzero(counts), 0
        filled = left
        while len(left):
            if number >= _FEW and len(left) < max(_FEW, number // _PER_RECORD):
                # The unread items of these rows stay null.
                cursor.batch.refuse(cursor.rows[left])
                break
            some = cursor.some(left)
            parts.append(items(some))
            places.append(offsets[left] + number)
            cursor.at[left] = some.at
            number += 1
            left = left[counts[left] > number]
        if len(filled):
            some = cursor.some(filled)
            some.refuse(some.byte() != 0)
            cursor.at[filled] = some.at
        if kind is None:
            return pa.nulls(len(cursor))
        return containers(cursor, offsets, kind, _columns(parts, places, int(offsets[-1]), kinds))

    return read


def _counts(cursor: Cursor, least: int, *, is_passed: bool) -> np.ndarray:
    """Return each record's number of items in its first block; refuse more than its bytes hold."""
    counts = cursor.long()
    with_size = np.flatnonzero(counts < 0)
    if len(with_size):
        some = cursor.some(with_size)
        some.long()
        # To skip a value, fastavro jumps by the block's size, which may be wrong.
        some.refuse(np.full(len(some), is_passed))
        cursor.at[with_size] = some.at
        counts = np.abs(counts)
    wrong = (counts < 0) | (counts > cursor.left() // least)
    cursor.refuse(wrong)
    return np.where(wrong, 0, counts)


def _columns(
    parts: Sequence[list[pa.Array]],
    places: Sequence[np.ndarray],
    rows: int,
    kinds: Sequence[pa.DataType],
) -> list[pa.Array]:
    return [
        placed([part[number] for part in parts], places, rows, kind)
        for number, kind in enumerate(kinds)
    ]
