"""Reads all Protobuf messages of a batch into columns at once, if schema and message are ordinary.

Most messages have each field once, in the order of field numbers. All other messages, and any
doubtful ones, are left to upb, which reads messages one by one; `protobuf` reports their errors.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor as F

from spark_eos.schemas.columns import Read, containers, offsets_of, read_texts, reading
from spark_eos.schemas.cursor import Cursor, placed
from spark_eos.schemas.formats import OneByOne, Together
from spark_eos.schemas.kinds import Kind
from spark_eos.schemas.nested import List, Map
from spark_eos.schemas.protobuf_kinds import SCALARS, Enum, Message, Time, Wrapper
from spark_eos.schemas.protobuf_wire import (
    LEN,
    check_time,
    check_wrapper,
    numbers,
    packed,
    tag,
    unpacked,
    wire_type,
)

# Maximum nesting of messages; upb's own limit is 100.
_DEEPEST: Final = 50
# Maximum size of encoded message indexes, in bytes: `Cursor.follows` compares at most eight.
_LONGEST_PREFIX: Final = 8

Field = Callable[[Cursor], tuple[pa.Array, np.ndarray]]
"""Reads a field, as its default or null if absent; also returns a mask of where it is present."""


def columns_of(writer: Any, reader: Any, kind: Kind, prefix: bytes) -> Together:
    """Return a function that reads payloads; raise any error if the schemas are refused.

    ``writer`` and ``reader`` are descriptors; ``prefix`` is the message's indexes.
    """
    if len(prefix) > _LONGEST_PREFIX:
        raise OneByOne
    return reading(_message(writer, reader, kind, 0), kind.arrow, prefix)


def _message(writer: Any, reader: Any, kind: Kind, level: int) -> Read:
    read = _fields(writer, reader, kind.fields, level)
    fields = [*kind.arrow]

    def struct(cursor: Cursor) -> pa.Array:
        columns = read(cursor)
        if not fields:
            return pa.Array.from_buffers(kind.arrow, len(cursor), [None])
        return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)

    return struct


def _fields(
    writer: Any, reader: Any, kinds: Mapping[str, Kind], level: int
) -> Callable[[Cursor], dict[str, pa.Array]]:
    """Return a function that reads whole messages, each field as a column."""
    # upb reads extensions, whose numbers may be those of fields in the writer's schema.
    if reader.is_extendable or level > _DEEPEST:
        raise OneByOne
    written, own = writer.fields_by_number, reader.fields_by_number
    parts: list[tuple[str, Field, str | None]] = []
    for number in sorted({*written, *own}):
        field = own.get(number)
        if field is not None:
            read = _field(written.get(number, field), field, kinds[field.name], level)
            oneof = field.containing_oneof
            group = oneof.name if oneof is not None and len(oneof.fields) > 1 else None
            parts.append((field.name, read, group))
        elif written[number].type != F.TYPE_GROUP:
            parts.append(("", _skipped(written[number]), None))

    def read_all(cursor: Cursor) -> dict[str, pa.Array]:
        columns = {}
        groups: dict[str, np.ndarray] = {}
        for name, read, group in parts:
            columns[name], found = read(cursor)
            if group is not None:
                if group in groups:
                    # If a message has two members of a oneof, the last one counts: leave it to upb.
                    cursor.refuse(groups[group] & found)
                    found = found | groups[group]
                groups[group] = found
        cursor.finish()
        return columns

    return read_all


def _skipped(field: Any) -> Field:
    """Return a function that skips a field that only the writer's schema has."""
    wire = LEN if field.is_packed else wire_type(field)

    def read(cursor: Cursor) -> tuple[pa.Array, np.ndarray]:
        counts, _ = unpacked(cursor, tag(field.number, wire), wire)
        return pa.nulls(len(cursor)), counts > 0

    return read


def _field(writer: Any, reader: Any, kind: Kind, level: int) -> Field:
    if isinstance(kind, Map):
        return _elements(writer, kind, _entry(writer.message_type, reader, kind, level), LEN)
    if isinstance(kind, List):
        wire = wire_type(reader)
        item = _value(writer, reader, kind.item, level)
        return _elements(writer, kind, lambda cursor: [item(cursor)], wire)
    return _single(reader, kind, _value(writer, reader, kind, level))


