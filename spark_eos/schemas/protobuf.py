"""Protobuf: reads and writes a batch's messages together, or one by one with upb."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError, EncodeError
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import Format, Schema, Together
from spark_eos.schemas.kinds import BadValueError, Kind, Place, said
from spark_eos.schemas.protobuf_changes import check_readable
from spark_eos.schemas.protobuf_columns import columns_of
from spark_eos.schemas.protobuf_files import file_of
from spark_eos.schemas.protobuf_kinds import is_map, message_kind
from spark_eos.schemas.protobuf_rows import rows_of

_KIND: Final = "PROTOBUF"
_FIRST: Final = (0,)
# Maximum nesting of a message's definition; protoc allows 32 levels.
_DEEPEST: Final = 100
# Maximum number of bytes of an integer of 32 bits.
_LONGEST: Final = 5
_ID: Final = SchemaId("", 0).id_to_bytes()

Indexes = tuple[int, ...]
"""A message's index at each level of nesting; written between schema id and message."""


class Protobuf(Format):
    """The format ``PROTOBUF``: a schema with messages, one of which is used."""

    title = "Protobuf schema"

    def __init__(self, schema: Schema) -> None:
        file = file_of(schema)
        self._pool = file.pool
        # Full names of messages, by indexes.
        self._messages = dict(_messages(file))
        if not self._messages:
            raise SchemaError("the Protobuf schema has no message")
        self.listed = ", ".join(self._messages.values())
        self.name = schema.message or next(iter(self._messages.values()))
        indexes = self.indexes(self.name)
        if indexes is None:
            raise SchemaError(f"the schema has no message {self.name!r}; it has {self.listed}")
        self.prefix = _prefix(indexes)

    def descriptor(self, name: str) -> Any:
        """Return the descriptor of a message."""
        return self._pool.FindMessageTypeByName(name)

    def indexes(self, name: str) -> Indexes | None:
        """Return the indexes of a message; None if there is no message of that name."""
        return next((place for place, own in self._messages.items() if own == name), None)

    def _kind(self) -> Kind:
        return message_kind(self.descriptor(self.name), Place())

    def records(self, payloads: pa.Array) -> dict[str, np.ndarray]:
        """Return rows by message name, which is empty if the indexes are invalid or unknown."""
        rows: dict[str, list[int]] = defaultdict(list)
        # Most records have the file's first message: find them without parsing indexes.
        is_first = np.asarray(pc.starts_with(payloads, pattern=_prefix(_FIRST)))
        if is_first.any():
            rows[self._messages[_FIRST]] = np.flatnonzero(is_first).tolist()
        others = np.flatnonzero(~is_first)
        for row, payload in zip(
            others.tolist(), payloads.take(pa.array(others)).to_pylist(), strict=True
        ):
            try:
                indexes, _ = _split(payload)
            except ValueError:
                indexes = ()
            rows[self._messages.get(indexes, "")].append(row)
        # Rows of the first message may have been found in either way.
        return {name: np.sort(np.array(own)) for name, own in rows.items()}

    def _columns(self, writer: "Protobuf") -> Together:
        prefix = _prefix(writer.indexes(self.name) or ())
        own, other = self.descriptor(self.name), writer.descriptor(self.name)
        return columns_of(other, own, self.kind, prefix)

    def _rows(self, _column: T.DataType) -> Together:
        return rows_of(self.descriptor(self.name), self.kind)

    def _reader(self, writer: "Protobuf") -> Callable[[bytes], Any]:
        own = writer.indexes(self.name)
        if own is None:
            raise SchemaError(
                f"it has no message {self.name}; it has {writer.listed}. Name the reader's "
                "message with message="
            )
        descriptor = self.descriptor(self.name)
        check_readable(writer.descriptor(self.name), descriptor)
        prefix, make = _prefix(own), message_factory.GetMessageClass(descriptor)
        begin, parse, may_lack = len(prefix), make.FromString, _requires(descriptor)

        def read(payload: bytes) -> Any:
            if payload.startswith(prefix):
                message = parse(payload[begin:])
            else:
                # The indexes may be encoded in an unusual way.
                indexes, rest = _split(payload)
                if indexes != own:
                    raise BadValueError(writer.other(indexes, self.name))
                message = parse(rest)
            # Call methods of the class: an attribute of the message may be a field.
            if may_lack and not make.IsInitialized(message):
                missing = ", ".join(_missing(message))
                raise BadValueError(f"it lacks required fields: {missing}")
            return message

        return read

    def other(self, indexes: Indexes, name: str) -> str:
        """Return the error text for a message other than the expected one."""
        message = self._messages.get(indexes)
        which = "of no message of its schema" if message is None else f"a {message}"
        return f"it is {which}, by its message indexes {[*indexes]}, not a {name}"

    def _writer(self) -> Callable[[Any], bytes]:
        def write(message: Any) -> bytes:
            # Sort maps, so that a batch that is computed again has the same bytes.
            written: bytes = type(message).SerializeToString(message, deterministic=True)
            return written

        return write

    def _unread(self, error: Exception) -> str:
        if isinstance(error, DecodeError):
            return f"it is truncated, or does not match its schema: {error}"
        return said(error)

    def _unwritten(self, error: Exception) -> str:
        return str(error) if isinstance(error, EncodeError) else said(error)


