"""Reads Protobuf's wire format: one field of every message in a batch at a time."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor as F

from spark_eos.schemas.columns import offsets_of
from spark_eos.schemas.cursor import Cursor, unzigzag
from spark_eos.schemas.formats import OneByOne

VARINT: Final = 0
I64: Final = 1
LEN: Final = 2
I32: Final = 5
_WIRE_TYPES: Final = {
    **dict.fromkeys((F.TYPE_FIXED64, F.TYPE_SFIXED64, F.TYPE_DOUBLE), I64),
    **dict.fromkeys((F.TYPE_FIXED32, F.TYPE_SFIXED32, F.TYPE_FLOAT), I32),
    **dict.fromkeys((F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE), LEN),
}
SIZES: Final = {I64: 8, I32: 4}
# NumPy's types of fixed-length numbers. Arrow uses the same types, except for fixed32.
_CODES: Final = {
    F.TYPE_FIXED64: "<u8",
    F.TYPE_SFIXED64: "<i8",
    F.TYPE_DOUBLE: "<f8",
    F.TYPE_FIXED32: "<u4",
    F.TYPE_SFIXED32: "<i4",
    F.TYPE_FLOAT: "<f4",
}
ZIGZAG: Final = {F.TYPE_SINT32, F.TYPE_SINT64}
_SHORT: Final = {F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_UINT32, F.TYPE_ENUM}
# The first elements of all lists are found together, then all second elements, and so on. After
# _MANY_ELEMENTS elements, upb is faster if fewer than _FEW_LISTS lists have more.
_MANY_ELEMENTS: Final = 16
_FEW_LISTS: Final = 100


def wire_type(field: Any) -> int:
    """Return the wire type of a field's single values; raise OneByOne for a group."""
    if field.type == F.TYPE_GROUP:
        raise OneByOne
    return _WIRE_TYPES.get(field.type, VARINT)


def tag(number: int, wire: int) -> bytes:
    """Return the tag that precedes a field's value."""
    rest = number << 3 | wire
    content = []
    while rest > 0x7F:
        content.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*content, rest])


def check_time(descriptor: Any) -> None:
    """Refuse a message that is only named like google.protobuf.Timestamp or Duration."""
    own = [(field.name, field.number, field.type) for field in descriptor.fields]
    if own != [("seconds", 1, F.TYPE_INT64), ("nanos", 2, F.TYPE_INT32)]:
        raise OneByOne
    _check_implicit(descriptor)


def check_wrapper(descriptor: Any) -> None:
    """Refuse a message that is only named like one of google.protobuf's wrappers."""
    if [field.name for field in descriptor.fields] != ["value"]:
        raise OneByOne
    _check_implicit(descriptor)


def _check_implicit(descriptor: Any) -> None:
    if any(field.is_repeated or field.has_presence for field in descriptor.fields):
        raise OneByOne


def skip(cursor: Cursor, wire: int) -> None:
    """Skip one value of a wire type."""
    if wire == VARINT:
        cursor.varint()
    elif wire == LEN:
        cursor.inside()
    else:
        cursor.move(SIZES[wire])


def numbers(kind: int) -> Callable[[Cursor], Any]:
    """Return a function that reads a number of a field's type; a cast makes it the column's type.

    As in Protobuf, integers beyond the type's range are truncated.
    """
    if kind in _CODES:
        return lambda cursor: _fixed(cursor.number(_CODES[kind]), kind)

    def read(cursor: Cursor) -> Any:
        raw = cursor.varint()
        if kind == F.TYPE_BOOL:
            return raw != 0
        if kind in _SHORT:
            raw &= np.uint64(2**32 - 1)
        if kind == F.TYPE_UINT64:
            return raw
        values = unzigzag(raw) if kind in ZIGZAG else raw.view(np.int64)
        return values if kind == F.TYPE_UINT32 or kind not in _SHORT else values.astype(np.int32)

    return read