def _single(field: Any, kind: Kind, value: Read) -> Field:
    wire = wire_type(field)
    own = tag(field.number, wire)
    is_null = field.type == F.TYPE_MESSAGE or (
        field.has_presence and not (field.is_required or field.has_default_value)
    )
    absent = pa.scalar(None, kind.arrow) if is_null else _default(field, kind)

    def read(cursor: Cursor) -> tuple[pa.Array, np.ndarray]:
        found = cursor.follows(own)
        chosen = np.flatnonzero(found)
        if field.is_required:
            cursor.refuse(~found)
        if not len(chosen):
            return pa.repeat(absent, len(cursor)), found
        some = cursor if len(chosen) == len(cursor) else cursor.some(chosen)
        some.move(len(own))
        array = value(some.inside() if wire == LEN else some)
        if some is cursor:
            return array, found
        cursor.at[chosen] = some.at
        array = placed([array], [chosen], len(cursor), kind.arrow)
        return array.fill_null(absent) if absent.is_valid else array, found

    return read


def _default(field: Any, kind: Kind) -> pa.Scalar:
    return kind.array([field.default_value])[0]


def _elements(
    writer: Any, kind: Kind, values: Callable[[Cursor], list[pa.Array]], wire: int
) -> Field:
    """Return a function that reads a repeated field, which is empty in messages without it."""
    elements, prefix = (packed, LEN) if writer.is_packed and wire != LEN else (unpacked, wire)
    own = tag(writer.number, prefix)

    def read(cursor: Cursor) -> tuple[pa.Array, np.ndarray]:
        counts, inner = elements(cursor, own, wire)
        array = containers(cursor, offsets_of(counts), kind.arrow, values(inner))
        return array, counts > 0

    return read


def _entry(writer: Any, field: Any, kind: Map, level: int) -> Callable[[Cursor], list[pa.Array]]:
    """Return a function that reads a map's entries, and refuses those without key or value."""
    parts = []
    for name, own in (("key", kind.key), ("value", kind.value)):
        reader = field.message_type.fields_by_name[name]
        given = writer.fields_by_number.get(reader.number, reader)
        parts.append(_single(reader, own, _value(given, reader, own, level)))
    no_key = _default(field.message_type.fields_by_name["key"], kind.key)

    def read(cursor: Cursor) -> list[pa.Array]:
        (keys, has_key), (values, has_value) = (part(cursor) for part in parts)
        cursor.refuse(~(has_key & has_value))
        cursor.finish()
        # Arrow allows no null keys. Only refused rows have any.
        return [keys.fill_null(no_key) if keys.null_count else keys, values]

    return read


def _value(writer: Any, reader: Any, kind: Kind, level: int) -> Read:
    """Return a function that reads one value: a number, or all bytes left in the cursor."""
    if isinstance(kind, Message):
        return _message(writer.message_type, reader.message_type, kind, level + 1)
    if isinstance(kind, Time):
        return _time(reader.message_type, kind, level)
    if isinstance(kind, Wrapper):
        return _wrapper(reader.message_type, kind, level)
    return _leaf(reader.type, kind)


def _leaf(type_: int, kind: Any) -> Read:
    if type_ == F.TYPE_STRING:
        return lambda cursor: read_texts(cursor, cursor.rest())
    if type_ == F.TYPE_BYTES:
        return lambda cursor: cursor.rest()
    number = numbers(type_)
    if not isinstance(kind, Enum):
        return lambda cursor: kind.array(number(cursor))
    known = np.array([*kind.names], np.int32)

    def names(cursor: Cursor) -> pa.Array:
        values = number(cursor)
        # upb treats unknown numbers of a closed enum as unknown fields.
        cursor.refuse(~np.isin(values, known))
        return kind.array(values)

    return names


def _time(descriptor: Any, kind: Time, level: int) -> Read:
    check_time(descriptor)
    kinds = {field.name: Kind(*SCALARS[field.type]) for field in descriptor.fields}
    read = _fields(descriptor, descriptor, kinds, level + 1)

    def times(cursor: Cursor) -> pa.Array:
        columns = read(cursor)
        seconds, nanos = (np.asarray(columns[name]).astype(np.int64) for name in kinds)
        wrong = kind.wrong(seconds, nanos)
        cursor.refuse(wrong)
        return kind.column(np.where(wrong, 0, seconds), nanos, np.zeros(len(cursor), bool))

    return times


def _wrapper(descriptor: Any, kind: Wrapper, level: int) -> Read:
    check_wrapper(descriptor)
    read = _fields(descriptor, descriptor, {"value": kind.inner}, level + 1)
    return lambda cursor: read(cursor)["value"]
