"""Reads and writes JSON by column: all rows of a batch together.

Doubtful rows are left to `json_schema`, which handles rows one by one and reports their errors.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos.schemas.columns import offsets_of
from spark_eos.schemas.cursor import bounds_and_bytes
from spark_eos.schemas.formats import OneByOne, Together
from spark_eos.schemas.json_kinds import Date, DateTime, Object
from spark_eos.schemas.kinds import Kind, judged, typed
from spark_eos.schemas.nested import List, Map

# Integers that a double may round: those beyond 64 bits, which orjson reads as doubles, and those
# with a decimal point or an exponent after many digits. `json_schema` reads all of them exactly.
_ROUNDED: Final = r"(^|[:,\[\s])(-[0-9]{19}|-?([0-9]{20}|[0-9]{16,}\.|[0-9.]{9,}[eE]))"
# Number of rows parsed at a time: few enough that their values stay in the processor's cache.
_PARSED: Final = 200
# Range of the doubles that Arrow writes like orjson, except for the ".0" of whole numbers.
_PLAIN: Final = (1e-3, 1e9)
_ESCAPED: Final = r'["\\\x00-\x1f]'


def _text(value: str | float) -> str:
    return orjson.dumps(value).decode()


def columns_of(kind: Kind, valid: Callable[[Any], bool]) -> Together:
    """Return a function that converts payloads to a column; raise OneByOne for maps."""
    raw = _raw_type(kind)

    def convert(array: pa.Array) -> pa.Array:
        return _from_raw(kind, array.take(np.arange(len(array))) if array.offset else array)

    def columns(payloads: pa.Array) -> tuple[pa.Array, np.ndarray]:
        left = np.asarray(pc.match_substring_regex(payloads, _ROUNDED)).copy()
        arrays = [pa.nulls(0, raw)]
        for begin in range(0, len(payloads), _PARSED):
            part = payloads[begin : begin + _PARSED]
            values, bad = _parsed(part, left[begin : begin + _PARSED], valid)
            made, errors = judged(lambda rows: pa.array(rows, raw), values)
            left[[begin + row for row in (*bad, *errors)]] = True
            arrays += [pa.nulls(1, raw) if array is None else array for array in made]
        converted, errors = judged(convert, pa.concat_arrays(arrays))
        left[[*errors]] = True
        arrays = [pa.nulls(1, kind.arrow) if array is None else array for array in converted]
        return pa.concat_arrays(arrays), np.flatnonzero(left)

    return columns


def _parsed(
    payloads: pa.Array, left: np.ndarray, valid: Callable[[Any], bool]
) -> tuple[list[Any], list[int]]:
    """Return values, with None for rows that are left out or invalid; and the invalid rows."""
    values, bad = [], []
    load = orjson.loads
    for row, (payload, is_left) in enumerate(zip(payloads.to_pylist(), left.tolist(), strict=True)):
        value = None
        if not is_left:
            try:
                value = load(payload)
            except ValueError:
                bad.append(row)
            else:
                if not valid(value):
                    bad.append(row)
                    value = None
        values.append(value)
    return values, bad


def _raw_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type of parsed values, in which dates are still strings."""
    if isinstance(kind, Object):
        return pa.struct([(name, _raw_type(part)) for name, part in kind.fields.items()])
    if isinstance(kind, List):
        return pa.list_(_raw_type(kind.item))
    if isinstance(kind, Map):
        raise OneByOne  # Arrow can't convert a Python dict to a map.
    return pa.string() if isinstance(kind, Date | DateTime) else kind.arrow


def _from_raw(kind: Kind, array: pa.Array) -> pa.Array:
    if array.type == kind.arrow:
        return array
    if isinstance(kind, Object):
        parts = zip(kind.fields.values(), range(array.type.num_fields), strict=True)
        children = [_from_raw(part, array.field(number)) for part, number in parts]
        fields = [*kind.arrow]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if isinstance(kind, List):
        items = _from_raw(kind.item, array.values)
        buffers = array.buffers()[:2]
        return pa.Array.from_buffers(kind.arrow, len(array), buffers, children=[items])
    return kind.array(array)


