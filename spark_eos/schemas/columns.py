"""Helpers for formats that read or write all rows of a batch together, as Arrow columns."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos._worker.records import is_utf8
from spark_eos.schemas.cursor import Batch, Cursor
from spark_eos.schemas.formats import Together
from spark_eos.schemas.sheet import Sheet

Read = Callable[[Cursor], pa.Array]
"""Reads the next value of each record into a column of the type in the reader's schema."""

Write = Callable[[Sheet, pa.Array, np.ndarray], None]
"""Writes a column's values where a mask is true; elsewhere the column is null."""


def reading(read: Read, kind: pa.DataType, prefix: bytes = b"") -> Together:
    """Return a function that reads payloads, which begin with ``prefix``, into a column."""

    def columns(payloads: pa.Array) -> tuple[pa.Array, np.ndarray]:
        batch = Batch(payloads)
        cursor = batch.cursor()
        if prefix:
            cursor.refuse(~cursor.follows(prefix))
            cursor.move(len(prefix))
        column = read(cursor)
        cursor.finish()
        if column.type != kind:
            raise TypeError
        return column, np.flatnonzero(batch.bad)

    return columns


def writing(write: Write) -> Together:
    """Return a function that writes a column as payloads."""

    def rows(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
        sheet = Sheet(np.arange(len(array)), np.zeros(len(array), bool))
        valid = np.asarray(array.is_valid())
        write(sheet, array, valid)
        made = sheet.joined()
        if not valid.all():
            made = pc.if_else(pa.array(valid), made, pa.scalar(None, pa.binary()))
        return made, np.flatnonzero(sheet.bad & valid)

    return rows


def filled(write: Write, *, nullable: bool = False) -> Write:
    """Return a function that writes where the column is not null; refuse nulls if not allowed."""

    def checked(sheet: Sheet, array: pa.Array, present: np.ndarray) -> None:
        if array.null_count:
            valid = present & np.asarray(array.is_valid())
            if not nullable:
                sheet.refuse(present & ~valid)
            present = valid
        write(sheet, array, present)

    return checked


def of_values(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return a column without nulls; ``values`` must have Arrow's memory layout."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def values_of(array: pa.Array, code: str) -> np.ndarray:
    """Return a column's numbers, directly from its memory; a null becomes an arbitrary number."""
    numbers = np.frombuffer(array.buffers()[1] or b"", code)
    return numbers[array.offset : array.offset + len(array)]


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Return the offset of each container's first item, and the end of the last container."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def sizes_of(array: pa.Array) -> np.ndarray:
    """Return the number of bytes of each text; 0 for a null."""
    return np.asarray(pc.binary_length(array).fill_null(0))


def read_texts(cursor: Cursor, texts: pa.Array) -> pa.Array:
    """Return bytes as texts, and refuse rows that are not UTF-8."""
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    wrong = _not_utf8(texts)
    cursor.refuse(wrong)
    return pc.if_else(pa.array(wrong), pa.scalar(None, pa.binary()), texts).cast(pa.string())


def texts_to_write(sheet: Sheet, array: pa.Array) -> pa.Array:
    """Return texts as bytes, and refuse rows that are not UTF-8."""
    raw = array.cast(pa.binary())
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        sheet.refuse(_not_utf8(raw))
    return raw


def _not_utf8(texts: pa.Array) -> np.ndarray:
    contents = texts.to_pylist()
    return np.array([content is not None and not is_utf8(content) for content in contents], bool)


def containers(
    cursor: Cursor, offsets: np.ndarray, kind: pa.DataType, columns: list[pa.Array]
) -> pa.Array:
    """Return lists or maps of items; refuse rows whose map repeats a key."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    if not pa.types.is_map(kind):
        return pa.Array.from_buffers(kind, len(cursor), buffers, children=columns)
    # Among equal keys, the last one counts. The format's own code handles them.
    cursor.batch.refuse(cursor.rows[repeated_keys(columns[0], np.diff(offsets))])
    if columns[0].null_count:
        # Arrow allows no null keys. Only refused rows have any.
        columns[0] = columns[0].fill_null("")
    entries = pa.StructArray.from_arrays(columns, fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(cursor), buffers, children=[entries])


def entries_of(
    sheet: Sheet, maps: pa.Array, present: np.ndarray
) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Return each map's number of entries, and all keys and values; refuse maps that are odd."""
    offsets = np.asarray(maps.offsets).astype(np.int64)
    counts = np.diff(offsets)
    # A null map may have entries.
    sheet.refuse((counts > 0) & ~present)
    keys, items = (part[offsets[0] : offsets[-1]] for part in (maps.keys, maps.items))
    sheet.refuse_some(repeated_keys(keys, counts))
    return counts, keys, items


def places_in(known: pa.Array, sheet: Sheet, array: pa.Array, present: np.ndarray) -> np.ndarray:
    """Return the place of each text among the known ones; refuse others."""
    places = pc.index_in(array, value_set=known)
    sheet.refuse(present & np.asarray(places.is_null()))
    return np.asarray(places.fill_null(0))


def repeated_keys(keys: pa.Array, counts: np.ndarray) -> np.ndarray:
    """Return the numbers of maps that repeat a key; ``counts`` are the maps' numbers of keys."""
    if not len(counts) or counts.max() < 2:
        return np.zeros(0, np.int64)
    encoded = keys.dictionary_encode()
    codes = np.asarray(encoded.indices.fill_null(0)).astype(np.int64)
    maps = np.repeat(np.arange(len(counts)), counts)
    _, first = np.unique(maps * (len(encoded.dictionary) + 1) + codes, return_index=True)
    return np.delete(maps, first)
