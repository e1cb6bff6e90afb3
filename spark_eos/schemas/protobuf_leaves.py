"""Writes columns of simple Protobuf types, which contain no messages, as parts of messages."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor as F

from spark_eos.schemas.columns import Write, sizes_of, texts_to_write, values_of
from spark_eos.schemas.kinds import Kind
from spark_eos.schemas.protobuf_kinds import Enum
from spark_eos.schemas.protobuf_wire import SIZES, quiet, wire_type
from spark_eos.schemas.sheet import Sheet, zigzag

_ZIGZAG: Final = {F.TYPE_SINT32, F.TYPE_SINT64}
_UNSIGNED_32: Final = {F.TYPE_UINT32, F.TYPE_FIXED32}
_UNSIGNED_64: Final = {F.TYPE_UINT64, F.TYPE_FIXED64}
_FLOATING: Final = {F.TYPE_FLOAT, F.TYPE_DOUBLE}


class Style(NamedTuple):
    """How a field's values are written."""

    prefix: bytes  # the field's tag; empty for a packed field's elements
    is_implicit: bool = False  # whether a default value is omitted

    def begin(self, sheet: Sheet, present: np.ndarray) -> None:
        """Write the tag in rows where a value follows."""
        if self.prefix:
            word = np.full(len(sheet), int.from_bytes(self.prefix, "little"), np.uint64)
            sheet.put(word, present * len(self.prefix))


def leaf(field: Any, kind: Kind, style: Style) -> Write:
    """Return a function that writes a type that contains no messages."""
    if field.type in {F.TYPE_STRING, F.TYPE_BYTES}:
        return _texts(style, is_text=field.type == F.TYPE_STRING)
    size = SIZES.get(wire_type(field))
    to_raw = raw_of(field.type, kind)

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        raw = to_raw(sheet, array, present)
        if style.is_implicit:
            present = present & (raw != 0)
        style.begin(sheet, present)
        if size is None:
            sheet.varint(raw, present)
        else:
            sheet.put(raw, present * size)

    return write


def _texts(style: Style, *, is_text: bool) -> Write:
    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        raw = texts_to_write(sheet, array) if is_text else array
        sizes = sizes_of(raw).astype(np.uint64)
        if style.is_implicit:
            present = present & (sizes != 0)
        style.begin(sheet, present)
        sheet.varint(sizes, present)
        sheet.add(raw)

    return write


def add_content(sheet: Sheet, style: Style, content: pa.Array, present: np.ndarray) -> None:
    """Write content after its length; it must be empty where it is not present."""
    style.begin(sheet, present)
    sheet.varint(sizes_of(content).astype(np.uint64), present)
    sheet.add(content)


Raw = Callable[[Sheet, pa.Array, np.ndarray], Any]
"""Converts values to unsigned integers, as on the wire; a null becomes an arbitrary one."""


def raw_of(type_: int, kind: Kind) -> Raw:
    """Return a function that converts a field's values to the numbers on the wire."""
    if isinstance(kind, Enum):
        return _enum(kind)
    if type_ == F.TYPE_BOOL:
        # Nulls are never written, so their value does not matter.
        return lambda _sheet, array, _present: np.asarray(array.fill_null(False)).astype(np.uint64)  # noqa: FBT003
    if type_ in _FLOATING:
        return _double if type_ == F.TYPE_DOUBLE else _float
    if type_ in _UNSIGNED_64:
        return _unsigned
    return _integer(type_)


def _integer(type_: int) -> Raw:
    def raw(sheet: Sheet, array: pa.Array, present: np.ndarray) -> Any:
        values = values_of(array.cast(pa.int64()), "<i8")
        if type_ in _ZIGZAG:
            return zigzag(values)
        if type_ in _UNSIGNED_32:
            sheet.refuse(present & (values >> 32 != 0))
        return values.view(np.uint64)

    return raw


def _double(_sheet: Sheet, array: pa.Array, _present: np.ndarray) -> np.ndarray:
    return values_of(array.cast(pa.float64()), "<u8")


def _float(_sheet: Sheet, array: pa.Array, _present: np.ndarray) -> Any:
    values = quiet(values_of(array.cast(pa.float32()), "<f4"))
    return values.view(np.uint32).astype(np.uint64)


def _unsigned(sheet: Sheet, array: pa.Array, present: np.ndarray) -> Any:
    if not pa.types.is_decimal(array.type):
        values = values_of(array.cast(pa.int64()), "<i8")
        sheet.refuse(present & (values < 0))
        return values.view(np.uint64)
    words = values_of(array.cast(pa.decimal128(38, 0)), "V16").view("<u8").reshape(-1, 2)
    sheet.refuse(present & (words[:, 1] != 0))
    return words[:, 0]


def _enum(kind: Enum) -> Raw:
    known = pa.array([*kind.numbers], pa.string())
    # Negative numbers have 64 bits on the wire.
    numbers = np.array([*kind.numbers.values()], np.int64).view(np.uint64)

    def raw(sheet: Sheet, array: pa.Array, present: np.ndarray) -> Any:
        places = pc.index_in(array.cast(pa.string()), value_set=known)
        sheet.refuse(present & np.asarray(places.is_null()))
        return numbers[np.asarray(places.fill_null(0))]

    return raw
