"""Protobuf: reads and writes messages by upb, field by field for all rows of a batch.

Between schema id and message are the message's indexes: its place in the file, and in the messages
that it is nested in.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import SerializationError
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.message import DecodeError, EncodeError
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import (
    BadValueError,
    CodecResult,
    Decoder,
    Schema,
    bisect_failures,
    said,
)
from spark_eos.schemas.protobuf_files import file_of
from spark_eos.schemas.protobuf_kinds import Fault
from spark_eos.schemas.protobuf_nested import Message
from spark_eos.schemas.protobuf_types import check_readable, message_kind

_KIND: Final = "PROTOBUF"
_ID: Final = SchemaId("", 0).id_to_bytes()

Indexes = tuple[int, ...]


class Protobuf:
    """The format of that name."""

    def spark_type(self, schema: Schema) -> T.DataType:
        """The column that messages become; fields that they always have are never null."""
        return _parsed(schema).kind.spark

    def record_name(self, schema: Schema) -> str:
        """The message's full name."""
        return _parsed(schema).name

    def records(self, schema: Schema, payloads: pa.Array) -> dict[str, np.ndarray]:
        """Which message each is, by its indexes; an empty name where they can't be read."""
        messages = _parsed(schema).messages
        rows: dict[str, list[int]] = defaultdict(list)
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                indexes, _ = _split(payload)
            except ValueError:
                indexes = ()
            rows[messages.get(indexes, "")].append(row)
        return {name: np.array(own) for name, own in rows.items()}

    def decoder(self, writer: Schema, reader: Schema) -> Decoder:
        """Reads messages as a reader's schema has them, by the numbers of fields."""
        return _Decoder(_parsed(writer), _parsed(reader))

    def encoder(self, schema: Schema, kind: T.DataType) -> "_Encoder":
        """Writes columns of a type; checks first that they fit."""
        parsed = _parsed(schema)
        parsed.kind.check(kind, "")
        return _Encoder(parsed)


class _Parsed:
    """A schema's messages, one of which is meant.

    Attributes:
        name: The full name of that one.
        messages: The full names of all, by indexes.
    """

    def __init__(self, schema: Schema) -> None:
        self._file = file_of(schema)
        self.messages = dict(_messages(self._file))
        if not self.messages:
            raise SchemaError("the Protobuf schema has no message")
        self.name = schema.message or next(iter(self.messages.values()))
        if self.name not in self.messages.values():
            raise SchemaError(
                f"the schema has no message {self.name!r}; it has {_listed(self.messages)}"
            )

    @property
    def kind(self) -> Message:
        """The message as a column."""
        return message_kind(self.descriptor(self.name))

    def descriptor(self, name: str) -> Any:
        """The message of a name."""
        return self._file.pool.FindMessageTypeByName(name)

    def indexes(self, name: str) -> Indexes | None:
        """The place of a message; None if there is none of that name."""
        return next((place for place, own in self.messages.items() if own == name), None)


# A worker asks for the messages of each batch's records.
_parsed: Final = lru_cache(maxsize=1000)(_Parsed)


def _listed(messages: dict[Indexes, str]) -> str:
    return ", ".join(messages.values())


def _messages(file: Any) -> Iterator[tuple[Indexes, str]]:
    """Place and full name of each message, first those that are nested in none."""
    whole = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(whole)
    level: list[tuple[Indexes, str, Any]] = [
        ((place,), whole.package, one) for place, one in enumerate(whole.message_type)
    ]
    while level:
        inner: list[tuple[Indexes, str, Any]] = []
        for place, prefix, one in level:
            full = f"{prefix}.{one.name}" if prefix else one.name
            yield place, full
            nested = enumerate(one.nested_type)
            inner += [((*place, number), full, other) for number, other in nested]
        level = inner


def _prefix(indexes: Indexes) -> bytes:
    r"""What precedes a message; ``\0`` for the first one of its file."""
    return SchemaId(_KIND, 0, None, [*indexes]).id_to_bytes()[len(_ID) :]


def _split(payload: bytes) -> tuple[Indexes, bytes]:
    """A payload's message indexes, and its message."""
    found = SchemaId(_KIND)
    try:
        rest = found.from_bytes(BytesIO(_ID + payload)).read()
    except (EOFError, SerializationError) as error:
        raise BadValueError(f"its message indexes can't be read: {error}") from None
    return tuple(found.message_indexes or ()), rest


class _Decoder:
    """Reads messages that one schema has written, as another one has them."""

    def __init__(self, writer: _Parsed, reader: _Parsed) -> None:
        indexes = writer.indexes(reader.name)
        if indexes is None:
            raise SchemaError(
                f"it has no message {reader.name}; it has {_listed(writer.messages)}. Name the "
                "reader's message with message="
            )
        descriptor = reader.descriptor(reader.name)
        check_readable(writer.descriptor(reader.name), descriptor)
        self._name, self._indexes, self._messages = reader.name, indexes, writer.messages
        self._prefix = _prefix(indexes)
        self._kind = reader.kind
        self._make = message_factory.GetMessageClass(descriptor)
        self._may_lack = _requires(descriptor)

    def __call__(self, payloads: pa.Array) -> CodecResult:
        messages: list[Any] = []
        errors: dict[int, str] = {}
        make, prefix, begin, check = self._make, self._prefix, len(self._prefix), self._may_lack
        parse = make.FromString
        for row, payload in enumerate(payloads.to_pylist()):
            message = None
            try:
                if payload.startswith(prefix):
                    message = parse(payload[begin:])
                else:
                    message = parse(self._rest(payload))
                # Methods of the class: a message's own attribute may be a field.
                if check and not make.IsInitialized(message):
                    missing = ", ".join(make.FindInitializationErrors(message))
                    errors[row], message = f"it lacks required fields: {missing}", None
            except ValueError as error:
                errors[row] = said(error)
            except DecodeError as error:
                errors[row] = f"it is truncated, or not of its schema: {error}"
            messages.append(message)
        made = bisect_failures(self._kind.array, messages, self._kind.arrow)
        return CodecResult(made.array, made.errors | errors)

    def _rest(self, payload: bytes) -> bytes:
        """What follows indexes that are not written as they mostly are."""
        indexes, rest = _split(payload)
        if indexes != self._indexes:
            name = self._messages.get(indexes)
            which = "of no message of its schema" if name is None else f"a {name}"
            raise BadValueError(
                f"it is {which}, by its message indexes {[*indexes]}, not a {self._name}"
            )
        return rest


def _requires(descriptor: Any, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a message, or one in it, has fields that it must have."""
    if descriptor.full_name in seen:
        return False
    inner = seen | {descriptor.full_name}
    return any(
        field.is_required or (field.message_type and _requires(field.message_type, inner))
        for field in descriptor.fields
    )


class _Encoder:
    """Writes messages of one schema."""

    def __init__(self, schema: _Parsed) -> None:
        self._kind = schema.kind
        self.prefix = _prefix(schema.indexes(schema.name) or (0,))

    def __call__(self, values: pa.Array) -> CodecResult:
        made: list[bytes | None] = []
        errors: dict[int, str] = {}
        for row, message in enumerate(self._kind.messages(values, "")):
            written = None
            if isinstance(message, Fault):
                errors[row] = message.text
            elif message is not None:
                try:
                    # Maps in one order: a batch that is computed again has the same bytes.
                    written = type(message).SerializeToString(message, deterministic=True)
                except EncodeError as error:
                    errors[row] = str(error)
            made.append(written)
        return CodecResult(pa.array(made, pa.binary()), errors)
