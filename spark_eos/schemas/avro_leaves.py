"""Writes columns of simple Avro types, which contain no other types, as parts of records."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos.schemas.avro_kinds import UNITS
from spark_eos.schemas.columns import Write, sizes_of, texts_to_write, values_of
from spark_eos.schemas.formats import OneByOne
from spark_eos.schemas.sheet import Sheet

_LONGEST: Final = 2**63 - 1


def leaf(schema: Any, _column: T.DataType, kind: pa.DataType) -> Write:
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
        "string": lambda: text,
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
        places = pc.index_in(array, value_set=known)
        sheet.refuse(present & np.asarray(places.is_null()))
        sheet.long(np.asarray(places.fill_null(0)).astype(np.int64), present)

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


def text(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
    """Write strings."""
    _raw(sheet, texts_to_write(sheet, array), present)
