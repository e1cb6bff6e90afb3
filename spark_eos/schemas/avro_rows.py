"""Writes all rows of a batch as Avro records at once, for ordinary schemas and rows that fit.

As in `avro_columns`, anything doubtful is refused here, and fastavro writes it row by row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos.schemas.avro_kinds import UNITS, resolved
from spark_eos.schemas.columns import (
    Write,
    entries_of,
    filled,
    offsets_of,
    places_in,
    sizes_of,
    texts_to_write,
    values_of,
    writing,
)
from spark_eos.schemas.formats import OneByOne, Together
from spark_eos.schemas.sheet import Sheet

if TYPE_CHECKING:
    from spark_eos.schemas.avro import Avro

# Maximum number of members in a union with one-byte indexes.
_MOST_MEMBERS: Final = 64
_DEEPEST: Final = 50
_LONGEST: Final = 2**63 - 1


def rows_of(own: "Avro", column: T.DataType) -> Together:
    """Return a function that writes a column; raise any error if the schema is refused."""
    return writing(_Plans(own.named).of(own.top, column, own.kind.arrow))


class _Plans:
    """Makes the functions that write each type of a schema, as parsed by fastavro."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._levels = 0

    def of(self, schema: Any, column: Any, kind: pa.DataType) -> Write:
        """Return a function that writes a column; ``kind`` is the schema's type in Arrow."""
        self._levels += 1
        if self._levels > _DEEPEST:
            raise OneByOne
        schema = resolved(schema, self._named)
        if isinstance(schema, list):
            made = self._union(schema, column, kind)
        elif schema["type"] == "null":
            made = _nothing
        else:
            made = filled(self._one(schema, column, kind))
        self._levels -= 1
        return made

    def _one(self, schema: Any, column: Any, kind: pa.DataType) -> Write:
        makers: dict[str, Callable[..., Write]] = {
            "record": self._record,
            "array": self._array,
            "map": self._map,
        }
        make: Callable[..., Write] = makers.get(schema["type"], _leaf)
        return make(schema, column, kind)

    def _record(self, schema: Any, column: Any, kind: pa.DataType) -> Write:
        parts: list[tuple[int, Write]] = []
        for field in schema["fields"]:
            if field["name"] in column.names:
                place = column.names.index(field["name"])
                own = kind.field(field["name"]).type
                parts.append((place, self.of(field["type"], column[place].dataType, own)))
            else:
                parts.append((-1, self._absent(field)))

        def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
            columns = array.flatten()
            for place, write in parts:
                write(sheet, columns[place] if place >= 0 else array, present)

        return write

    def _absent(self, field: Mapping[str, Any]) -> Write:
        """Return a function that writes a missing field as null, if that is its default."""
        members = resolved(field["type"], self._named)
        is_null = field.get("default") is None and isinstance(members, list) and "null" in members
        if not is_null or len(members) > _MOST_MEMBERS:
            raise OneByOne
        index = 2 * members.index("null")
        return lambda sheet, _, present: sheet.put(np.full(len(sheet), index), present * 1)

    def _union(self, members: list[Any], column: Any, kind: pa.DataType) -> Write:
        own = [(number, member) for number, member in enumerate(members) if member != "null"]
        if len(members) > _MOST_MEMBERS or not own or isinstance(column, T.NullType):
            raise OneByOne
        null = members.index("null") if "null" in members else None
        if len(own) == 1:
            number, branch = own[0]
            return _nullable(number, null, self._inner(branch, column, kind))
        parts = []
        for (number, branch), field in zip(own, kind, strict=True):
            if field.name in column.names:
                place = column.names.index(field.name)
                inner = self._inner(branch, column[place].dataType, field.type)
                parts.append(_Member(number, place, inner))
        return _several(parts, null)

    def _inner(self, schema: Any, column: Any, kind: pa.DataType) -> Write:
        """Return a function that writes a union's member where it is present."""
        return self._one(resolved(schema, self._named), column, kind)

    def _array(self, schema: Any, column: Any, kind: pa.DataType) -> Write:
        item = self.of(schema["items"], column.elementType, kind.value_type)

        def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
            items = array.flatten()
            counts = np.asarray(pc.list_value_length(array).fill_null(0))
            _block(sheet, counts, present, lambda inner: item(inner, items, _all(inner)))

        return write

    def _map(self, schema: Any, column: Any, kind: pa.DataType) -> Write:
        item = self.of(schema["values"], column.valueType, kind.item_type)

        def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
            counts, keys, items = entries_of(sheet, array, present)

            def entries(inner: Sheet) -> None:
                _text(inner, keys, _all(inner))
                item(inner, items, _all(inner))

            _block(sheet, counts, present, entries)

        return write


class _Member(NamedTuple):
    """A member of a union: its number, its place in the column, and the function that writes it."""

    number: int
    place: int
    write: Write


def _nullable(number: int, null: int | None, inner: Write) -> Write:
    """Return a function that writes a union of one type, with or without null."""

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        valid = present & np.asarray(array.is_valid())
        if null is None:
            sheet.refuse(present & ~valid)
        _index(sheet, np.where(valid, number, null or 0), present)
        inner(sheet, array, valid)

    return write


