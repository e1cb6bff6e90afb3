"""Decodes and encodes a column's Arrow batches in Spark tasks: functions for ``mapInArrow``."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.row_errors import RowError, RowErrors
from spark_eos._spark.signed_errors import signing_in_task
from spark_eos._worker.spark_connection import reduce_task_overhead
from spark_eos.errors import SchemaError
from spark_eos.schemas.client import Client
from spark_eos.schemas.cursor import placed
from spark_eos.schemas.formats import Codec, Schema, format_of
from spark_eos.schemas.framing import Group, SchemaKey, framed, header_name, with_header
from spark_eos.schemas.kinds import CodecResult

HEADERS: Final = "headers"
_HEADERS_FIELD: Final = T.StructField(
    HEADERS,
    T.ArrayType(
        T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    ),
)
_CLASS: Final = f"{SchemaError.__module__}.{SchemaError.__qualname__}"

# Shared by the process's tasks: each task gets new functions, and making a decoder takes
# milliseconds.
_made: LRUCache[tuple[str, object], Any] = LRUCache(1000)


class Member(NamedTuple):
    """The whole column, or one member of a struct with records of several subjects."""

    name: str | None  # None for the whole column
    schema: Schema
    record: str  # the record's full name


class Target(NamedTuple):
    """The whole column, or one member, and how it is written."""

    name: str | None
    schema: Schema
    kind: T.DataType
    prefix: bytes  # precedes the payloads, or is the value of the header
    in_header: bool


class _Mapping:
    """Base class of decoding and encoding: each batch keeps its rows and their order."""

    _adds_headers = False

    def __init__(self, field: T.StructField, errors: RowErrors) -> None:
        self._field = field
        self._column = field.name
        self._errors = errors
        self._identity = uuid.uuid4().hex

    def schema(self, before: T.StructType) -> T.StructType:
        """Return a frame's columns: the coded column has a new type, and new columns follow."""
        own = {each.name: each for each in before}
        own[self._column] = self._field
        if self._adds_headers:
            own.setdefault(HEADERS, _HEADERS_FIELD)
        own |= {each.name: each for each in self._errors.fields}
        return T.StructType([*own.values()])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reduce_task_overhead()
        return self.within_task(batches)

    def within_task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the coded batches; another function of the task has reduced its overhead."""
        kind = arrow_schema(T.StructType([self._field])).field(0).type
        with signing_in_task():
            for batch in batches:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                coded = self._coded(columns, kind)
                columns[self._column] = coded.array
                errors = {row: RowError(text, _CLASS) for row, text in coded.errors.items()}
                self._errors.put(batch, columns, errors)
                yield pa.RecordBatch.from_arrays([*columns.values()], [*columns])

    def _coded(self, columns: dict[str, pa.Array], kind: pa.DataType) -> CodecResult:
        raise NotImplementedError

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return a value that is made once per process."""
        place = self._identity, key
        if place not in _made:
            _made[place] = make()
        return _made[place]


