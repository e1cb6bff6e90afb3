"""Where a record has its schema's id: before its payload, or in a header; pure.

As Confluent's serializers write it: byte 0 and the id, or byte 1 and the schema's GUID, either
before the payload or as the value of a header.
"""

import struct
import uuid
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SchemaKey = int | uuid.UUID
"""A schema's id, or its GUID."""

_ID: Final = 0
_GUID: Final = 1
_ID_LENGTH: Final = 5
_GUID_LENGTH: Final = 17


class Group(NamedTuple):
    """Rows that one schema has written, in order.

    Attributes:
        key: The schema's id or GUID.
        rows: Their numbers.
        payloads: What follows the id, for each of them.
    """

    key: SchemaKey
    rows: np.ndarray
    payloads: pa.Array


class Framed(NamedTuple):
    """The records of a batch by schema, and what is wrong with the others; nulls are neither."""

    groups: list[Group]
    errors: dict[int, str]


def header_name(column: str) -> str:
    """The header with the schema id of a column's records.

    Example:
        >>> header_name("key"), header_name("value")
        ('__key_schema_id', '__value_schema_id')
    """
    return "__key_schema_id" if column == "key" else "__value_schema_id"


def prefix_of(number: int) -> bytes:
    r"""What precedes a payload.

    Example:
        >>> prefix_of(7)
        b'\x00\x00\x00\x00\x07'
    """
    return struct.pack(">bI", _ID, number)


def header_of(guid: str) -> bytes:
    r"""The value of a header with a schema's GUID.

    Example:
        >>> header_of("00000000-0000-0000-0000-000000000007")[:2]
        b'\x01\x00'
    """
    return bytes([_GUID]) + uuid.UUID(guid).bytes


def framed(values: pa.Array, headers: pa.Array | None, column: str) -> Framed:
    """Groups a batch's records by schema; an id in a header comes before one in the value."""
    found = _headers_with_id(headers, header_name(column))
    errors: dict[int, str] = {}
    groups: list[Group] = []
    in_headers: dict[tuple[SchemaKey, bytes], list[int]] = defaultdict(list)
    valid = np.asarray(values.is_valid())
    for row, header in found.items():
        key, length = _parsed(header)
        if not valid[row]:
            continue
        if key is None:
            errors[row] = (
                f"header {header_name(column)} holds no schema id, but {len(header)} bytes"
            )
        else:
            in_headers[key, header[length:]].append(row)
        valid[row] = False
    for (key, rest), rows in in_headers.items():
        taken = values.take(pa.array(rows))
        # As it is before a payload: id, Protobuf's message indexes, message.
        payloads = pc.binary_join_element_wise(rest, taken, b"") if rest else taken
        groups.append(Group(key, np.array(rows), payloads))
    _by_prefix(values, valid, groups, errors)
    return Framed(groups, errors)


def _by_prefix(
    values: pa.Array, valid: np.ndarray, groups: list[Group], errors: dict[int, str]
) -> None:
    offsets, data = _buffers(values)
    lengths = np.diff(offsets)
    starts = offsets[:-1]
    filled = valid & (lengths > 0)
    magic = np.full(len(values), -1)
    magic[filled] = data[starts[filled]]
    for first, length in ((_ID, _ID_LENGTH), (_GUID, _GUID_LENGTH)):
        rows = np.flatnonzero(valid & (magic == first) & (lengths >= length))
        if not len(rows):
            continue
        # The bytes of all ids, one row each.
        ids = np.ascontiguousarray(data[starts[rows, None] + np.arange(1, length)])
        ids = ids.view(f"V{length - 1}").ravel()
        whole, inverse = np.unique(ids, return_inverse=True)
        for number, raw in enumerate(whole):
            own = rows if len(whole) == 1 else rows[inverse == number]
            taken = values if len(own) == len(values) else values.take(pa.array(own))
            # Arrow's binary_slice fails on some arrays with values that have nothing left.
            payloads = pa.array([value[length:] for value in taken.to_pylist()], pa.binary())
            groups.append(Group(_key(raw.tobytes()), own, payloads))
        valid[rows] = False
    for row in np.flatnonzero(valid):
        errors[int(row)] = _fault(values[int(row)].as_py())


def _buffers(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """A binary array's offsets and bytes."""
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    begin, end = values.offset, values.offset + len(values) + 1
    # Arrays without rows or bytes may lack a buffer.
    found = np.zeros(1, width) if offsets is None else np.frombuffer(offsets, width)[begin:end]
    return found, np.frombuffer(data or b"", np.uint8)


def _fault(value: bytes) -> str:
    if not value:
        return "the value is empty: it has no schema id"
    if value[0] in {_ID, _GUID}:
        return f"the value ends within its schema id, after {len(value)} bytes"
    return (
        f"the value begins with byte 0x{value[0]:02x}, so not with the id of a schema (0x00 or "
        "0x01), and no header has one; read with include_headers=True if ids are in headers"
    )


def _parsed(raw: bytes) -> tuple[SchemaKey | None, int]:
    """The id or GUID that bytes begin with, None if with neither; and how many bytes it takes."""
    length = {_ID: _ID_LENGTH, _GUID: _GUID_LENGTH}.get(raw[0], 0) if raw else 0
    return (_key(raw[1:length]), length) if 0 < length <= len(raw) else (None, 0)


def _key(raw: bytes) -> SchemaKey:
    return int.from_bytes(raw, "big") if len(raw) < _ID_LENGTH else uuid.UUID(bytes=raw)


def _headers_with_id(headers: pa.Array | None, name: str) -> dict[int, bytes]:
    """The value of the first header of that name, by row."""
    if headers is None:
        return {}
    entries = headers.flatten()
    keys, contents = entries.flatten()
    chosen = pc.equal(keys, name).fill_null(False)  # noqa: FBT003
    if not pc.any(chosen).as_py():
        return {}
    rows = pc.list_parent_indices(headers).filter(chosen).to_pylist()
    found: dict[int, bytes] = {}
    for row, value in zip(rows, contents.filter(chosen).to_pylist(), strict=True):
        if value is not None:
            found.setdefault(row, value)
    return found


HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def with_header(headers: pa.Array | None, name: str, values: list[bytes | None]) -> pa.Array:
    """Headers with one of a name for each row, or none where the value is None.

    One that is there goes: it would tell readers the schema of what the record held before.
    """
    if headers is None:
        entries = ([{"key": name, "value": one}] if one else None for one in values)
        return pa.array(list(entries), HEADERS_TYPE)
    if not any(values) and not _headers_with_id(headers, name):
        return headers
    made: list[list[dict[str, bytes | str | None]] | None] = []
    for before, value in zip(headers.to_pylist(), values, strict=True):
        kept = [entry for entry in before or () if entry is None or entry["key"] != name]
        kept += [{"key": name, "value": value}] if value else []
        made.append(kept if kept or before is not None else None)
    return pa.array(made, headers.type)
