"""Writes all rows of a batch as Protobuf messages at once, for ordinary schemas and rows.

As in `protobuf_columns`, doubtful rows are left to upb, which also reports their errors.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as F

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
from spark_eos.schemas.cursor import unzigzag
from spark_eos.schemas.formats import OneByOne, Together
from spark_eos.schemas.kinds import Kind, typed
from spark_eos.schemas.nested import List, Map
from spark_eos.schemas.protobuf_kinds import SCALARS, Enum, Message, Time, Wrapper
from spark_eos.schemas.protobuf_wire import (
    LEN,
    SIZES,
    ZIGZAG,
    check_time,
    check_wrapper,
    quiet,
    tag,
    wire_type,
)
from spark_eos.schemas.sheet import Sheet, zigzag

_DEEPEST: Final = 50
# Keys that distinguish upb's order from other orders.
_TEXTS: Final = ["", "b", "a", "ab", "aa", "aab", "\0", "a\0", "\u00e9", "zzzz"]
_INTEGERS: Final = [5, 0, 300, 2, 128, 1, 2**31 - 1]
_NEGATIVE: Final = [-1, -5, -(2**31)]
_SIGNED: Final = {
    *(F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32),
    *(F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64),
}
_UNSIGNED_32: Final = {F.TYPE_UINT32, F.TYPE_FIXED32}
_UNSIGNED_64: Final = {F.TYPE_UINT64, F.TYPE_FIXED64}
_FLOATING: Final = {F.TYPE_FLOAT, F.TYPE_DOUBLE}

Raw = Callable[[Sheet, pa.Array, np.ndarray], Any]
"""Converts values to unsigned integers, as on the wire; a null becomes an arbitrary one."""


class Style(NamedTuple):
    """How a field's values are written."""

    prefix: bytes  # the field's tag; empty for a packed field's elements
    is_implicit: bool = False  # whether a default value is omitted

    def begin(self, sheet: Sheet, present: np.ndarray) -> None:
        """Write the tag in rows where a value follows."""
        if self.prefix:
            word = np.full(len(sheet), int.from_bytes(self.prefix, "little"), np.uint64)
            sheet.put(word, present * len(self.prefix))


def rows_of(descriptor: Any, kind: Kind) -> Together:
    """Return a function that writes a column; raise any error if the schema is refused."""
    return writing(_fields(descriptor, kind.fields, 0))


def _fields(descriptor: Any, kinds: Mapping[str, Kind], level: int) -> Write:
    """Return a function that writes messages' fields, in the order of their numbers."""
    if level > _DEEPEST:
        raise OneByOne
    fields = sorted(descriptor.fields, key=lambda field: field.number)
    parts = {field.name: _field(field, kinds[field.name], level) for field in fields}
    groups = [[field.name for field in oneof.fields] for oneof in descriptor.oneofs]

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        names = [field.name for field in array.type]
        columns = dict(zip(names, array.flatten(), strict=True))
        for group in groups:
            members = [np.asarray(columns[name].is_valid()) for name in group if name in columns]
            if len(members) > 1:
                sheet.refuse(np.sum(members, axis=0) > 1)
        for name, part in parts.items():
            if name in columns:
                part(sheet, typed(columns[name], kinds[name].arrow), present)

    return write


def _field(field: Any, kind: Kind, level: int) -> Write:
    if isinstance(kind, Map):
        return _map(field, kind, level)
    if not isinstance(kind, List):
        style = Style(tag(field.number, wire_type(field)), not field.has_presence)
        return _value(field, kind, style, level)
    style = Style(b"" if field.is_packed else tag(field.number, wire_type(field)))
    return _repeated(field, _value(field, kind.item, style, level))


def _value(field: Any, kind: Kind, style: Style, level: int) -> Write:
    """Return a function that writes single values, and refuses nulls that aren't allowed."""
    if isinstance(kind, Message):
        write = _message(style, _fields(field.message_type, kind.fields, level + 1))
    elif isinstance(kind, Time):
        write = _message(style, _time(field.message_type, kind))
    elif isinstance(kind, Wrapper):
        check_wrapper(field.message_type)
        (inner,) = field.message_type.fields
        own = Style(tag(inner.number, wire_type(inner)), is_implicit=True)
        write = _message(style, _leaf(inner, kind.inner, own))
    else:
        write = _leaf(field, kind, style)
    return filled(write, nullable=kind.nullable)


def _message(style: Style, fields: Write) -> Write:
    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        inner = Sheet(sheet.rows, sheet.bad)
        fields(inner, array, present)
        _add_content(sheet, style, inner.joined(), present)

    return write


def _time(descriptor: Any, kind: Time) -> Write:
    check_time(descriptor)
    parts = {
        name: _leaf(
            field,
            Kind(*SCALARS[field.type]),
            Style(tag(field.number, wire_type(field)), is_implicit=True),
        )
        for name, field in descriptor.fields_by_name.items()
    }

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        micros = np.asarray(array.cast(pa.int64()).fill_null(0))
        seconds, nanos = kind.parts(micros)
        sheet.refuse(present & kind.wrong(seconds, nanos))
        for name, values in (("seconds", seconds), ("nanos", nanos)):
            parts[name](sheet, pa.array(values), present)

    return write


