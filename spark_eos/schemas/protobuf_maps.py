"""Writes columns of maps as Protobuf's map entries, in upb's order."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as F

from spark_eos.schemas.columns import Write, repeated_keys
from spark_eos.schemas.cursor import unzigzag
from spark_eos.schemas.formats import OneByOne
from spark_eos.schemas.nested import Map
from spark_eos.schemas.protobuf_leaves import Style, add_content, raw_of
from spark_eos.schemas.protobuf_wire import LEN, tag, wire_type
from spark_eos.schemas.sheet import Sheet

# Keys that distinguish upb's order from other orders.
_TEXTS: Final = ["", "b", "a", "ab", "aa", "aab", "\0", "a\0", "\u00e9", "zzzz"]
_INTEGERS: Final = [5, 0, 300, 2, 128, 1, 2**31 - 1]
_NEGATIVE: Final = [-1, -5, -(2**31)]
_SIGNED: Final = {
    *(F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32),
    *(F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64),
}

Value = Callable[[Any, Any, Style], Write]
"""Makes a function that writes a field's values, given its descriptor, kind and style."""


def map_entries(field: Any, kind: Map, value: Value) -> Write:
    """Return a function that writes a map as upb does."""
    fields = [field.message_type.fields_by_name[name] for name in ("key", "value")]
    parts = [
        value(own, inner, Style(tag(own.number, wire_type(own))))
        for own, inner in zip(fields, (kind.key, kind.value), strict=True)
    ]
    style = Style(tag(field.number, LEN))
    order_of = _by_text if fields[0].type == F.TYPE_STRING else _by_number(fields[0], kind)

    def write(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        valid = present & np.asarray(array.is_valid())
        sheet.refuse(present & ~valid)
        offsets = np.asarray(array.offsets).astype(np.int64)
        counts = np.diff(offsets)
        # Refuse rows in which a null map has entries.
        sheet.refuse((counts > 0) & ~valid)
        first, last = offsets[0], offsets[-1]
        columns = [array.keys[first:last], array.items[first:last]]
        sheet.refuse_some(repeated_keys(columns[0], counts))
        if len(counts) and counts.max() > 1:
            order = order_of(np.repeat(np.arange(len(counts)), counts), columns[0])
            columns = [column.take(order) for column in columns]
        entries = Sheet(np.repeat(sheet.rows, counts), sheet.bad)
        inner, every = Sheet(entries.rows, sheet.bad), np.ones(len(entries), bool)
        for part, column in zip(parts, columns, strict=True):
            part(inner, column, every)
        add_content(entries, style, inner.joined(), every)
        sheet.add(entries.joined_by(offsets - first))

    _check_order(field, kind, write)
    return write


def _by_text(maps: np.ndarray, keys: pa.Array) -> pa.Array:
    """Return the order of entries by map and key; a key follows longer keys that begin with it."""
    # This byte is greater than any byte in a text.
    ended = pc.binary_join_element_wise(keys.cast(pa.binary()), b"\xff", b"")
    table = pa.table({"map": maps, "key": ended})
    return pc.sort_indices(table, [("map", "ascending"), ("key", "ascending")])


def _by_number(field: Any, kind: Map) -> Callable[[np.ndarray, pa.Array], pa.Array]:
    """Return a function like `_by_text` for numbers: the greatest first, compared as unsigned."""
    to_raw = raw_of(field.type, kind.key)

    def order(maps: np.ndarray, keys: pa.Array) -> pa.Array:
        sheet = Sheet(np.arange(len(keys)), np.zeros(len(keys), bool))
        raw = to_raw(sheet, keys, np.ones(len(keys), bool))
        if field.type in {F.TYPE_SINT32, F.TYPE_SINT64}:
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
