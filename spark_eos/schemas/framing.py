"""Finds and adds schema ids, as Confluent's serializers do: before the payload or in a header."""

import struct
import uuid
from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_eos.schemas.cursor import Batch

SchemaKey = int | uuid.UUID
"""A schema's id, or its GUID."""

# Length of an id including its first byte, which shows whether it is a GUID.
_LENGTHS: Final = {b"\x00": 5, b"\x01": 17}
HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Header names that are not UTF-8 stay unchanged.
_RAW_TYPE: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


class Group(NamedTuple):
    """The numbers of the rows written with one schema, in order, and their bytes after the id."""

    key: SchemaKey
    rows: np.ndarray
    payloads: pa.Array


class Framed(NamedTuple):
    """A batch's records by schema, and the errors of other records; nulls are in neither."""

    groups: list[Group]
    errors: dict[int, str]


def header_name(column: str) -> str:
    """Return the name of the header with the schema id of a column's records."""
    return "__key_schema_id" if column == "key" else "__value_schema_id"


def prefix_of(number: int) -> bytes:
    """Return the bytes with a schema id that precede a payload."""
    return struct.pack(">bI", 0, number)


def header_of(guid: str) -> bytes:
    """Return the value of a header with a schema's GUID."""
    return b"\x01" + uuid.UUID(guid).bytes


def framed(values: pa.Array, headers: pa.Array | None, column: str) -> Framed:
    """Group a batch's records by schema; an id in a header takes precedence over the value's."""
    name = header_name(column)
    in_headers = _headers_with_id(headers, name)
    valid = np.asarray(values.is_valid())
    cursor = Batch(values).cursor()
    plain = valid & (cursor.byte() == 0)
    plain[[*in_headers]] = False
    numbers = cursor.number(">u4")
    plain &= cursor.left() >= 0
    made = []
    for number in np.unique(numbers[plain]).tolist():
        rows = np.flatnonzero(plain & (numbers == number))
        made.append(Group(number, rows, cursor.some(rows).rest()))
    errors: dict[int, str] = {}
    groups: dict[bytes, tuple[list[int], list[bytes]]] = defaultdict(lambda: ([], []))
    for row in np.flatnonzero(valid & ~plain).tolist():
        value, header = values[row].as_py(), in_headers.get(row)
        first = value if header is None else header
        length = _LENGTHS.get(first[:1], 0)
        if 0 < length <= len(first):
            # The order is the same as without headers: id, Protobuf's message indexes, message.
            whole = value if header is None else header + value
            own_rows, payloads = groups[whole[:length]]
            own_rows.append(row)
            payloads.append(whole[length:])
        elif header is None:
            errors[row] = _fault(value)
        else:
            errors[row] = f"header {name} has {len(header)} bytes that are not a schema id"
    made += [
        Group(_key(prefix[1:]), np.array(rows), pa.array(payloads, pa.binary()))
        for prefix, (rows, payloads) in groups.items()
    ]
    return Framed(made, errors)


def _fault(value: bytes) -> str:
    if not value:
        return "the value is empty: it has no schema id"
    if value[:1] in _LENGTHS:
        return f"the value ends within its schema id, after {len(value)} bytes"
    return (
        f"the value begins with byte 0x{value[0]:02x}, not with a schema id (0x00 or 0x01), and no "
        "header has one; read with include_headers=True if ids are in headers"
    )


def _key(raw: bytes) -> SchemaKey:
    return int.from_bytes(raw, "big") if len(raw) < 5 else uuid.UUID(bytes=raw)


def _headers_with_id(headers: pa.Array | None, name: str) -> dict[int, bytes]:
    """Return, by row, the value of the first header with that name."""
    if headers is None:
        return {}
    entries = headers.flatten()
    keys, contents = entries.flatten()
    chosen = pc.equal(keys, name).fill_null(False)  # noqa: FBT003
    if not pc.any(chosen).as_py():
        return {}
    rows = pc.list_parent_indices(headers).filter(chosen).to_pylist()
    prefixes: dict[int, bytes] = {}
    for row, value in zip(rows, contents.filter(chosen).to_pylist(), strict=True):
        if value is not None:
            prefixes.setdefault(row, value)
    return prefixes


def with_header(headers: pa.Array | None, name: str, values: list[bytes | None]) -> pa.Array:
    """Set the named header in each row, or remove it if the row's value is None."""
    if headers is None:
        entries = ([{"key": name, "value": content}] if content else None for content in values)
        return pa.array(list(entries), HEADERS_TYPE)
    if not any(values) and not _headers_with_id(headers, name):
        return headers
    own = name.encode()
    made: list[list[dict[str, bytes | None]] | None] = []
    for before, value in zip(headers.cast(_RAW_TYPE).to_pylist(), values, strict=True):
        # An old header would give readers the schema of the record's previous content.
        kept = [entry for entry in before or () if entry is None or entry["key"] != own]
        kept += [{"key": own, "value": value}] if value else []
        made.append(kept if kept or before is not None else None)
    return pa.array(made, _RAW_TYPE).view(HEADERS_TYPE).cast(headers.type)