class Decoding(_Mapping):
    """Replaces a binary column with its decoded records."""

    def __init__(
        self,
        client: Client,
        field: T.StructField,
        members: Sequence[Member],
        subject: str | None,  # ids are looked up in its context
        errors: RowErrors,
    ) -> None:
        super().__init__(field, errors)
        self._client = client
        self._subject = subject
        self._members = list(members)

    def _coded(self, columns: dict[str, pa.Array], kind: pa.DataType) -> CodecResult:
        values = columns[self._column]
        values = values if pa.types.is_large_binary(values.type) else values.cast(pa.binary())
        framed_values = framed(values, columns.get(HEADERS), self._column)
        errors = dict(framed_values.errors)
        parts: list[pa.Array] = []
        places: list[np.ndarray] = []
        schemas = self._client.schemas((group.key for group in framed_values.groups), self._subject)
        for group, record in self._by_record(framed_values.groups, schemas):
            schema = schemas[group.key]
            if schema is None:
                # Don't cache the failure: the next batch asks again.
                url = self._client.url
                text = f"schema id {group.key} is not known to the registry {url}"
                errors |= dict.fromkeys(group.rows.tolist(), text)
                continue
            make = partial(self._decoder, schema, record)
            decode, member = self._once((group.key, record), make)
            made = decode(group.payloads)
            for row, text in made.errors.items():
                errors[int(group.rows[row])] = f"schema id {group.key}: {text}"
            parts.append(_as_member(made.array, member, kind))
            places.append(group.rows)
        return CodecResult(placed(parts, places, len(values), kind), errors)

    def _by_record(
        self, groups: Sequence[Group], schemas: Mapping[SchemaKey, Schema | None]
    ) -> Iterator[tuple[Group, str | None]]:
        """Yield groups with their record's name, which is None if unknown or not needed."""
        for group in groups:
            schema = None if self._members[0].name is None else schemas[group.key]
            try:
                names = schema and format_of(schema).records(group.payloads)
            except SchemaError:
                names = None  # `_decoder` meets the same error, and reports it for each row.
            for record, rows in (names or {}).items():
                payloads = group.payloads.take(pa.array(rows))
                yield Group(group.key, group.rows[rows], payloads), record
            if not names:
                yield group, None

    def _decoder(self, schema: Schema, record: str | None) -> tuple[Codec, str | None]:
        """Return a function that reads a schema's payloads, and the member that it reads into."""
        try:
            member = self._member(schema, record)
            return format_of(member.schema).decoder(format_of(schema)), member.name
        except SchemaError as error:
            return partial(_refuse_all, error.text), None

    def _member(self, schema: Schema, record: str | None) -> Member:
        kinds = {member.schema.kind for member in self._members}
        if schema.kind not in kinds:
            raise SchemaError(f"its format is {schema.kind}, not {' or '.join(sorted(kinds))}")
        if self._members[0].name is None:
            return self._members[0]
        if record is None:
            record = format_of(schema).name
        for member in self._members:
            if member.record == record:
                return member
        names = ", ".join(member.record for member in self._members)
        raise SchemaError(
            f"it is a {record or 'message that its schema lacks'}, not one of {names}"
        )


class Encoding(_Mapping):
    """Replaces a column with encoded records, each with its schema's id."""

    def __init__(self, column: str, targets: Sequence[Target], errors: RowErrors) -> None:
        super().__init__(T.StructField(column, T.BinaryType()), errors)
        self._targets = list(targets)
        self._adds_headers = any(target.in_header for target in self._targets)

    def _coded(self, columns: dict[str, pa.Array], kind: pa.DataType) -> CodecResult:
        values = columns[self._column]
        errors: dict[int, str] = {}
        parts: list[pa.Array] = []
        places: list[np.ndarray] = []
        ids: list[bytes | None] = [None] * len(values)
        for number, (rows, own) in enumerate(self._parts(values, errors)):
            target = self._targets[number]
            encode: Codec = self._once(number, partial(_encoder, target))
            array, faults = encode(own)
            errors |= {int(rows[row]): text for row, text in faults.items()}
            if target.in_header:
                for row in rows[np.asarray(array.is_valid())]:
                    ids[row] = target.prefix
            else:
                array = pc.binary_join_element_wise(target.prefix, array, b"")
            parts.append(array.cast(kind))
            places.append(rows)
        if HEADERS in columns or self._adds_headers:
            name = header_name(self._column)
            columns[HEADERS] = with_header(columns.get(HEADERS), name, ids)
        return CodecResult(placed(parts, places, len(values), kind), errors)

    def _parts(
        self, values: pa.Array, errors: dict[int, str]
    ) -> Iterator[tuple[np.ndarray, pa.Array]]:
        """Yield each member's rows and their values."""
        if self._targets[0].name is None:
            yield np.arange(len(values)), values
            return
        members = [values.flatten()[values.type.get_field_index(t.name)] for t in self._targets]
        filled = np.array([np.asarray(part.is_valid()) for part in members])
        for row in np.flatnonzero(np.asarray(values.is_valid()) & (filled.sum(axis=0) != 1)):
            errors[int(row)] = f"{self._column} must have exactly one member that is not null"
            filled[:, row] = False
        for part, own in zip(members, filled, strict=True):
            rows = np.flatnonzero(own)
            yield rows, part.take(pa.array(rows))


def _refuse_all(text: str, payloads: pa.Array) -> CodecResult:
    rows = len(payloads)
    return CodecResult(pa.nulls(rows), dict.fromkeys(range(rows), text))


def _encoder(target: Target) -> Codec:
    made: Codec = format_of(target.schema).encoder(target.kind)
    return made


def _as_member(array: pa.Array, name: str | None, kind: pa.DataType) -> pa.Array:
    if name is None:
        return array.cast(kind)
    others = ((field, field.name == name) for field in kind)
    children = [array if own else pa.nulls(len(array), field.type) for field, own in others]
    return pa.StructArray.from_arrays(children, fields=[*kind], mask=array.is_null())