def _several(members: Sequence[_Member], null: int | None) -> Write:
    """Return a function that writes a union of several types, with a column for each."""

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        columns = array.flatten()
        masks = [present & np.asarray(columns[member.place].is_valid()) for member in members]
        valid = present & np.asarray(array.is_valid())
        indices = np.full(len(sheet), null or 0)
        for member, mask in zip(members, masks, strict=True):
            indices[mask] = member.number
        count = sum((mask.astype(int) for mask in masks), np.zeros(len(sheet), int))
        sheet.refuse(valid & (count != 1))
        if null is None:
            sheet.refuse(present & ~valid)
        _index(sheet, indices, present)
        for member, mask in zip(members, masks, strict=True):
            member.write(sheet, columns[member.place], mask)

    return write


def _nothing(_sheet: Sheet, _array: pa.Array, _present: np.ndarray) -> None:
    """Write nulls, which have no bytes."""


def _all(sheet: Sheet) -> np.ndarray:
    return np.ones(len(sheet), bool)


def _index(sheet: Sheet, indices: np.ndarray, present: np.ndarray) -> None:
    """Write the index of each row's union member."""
    sheet.put(2 * indices, present * 1)


def _block(
    sheet: Sheet, counts: np.ndarray, present: np.ndarray, items: Callable[[Sheet], None]
) -> None:
    """Write arrays or maps, each as one block."""
    inner = Sheet(np.repeat(sheet.rows, counts), sheet.bad)
    items(inner)
    sheet.long(counts, present & (counts > 0))
    sheet.add(inner.joined_by(offsets_of(counts)))
    sheet.put(np.zeros(len(sheet), np.int64), present * 1)


def _leaf(schema: Any, _column: T.DataType, kind: pa.DataType) -> Write:
    """Return a function that writes a type that contains no other types."""
    name, logical = schema["type"], str(schema.get("logicalType", ""))
    if name in {"bytes", "fixed"}:
        return _bytes(logical, schema.get("size"), kind)
    makers: dict[str, Callable[[], Write]] = {
        "boolean": lambda: _boolean,
        "int": lambda: _integer(logical, kind),
        "long": lambda: _integer(logical, kind),
        "float": lambda: _floating(4, kind),
        "double": lambda: _floating(8, kind),
        "string": lambda: _text,
        "enum": lambda: _enum(schema["symbols"]),
    }
    return makers[name]()


def _boolean(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
    filled = array.fill_null(False)  # noqa: FBT003 - a value
    sheet.put(np.asarray(filled).astype(np.int64), present * 1)


def _floating(size: int, kind: pa.DataType) -> Write:
    return lambda sheet, array, present: sheet.put(
        values_of(array.cast(kind), f"<u{size}"), present * size
    )


def _integer(logical: str, kind: pa.DataType) -> Write:
    divisor, factor = UNITS.get(logical.partition("timestamp-")[2], (1, 1))
    code, plain = ("<i4", pa.int32()) if kind.bit_width == 32 else ("<i8", pa.int64())

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        values = values_of(array.cast(kind).cast(plain), code).astype(np.int64)
        if factor != 1:
            most = _LONGEST // factor
            sheet.refuse(present & ((values > most) | (values < -most)))
            values = values * factor
        sheet.long(values if divisor == 1 else np.floor_divide(values, divisor), present)

    return write


def _decimal(kind: pa.DataType, size: int | None) -> Write:
    if size is not None and size > 16:
        raise OneByOne

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        both = values_of(array.cast(kind), "V16").view("<i8").reshape(-1, 2)
        low, sign = both[:, 0], both[:, 0] >> 63
        size_of = low ^ sign  # has the bits that the number needs besides its sign
        magnitude = size_of - sign
        sheet.refuse(present & ((both[:, 1] != sign) | (size_of == _LONGEST)))
        if size is None:
            sizes = sum(((magnitude >= 1 << 8 * n - 1) * 1 for n in range(1, 8)), np.array(1))
            sizes = sizes + np.zeros(len(low), np.int64)
            sheet.long(sizes, present)
        else:
            sizes = np.full(len(low), min(size, 8))
            sheet.refuse(present & (size < 8) & (size_of >> (8 * min(size, 8) - 1) != 0))
            if size > 8:
                sheet.put(sign, present * (size - 8))
        words = (low << (64 - 8 * sizes)).astype(">i8").view("<u8")
        sheet.put(words, present * sizes)

    return write


def _enum(symbols: list[str]) -> Write:
    known = pa.array(symbols, pa.string())

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        sheet.long(places_in(known, sheet, array, present), present)

    return write


def _bytes(logical: str, size: int | None, kind: pa.DataType) -> Write:
    if logical == "decimal":
        return _decimal(kind, size)
    if not pa.types.is_binary(kind):
        raise OneByOne  # a UUID as text
    return _raw if size is None else _fixed(size)


def _fixed(size: int) -> Write:
    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        sheet.refuse(present & (sizes_of(array) != size))
        sheet.add(array)

    return write


def _raw(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
    sheet.long(sizes_of(array), present)
    sheet.add(array)


def _text(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
    """Write strings."""
    _raw(sheet, texts_to_write(sheet, array), present)