def rows_of(kind: Kind, valid: Callable[[Any], bool] | None) -> Together:
    """Return a function that converts a column to payloads; raise OneByOne for maps.

    ``valid`` is None if all of the column's values are valid.
    """
    _raw_type(kind)

    def rows(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
        texts = _texts(kind, array)
        is_valid = array.is_valid()
        payloads = texts.joined().cast(pa.binary())
        if array.null_count:
            payloads = pc.if_else(is_valid, payloads, None)
        doubtful = texts.doubtful & np.asarray(is_valid)
        if valid is not None:
            for row, payload in enumerate(payloads.to_pylist()):
                if not (payload is None or doubtful[row]):
                    doubtful[row] = not valid(orjson.loads(payload))
        return payloads, np.flatnonzero(doubtful)

    return rows


class _Texts:
    """The JSON texts of values, as parts to join: arrays, and strings that all values share."""

    def __init__(self, parts: list[Any], length: int, doubtful: np.ndarray | None = None) -> None:
        self.parts = parts
        self.length = length
        self.doubtful = np.zeros(length, bool) if doubtful is None else doubtful

    def joined(self) -> pa.Array:
        """Return one text for each value; null where an array is null."""
        if len(self.parts) == 1 and not isinstance(self.parts[0], str):
            return self.parts[0]
        merged: list[Any] = []
        for part in self.parts:
            if isinstance(part, str) and merged and isinstance(merged[-1], str):
                merged[-1] += part
            else:
                merged.append(part)
        if all(isinstance(part, str) for part in merged):
            return pa.array(["".join(merged)] * self.length, pa.string())
        return pc.binary_join_element_wise(*merged, "")


def _texts(kind: Kind, array: pa.Array) -> _Texts:
    """Return the texts of a column's values; the text of a null is null or arbitrary."""
    array = typed(array, kind.arrow)
    if isinstance(kind, Object):
        return _object_texts(kind, array)
    if isinstance(kind, List):
        return _list_texts(kind, array)
    if isinstance(kind, Date | DateTime):
        texts, doubtful = kind.texts(array)
        return _Texts(['"', texts, '"'], len(array), doubtful)
    if pa.types.is_string(kind.arrow):
        return _string_texts(array)
    if pa.types.is_floating(kind.arrow):
        return _float_texts(array.cast(kind.arrow))
    return _Texts([array.cast(pa.string())], len(array))


def _string_texts(array: pa.Array) -> _Texts:
    array = array.cast(pa.string())
    array.validate(full=True)  # Raises if a text is not UTF-8.
    plain = _Texts(['"', array, '"'], len(array))
    # Regular expressions are slow, so look at all bytes together first.
    if not _may_need_escapes(array):
        return plain
    escaped = pc.match_substring_regex(array, _ESCAPED).fill_null(False)  # noqa: FBT003
    if not escaped.true_count:
        return plain
    texts = pc.binary_join_element_wise('"', array, '"', "")
    quoted = pa.array([_text(text) for text in array.filter(escaped).to_pylist()], pa.string())
    return _Texts([pc.replace_with_mask(texts, escaped, quoted)], len(array))


def _may_need_escapes(array: pa.Array) -> bool:
    """Return False if no text of a column has a byte that JSON escapes."""
    if not len(array):
        return False
    _, content = bounds_and_bytes(array)
    quoted = any((content == ord(mark)).any() for mark in '"\\')
    return quoted or bool(content.min(initial=ord(" ")) < ord(" "))


def _float_texts(array: pa.Array) -> _Texts:
    values = np.asarray(array.fill_null(0.0))
    least, greatest = _PLAIN
    size = np.abs(values)
    plain = (size >= least) & (size < greatest) | (values == 0)
    whole = pa.array(values == np.rint(values))
    texts = array.cast(pa.string())
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if not plain.all():
        others = [_text(value) for value in values[~plain].tolist()]
        texts = pc.replace_with_mask(texts, pa.array(~plain), pa.array(others, pa.string()))
    return _Texts([texts], len(array), ~np.isfinite(values))


def _list_texts(kind: List, array: pa.Array) -> _Texts:
    items = array.flatten()
    own = _texts(kind.item, items)
    texts, doubtful = own.joined(), own.doubtful
    if items.null_count:
        is_null = np.asarray(items.is_null())
        doubtful = doubtful & ~is_null if kind.item.nullable else doubtful | is_null
        texts = pc.if_else(items.is_valid(), texts, "null")
    sizes = np.asarray(pc.list_value_length(array).fill_null(0))
    offsets = pa.array(offsets_of(sizes), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, texts, mask=array.is_null())
    rows = np.zeros(len(array), bool)
    rows[np.repeat(np.arange(len(array)), sizes)[doubtful]] = True
    return _Texts(["[", pc.binary_join(lists, ","), "]"], len(array), rows)


def _object_texts(kind: Object, array: pa.Array) -> _Texts:
    parts: list[Any] = []
    doubts = []
    for field, column in zip(array.type, array.flatten(), strict=True):
        own = kind.fields[field.name]
        texts = _texts(own, column)
        name = f",{_text(field.name)}:"
        is_null = np.asarray(column.is_null())
        if not column.null_count:
            parts += [name, *texts.parts]
        elif field.name in kind.left_out:
            text = _Texts([name, *texts.parts], len(array)).joined()
            parts.append(pc.if_else(column.is_valid(), text, ""))
        else:
            parts += [name, pc.if_else(column.is_valid(), texts.joined(), "null")]
            if not own.nullable:
                doubts.append(is_null)
        doubts.append(texts.doubtful & ~is_null)
    written = {field.name for field in array.type}
    parts += [f",{_text(name)}:null" for name in kind.nulls if name not in written]
    doubtful = reduce(np.logical_or, doubts, np.zeros(len(array), bool))
    if parts and isinstance(parts[0], str):
        parts[0] = "{" + parts[0][1:]
    elif parts:
        joined = _Texts(parts, len(array)).joined()
        parts = [pc.binary_replace_slice(joined, start=0, stop=1, replacement="{")]
    else:
        parts = ["{"]
    return _Texts([*parts, "}"], len(array), doubtful)