def _messages(file: Any) -> Iterator[tuple[Indexes, str]]:
    """Yield the indexes and full name of each message, top-level messages first."""
    whole = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(whole)
    level: list[tuple[Indexes, str, Any]] = [
        ((place,), whole.package, message) for place, message in enumerate(whole.message_type)
    ]
    while level:
        inner: list[tuple[Indexes, str, Any]] = []
        for place, prefix, message in level:
            full = f"{prefix}.{message.name}" if prefix else message.name
            yield place, full
            nested = enumerate(message.nested_type)
            inner += [((*place, number), full, other) for number, other in nested]
        level = inner


def _prefix(indexes: Indexes) -> bytes:
    r"""Return the bytes before a message; ``\0`` for the first message of a file."""
    return SchemaId(_KIND, 0, None, [*indexes]).id_to_bytes()[len(_ID) :]


def _split(payload: bytes) -> tuple[Indexes, bytes]:
    """Split a payload into its message indexes and its message."""
    count, at = _zigzag(payload, 0)
    if not 0 <= count <= _DEEPEST:
        raise BadValueError("its message indexes can't be read")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(payload, at)
        indexes.append(index)
    return tuple(indexes or _FIRST), payload[at:]


def _zigzag(payload: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag integer of 32 bits; return it with the place after it."""
    # Confluent's client reads integers of any length, which takes minutes for a megabyte of 0xff.
    raw = 0
    for place, byte in enumerate(payload[at : at + _LONGEST]):
        raw |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + place + 1
    raise BadValueError("its message indexes can't be read")


def _missing(message: Any) -> Iterator[str]:
    """Yield the paths of required fields that a message lacks.

    upb's own FindInitializationErrors crashes the process if the message has maps of scalars.
    """
    has = type(message).HasField
    for field in type(message).DESCRIPTOR.fields:
        if field.is_required and not has(message, field.name):
            yield field.name
        elif field.message_type is not None:
            for step, inner in _inner(message, field):
                yield from (f"{field.name}{step}.{path}" for path in _missing(inner))


def _inner(message: Any, field: Any) -> Iterator[tuple[str, Any]]:
    """Yield the messages in a field, and the index or key of each if there may be several."""
    value = getattr(message, field.name)
    if is_map(field):
        if field.message_type.fields_by_name["value"].message_type is not None:
            yield from ((f"[{key}]", value[key]) for key in value)
    elif field.is_repeated:
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif type(message).HasField(message, field.name):
        yield "", value


def _requires(descriptor: Any) -> bool:
    """Return True if a message, or a message within it, has required fields."""
    left, met = [descriptor], {descriptor.full_name}
    while left:
        for field in left.pop().fields:
            if field.is_required:
                return True
            if field.message_type and field.message_type.full_name not in met:
                met.add(field.message_type.full_name)
                left.append(field.message_type)
    return False