def _repeated(field: Any, item: Write) -> Write:
    style = Style(tag(field.number, LEN))

    def write(sheet: Sheet, array: pa.Array, _present: np.ndarray) -> None:
        counts = np.asarray(pc.list_value_length(array).fill_null(0))
        inner = Sheet(np.repeat(sheet.rows, counts), sheet.bad)
        item(inner, array.flatten(), np.ones(len(inner), bool))
        content = inner.joined_by(offsets_of(counts))
        if field.is_packed:
            _add_content(sheet, style, content, counts > 0)
        else:
            sheet.add(content)

    return filled(write)


def _map(field: Any, kind: Map, level: int) -> Write:
    """Return a function that writes a map as upb does."""
    fields = [field.message_type.fields_by_name[name] for name in ("key", "value")]
    parts = [
        _value(own, inner, Style(tag(own.number, wire_type(own))), level)
        for own, inner in zip(fields, (kind.key, kind.value), strict=True)
    ]
    style = Style(tag(field.number, LEN))
    order_of = _by_text if fields[0].type == F.TYPE_STRING else _by_number(fields[0], kind)

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        counts, *columns = entries_of(sheet, array, present)
        if len(counts) and counts.max() > 1:
            order = order_of(np.repeat(np.arange(len(counts)), counts), columns[0])
            columns = [column.take(order) for column in columns]
        entries = Sheet(np.repeat(sheet.rows, counts), sheet.bad)
        inner, every = Sheet(entries.rows, sheet.bad), np.ones(len(entries), bool)
        for part, column in zip(parts, columns, strict=True):
            part(inner, column, every)
        _add_content(entries, style, inner.joined(), every)
        sheet.add(entries.joined_by(offsets_of(counts)))

    checked = filled(write)
    _check_order(field, kind, checked)
    return checked


def _by_text(maps: np.ndarray, keys: pa.Array) -> pa.Array:
    """Return the order of entries by map and key; a key follows longer keys that begin with it."""
    # This byte is greater than any byte in a text.
    ended = pc.binary_join_element_wise(keys.cast(pa.binary()), b"\xff", b"")
    table = pa.table({"map": maps, "key": ended})
    return pc.sort_indices(table, [("map", "ascending"), ("key", "ascending")])


def _by_number(field: Any, kind: Map) -> Callable[[np.ndarray, pa.Array], pa.Array]:
    """Return a function like `_by_text` for numbers: the greatest first, compared as unsigned."""
    to_raw = _raw_of(field.type, kind.key)

    def order(maps: np.ndarray, keys: pa.Array) -> pa.Array:
        sheet = Sheet(np.arange(len(keys)), np.zeros(len(keys), bool))
        raw = to_raw(sheet, keys, np.ones(len(keys), bool))
        if field.type in ZIGZAG:
            raw = unzigzag(raw).view(np.uint64)
        return pa.array(np.lexsort((~raw, maps)))

    return order


def _check_order(field: Any, kind: Map, write: Write) -> None:
    """Raise OneByOne if this version of upb has another order: Protobuf doesn't specify any."""
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    keys: list[Any] = [*_INTEGERS, *(_NEGATIVE if key.type in _SIGNED else ())]
    if key.type in {F.TYPE_STRING, F.TYPE_BOOL}:
        keys = _TEXTS if key.type == F.TYPE_STRING else [False, True]
    one = value.default_value
    if value.type == F.TYPE_MESSAGE:
        one = message_factory.GetMessageClass(value.message_type)()
    column = kind.array([dict.fromkeys(keys, one)])
    (entries,) = kind.values(column, "")
    make = message_factory.GetMessageClass(field.containing_type)
    expected = make.SerializePartialToString(make(**{field.name: entries}), deterministic=True)
    sheet = Sheet(np.arange(1), np.zeros(1, bool))
    write(sheet, column, np.ones(1, bool))
    if sheet.joined()[0].as_py() != expected:
        raise OneByOne


def _leaf(field: Any, kind: Kind, style: Style) -> Write:
    """Return a function that writes a type that contains no messages."""
    if field.type in {F.TYPE_STRING, F.TYPE_BYTES}:
        return _texts(style, is_text=field.type == F.TYPE_STRING)
    size = SIZES.get(wire_type(field))
    to_raw = _raw_of(field.type, kind)

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


def _add_content(sheet: Sheet, style: Style, content: pa.Array, present: np.ndarray) -> None:
    """Write content after its length; it must be empty where it is not present."""
    style.begin(sheet, present)
    sheet.varint(sizes_of(content).astype(np.uint64), present)
    sheet.add(content)


def _raw_of(type_: int, kind: Kind) -> Raw:
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
        if type_ in ZIGZAG:
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
        return numbers[places_in(known, sheet, array.cast(pa.string()), present)]

    return raw