def _fixed(values: np.ndarray, kind: int) -> Any:
    if kind == F.TYPE_FIXED32:
        return values.astype(np.int64)
    return quiet(values) if kind == F.TYPE_FLOAT else values


def quiet(values: np.ndarray) -> Any:
    """Return floats converted from doubles, as in Python, so that no NaN is signaling."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64).astype(np.float32)


def unpacked(cursor: Cursor, own: bytes, wire: int) -> tuple[np.ndarray, Cursor]:
    """Return how many elements with a tag are next in each message, and a cursor at them."""
    left = np.arange(len(cursor))
    some = cursor.some(left)
    found: list[np.ndarray] = []
    parts: list[Cursor] = []
    while True:
        follows = some.follows(own)
        if not follows.all():
            left, some = left[follows], some.some(follows)
        if not len(left):
            break
        if len(left) < _FEW_LISTS and len(found) >= _MANY_ELEMENTS:
            cursor.batch.refuse(some.rows)
            break
        some.move(len(own))
        if wire == LEN:
            parts.append(some.inside())
        else:
            parts.append(Cursor(some.batch, some.rows, some.at, some.ends))
            skip(some, wire)
        found.append(left)
        cursor.at[left] = some.at
    return _in_order(cursor, found, parts)


def _in_order(
    cursor: Cursor, found: list[np.ndarray], parts: list[Cursor]
) -> tuple[np.ndarray, Cursor]:
    """Return each message's number of elements, and a cursor at them, in order of messages."""
    if not found:
        return np.zeros(len(cursor), np.int64), cursor.some(np.zeros(0, np.int64))
    places = np.concatenate(found)
    order = np.argsort(places, kind="stable")
    rows, at, ends = (
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("rows", "at", "ends")
    )
    counts = np.bincount(places, minlength=len(cursor))
    return counts, Cursor(cursor.batch, rows, at, ends)


def packed(cursor: Cursor, own: bytes, wire: int) -> tuple[np.ndarray, Cursor]:
    """Return how many elements follow a tag in each message, and a cursor at them."""
    chosen = np.flatnonzero(cursor.follows(own))
    some = cursor.some(chosen)
    some.move(len(own))
    span = some.inside()
    cursor.at[chosen] = some.at
    counts, starts = (_varints if wire == VARINT else _fixed_size(SIZES[wire]))(span)
    whole = np.zeros(len(cursor), np.int64)
    whole[chosen] = counts
    rows, ends = np.repeat(span.rows, counts), np.repeat(span.ends, counts)
    return whole, Cursor(cursor.batch, rows, starts, ends)


def _varints(span: Cursor) -> tuple[np.ndarray, np.ndarray]:
    sizes = span.left()
    places, offsets = _places(span.at, sizes, 1)
    is_last = span.batch.data[places] < 0x80
    span.refuse((sizes > 0) & (span.batch.data[span.ends - 1] >= 0x80))
    before = np.zeros(len(places) + 1, np.int64)
    np.cumsum(is_last, out=before[1:])
    counts = np.diff(before[offsets])
    lasts = np.flatnonzero(is_last)
    begins = np.concatenate([np.zeros(1, np.int64), lasts[:-1] + 1])[: len(lasts)]
    # A message that ends within an integer is refused. Don't count its bytes to the next message.
    return counts, np.maximum(places[begins], np.repeat(span.at, counts))


def _fixed_size(size: int) -> Callable[[Cursor], tuple[np.ndarray, np.ndarray]]:
    def elements(span: Cursor) -> tuple[np.ndarray, np.ndarray]:
        sizes = span.left()
        span.refuse(sizes % size != 0)
        counts = sizes // size
        return counts, _places(span.at, counts, size)[0]

    return elements


def _places(begins: np.ndarray, counts: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``counts`` places from each of ``begins`` on, and the offset of each first place."""
    offsets = offsets_of(counts)
    numbers = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    return np.repeat(begins, counts) + step * numbers, offsets
