"""Finds and adds schema ids, as Confluent's serializers do: before the payload or in a header."""

import struct
import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos.schemas.cursor import Batch, Cursor

SchemaKey = int | uuid.UUID
"""A schema's id, or its GUID."""

# Length of an id including its first byte, which shows whether it is a GUID.
_LENGTHS: Final = {0: 5, 1: 17}
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Header names that are not UTF-8 stay unchanged.
_RAW_TYPE: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


class Group(NamedTuple):
    """The rows written with one schema: their numbers, in order, and their bytes after the id."""

    key: SchemaKey
    rows: np.ndarray
    payloads: pa.Array


class Framed(NamedTuple):
    """A batch's records by schema, and the errors of other records; nulls are in neither."""

    groups: list[Group]
    errors: dict[int, str]


def header_name(column: str) -> str:
    """Return the name of the header that holds the schema ids of a column's records."""
    return "__key_schema_id" if column == "key" else "__value_schema_id"


def prefix_of(number: int) -> bytes:
    """Return a schema id as the bytes that precede a payload."""
    return struct.pack(">bI", 0, number)


def header_of(guid: str) -> bytes:
    """Return a schema's GUID as the value of a header."""
    return b"\x01" + uuid.UUID(guid).bytes


def framed(values: pa.Array, headers: pa.Array | None, column: str) -> Framed:
    """Group a batch's records by schema; an id in a header takes precedence over the prefix."""
    name = header_name(column)
    found, whole = _headers_with_id(headers, name), values
    if found is not None:
        # The order is the same as without headers: id, Protobuf's message indexes, message.
        found = found.cast(values.type)
        together = pc.binary_join_element_wise(found, values, pa.scalar(b"", values.type))
        whole = pc.coalesce(together, values)
    cursor = Batch(whole).cursor()
    room = cursor.left()
    if found is not None:
        # An id must not extend from a header into the value.
        room = np.asarray(pc.binary_length(pc.coalesce(found, values)).fill_null(0))
    first, unframed = cursor.byte(), np.asarray(values.is_valid())
    groups: list[Group] = []
    for kind, length in _LENGTHS.items():
        of_kind = unframed & (first == kind) & (room >= length)
        if of_kind.any():
            groups += _groups(cursor.some(of_kind), length - 1)
            unframed = unframed & ~of_kind
    errors: dict[int, str] = {}
    for row in np.flatnonzero(unframed).tolist():
        header = None if found is None else found[row].as_py()
        if header is None:
            errors[row] = _fault(values[row].as_py())
        else:
            errors[row] = f"header {name} has {len(header)} bytes that are not a schema id"
    return Framed(groups, errors)


def _groups(cursor: Cursor, length: int) -> Iterator[Group]:
    """Read ids, without their first byte; yield the records of each id."""
    words = [cursor.number(">u4") for _ in range(length // 4)]
    left = np.ones(len(cursor), bool)
    while left.any():
        row = int(np.argmax(left))
        same = np.logical_and.reduce([word == word[row] for word in words])
        records = cursor if same.all() else cursor.some(same)
        yield Group(_key([int(word[row]) for word in words]), records.rows, records.rest())
        left &= ~same


def _key(words: list[int]) -> SchemaKey:
    return words[0] if len(words) == 1 else uuid.UUID(bytes=struct.pack(">4I", *words))


def _fault(value: bytes) -> str:
    if not value:
        return "the value is empty: it has no schema id"
    if value[0] in _LENGTHS:
        return f"the value ends within its schema id, after {len(value)} bytes"
    return (
        f"the value begins with byte 0x{value[0]:02x}, not with a schema id (0x00 or 0x01), and no "
        "header has one; read with include_headers=True if ids are in headers"
    )


def _headers_with_id(headers: pa.Array | None, name: str) -> pa.Array | None:
    """Return the value of each row's last header of the given name; None if no row has one."""
    if headers is None:
        return None
    # Confluent's serializers append their header, so an earlier one is of another content.
    keys, contents = headers.flatten().flatten()
    chosen = pc.equal(keys, name).fill_null(False)  # noqa: FBT003
    parents = np.asarray(pc.list_parent_indices(headers).filter(chosen))
    if not len(parents):
        return None
    places = np.full(len(headers), -1)
    places[parents] = np.arange(len(parents))
    return contents.filter(chosen).take(pa.array(places, mask=places < 0))


def with_header(headers: pa.Array | None, name: str, values: list[bytes | None]) -> pa.Array:
    """Set the named header in each row, or remove it if the row's value is None."""
    if headers is None:
        headers = pa.nulls(len(values), HEADERS_TYPE)
    elif not any(values) and _headers_with_id(headers, name) is None:
        return headers
    raw, own, contents = headers.cast(_RAW_TYPE), name.encode(), pa.array(values, pa.binary())
    entries = raw.flatten()
    # An old header would give readers the schema of the record's previous content.
    kept = pc.not_equal(entries.flatten()[0], own).fill_null(True)  # noqa: FBT003
    added = np.flatnonzero(np.asarray(contents.is_valid()))
    names = pa.array([own] * len(added), pa.binary())
    fields = [*_RAW_TYPE.value_type]
    more = pa.StructArray.from_arrays([names, contents.drop_null()], fields=fields)
    parents = np.concatenate([np.asarray(pc.list_parent_indices(raw).filter(kept)), added])
    counts = np.bincount(parents, minlength=len(values))
    made = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()),
        pa.concat_arrays([entries.filter(kept), more]).take(np.argsort(parents, kind="stable")),
        type=_RAW_TYPE,
        mask=pa.array(np.asarray(raw.is_null()) & (counts == 0)),
    )
    return made.view(HEADERS_TYPE).cast(headers.type)
