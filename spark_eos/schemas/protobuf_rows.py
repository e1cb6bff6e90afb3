"""Writes all rows of a batch as Protobuf messages at once, for ordinary schemas and rows.

As in `protobuf_columns`, doubtful rows are left to upb, which also reports their errors.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos.schemas.columns import Write, offsets_of, writing
from spark_eos.schemas.formats import OneByOne, Together
from spark_eos.schemas.kinds import Kind, typed
from spark_eos.schemas.nested import List, Map
from spark_eos.schemas.protobuf_kinds import SCALARS, Message, Time, Wrapper
from spark_eos.schemas.protobuf_leaves import Style, add_content, leaf
from spark_eos.schemas.protobuf_maps import map_entries
from spark_eos.schemas.protobuf_wire import LEN, check_time, check_wrapper, tag, wire_type
from spark_eos.schemas.sheet import Sheet

_DEEPEST: Final = 50


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
        return map_entries(field, kind, lambda inner, own, style: _value(inner, own, style, level))
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
        write = _message(style, leaf(inner, kind.inner, own))
    else:
        write = leaf(field, kind, style)

    def checked(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        if array.null_count:
            valid = present & np.asarray(array.is_valid())
            if not kind.nullable:
                sheet.refuse(present & ~valid)
            present = valid
        write(sheet, array, present)

    return checked


def _message(style: Style, fields: Write) -> Write:
    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        inner = Sheet(sheet.rows, sheet.bad)
        fields(inner, array, present)
        add_content(sheet, style, inner.joined(), present)

    return write


def _time(descriptor: Any, kind: Time) -> Write:
    check_time(descriptor)
    parts = {
        name: leaf(
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

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        sheet.refuse(present & np.asarray(array.is_null()))
        counts = np.asarray(pc.list_value_length(array).fill_null(0))
        inner = Sheet(np.repeat(sheet.rows, counts), sheet.bad)
        item(inner, array.flatten(), np.ones(len(inner), bool))
        content = inner.joined_by(offsets_of(counts))
        if field.is_packed:
            add_content(sheet, style, content, counts > 0)
        else:
            sheet.add(content)

    return write
