"""Avro: reads and writes records by fastavro, without logical types, which Arrow converts.

fastavro gives each value of a logical type a Python object; as columns of plain integers and bytes,
records are read and written at twice the speed.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from io import BytesIO
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.avro_bytes import Checker
from spark_eos.schemas.avro_changes import check_changes, exact_first
from spark_eos.schemas.avro_types import kind_of, tag_of, without_invalid
from spark_eos.schemas.formats import CodecResult, Decoder, Schema, bisect_failures, said
from spark_eos.schemas.kinds import Kind

_VALUE: Final = "value"
# Without a namespace, which would be that of what it wraps.
_WRAPPER: Final = "spark_eos_Wrapper"

_read: Any = fastavro.schemaless_reader
_write: Any = fastavro.schemaless_writer


# How defaults are written.
_JSON: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    **dict.fromkeys(("int", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
    # Bytes, where one has been met before.
    **dict.fromkeys(("bytes", "string", "fixed", "enum"), (str, bytes)),
    "array": (list,),
    **dict.fromkeys(("map", "record"), (dict,)),
}


class Avro:
    """The format of that name."""

    def spark_type(self, schema: Schema) -> T.DataType:
        """The column that values of a schema become; all its parts may be null."""
        return _parsed(schema).kind.spark

    def record_name(self, schema: Schema) -> str:
        """A record's full name; else the type's."""
        top = _parsed(schema).top
        return str(top.get("name", top["type"]) if isinstance(top, dict) else top)

    def records(self, schema: Schema, payloads: pa.Array) -> dict[str, np.ndarray]:
        """All payloads are of the one record."""
        return {self.record_name(schema): np.arange(len(payloads))}

    def decoder(self, writer: Schema, reader: Schema) -> Decoder:
        """Reads what one schema has written as another one has it, by Avro's own rules."""
        return _Decoder(_parsed(writer), _parsed(reader))

    def encoder(self, schema: Schema, kind: T.DataType) -> "_Encoder":
        """Writes columns of a type; checks first that they fit."""
        parsed = _parsed(schema)
        parsed.kind.check(kind, "")
        return _Encoder(parsed)


class _Parsed:
    """A schema as fastavro takes it.

    Attributes:
        schema: What it was made of.
        top: The schema.
        named: The records, enums and fixed in it, by their full names.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        try:
            self.top: Any = None
            self.named: dict[str, Any] = {}
            for text in _texts(schema):
                self.top = fastavro.parse_schema(_loaded(text), named_schemas=self.named)
        except (ValueError, TypeError, KeyError, SchemaParseException) as error:
            raise SchemaError(f"the Avro schema can't be used: {error}") from error

    @cached_property
    def kind(self) -> Kind:
        """Its types as columns; a writer's may be such that Spark has none."""
        try:
            return kind_of(self.top, self.named)
        except KeyError as error:
            raise SchemaError(f"the Avro schema can't be used: it lacks {error}") from error

    @property
    def is_record(self) -> bool:
        """Whether it is a record at its top."""
        return isinstance(self.top, dict) and self.top["type"] == "record"

    def plain(self, *, wrapped: bool) -> Any:
        """The schema without logical types.

        Args:
            wrapped: Whether as the one field of a record, which Avro writes as that field. Only
                records can be parsed once for all.
        """
        named: dict[str, Any] = {}
        *others, own = map(_loaded, _texts(self.schema))
        for other in others:
            fastavro.parse_schema(other, named_schemas=named)
        if wrapped:
            own = {"type": "record", "name": _WRAPPER, "fields": [{"name": _VALUE, "type": own}]}
        plain: Any = fastavro.parse_schema(own, named_schemas=named)
        for one in (plain, *named.values(), *plain["__named_schemas"].values()):
            _make_plain(one, named)
        return plain


# A worker asks for the name of each batch's records.
_parsed: Final = lru_cache(maxsize=1000)(_Parsed)


def _texts(schema: Schema) -> list[str]:
    return [*(text for _, text in schema.references), schema.text]


def _loaded(text: str) -> Any:
    return json.loads(text, object_hook=without_invalid)


def _make_plain(schema: Any, named: dict[str, Any]) -> None:
    """Takes logical types out, and makes defaults whole.

    fastavro takes bytes in them as text, and fills in no defaults in defaults.
    """
    if isinstance(schema, list):
        for one in schema:
            _make_plain(one, named)
    elif isinstance(schema, dict):
        schema.pop("logicalType", None)
        for name in ("type", "items", "values"):
            _make_plain(schema.get(name), named)
        for field in schema.get("fields", ()):
            _make_plain(field["type"], named)
            if "default" in field:
                field["default"] = _default(field["default"], field["type"], named)


def _unions(schema: Any) -> Iterator[list[Any]]:
    """The unions in a type."""
    if isinstance(schema, list):
        yield schema
        for one in schema:
            yield from _unions(one)
    elif isinstance(schema, dict):
        for name in ("type", "items", "values"):
            yield from _unions(schema.get(name))
        for field in schema.get("fields", ()):
            yield from _unions(field["type"])


def _default(value: Any, schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return _default_member(value, schema, named)
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in {"bytes", "fixed"} and isinstance(value, str):
        return value.encode("iso-8859-1")
    if kind == "array":
        return [_default(one, schema["items"], named) for one in value]
    if kind == "map":
        return {key: _default(one, schema["values"], named) for key, one in value.items()}
    if kind == "record":
        own = ((field["name"], field) for field in schema["fields"])
        return {
            name: _default(value.get(name, field.get("default")), field["type"], named)
            for name, field in own
        }
    return value


def _default_member(value: Any, union: list[Any], named: dict[str, Any]) -> Any:
    """A default of a union, which is of the first member that it may be of."""
    if isinstance(value, tuple):
        # Types that several share are met several times.
        return value
    member = next((one for one in union if _may_be(value, one, named)), union[0])
    made = _default(value, member, named)
    several = len([one for one in union if one != "null"]) > 1
    # As what is read, and written: fastavro itself would try which member it is.
    tagged = made is not None and (several or _holds_tags(made))
    return (tag_of(member, named), made) if tagged else made


def _may_be(value: Any, schema: Any, named: dict[str, Any]) -> bool:
    """Whether a default is of a member of a union, by its type in JSON, as in Avro's Java."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    return type(value) in _JSON[schema if isinstance(schema, str) else schema["type"]]


def _holds_tags(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, tuple) or any(map(_holds_tags, inner))


class _Decoder:
    """Reads payloads that one schema has written, as another one has them."""

    def __init__(self, writer: _Parsed, reader: _Parsed) -> None:
        changed = (writer.top, writer.named) != (reader.top, reader.named)
        if changed:
            check_changes(writer.top, reader.top, writer.named, reader.named)
        self._kind = reader.kind
        self._wrapped = not (writer.is_record and reader.is_record)
        self._writer = writer.plain(wrapped=self._wrapped)
        checker = Checker(self._writer)
        self._check, self._check_first = checker.check, checker.check_first
        resolved = reader.plain(wrapped=self._wrapped)
        if changed:
            for union in _unions([*resolved["__named_schemas"].values()]):
                union[:] = exact_first(union)
        # Resolving takes as long as reading; but mostly fields come and go, and none changes.
        self._added = None if self._kind.tagged else _added_fields(self._writer, resolved)
        self._reader = resolved if self._added is None else None

    def __call__(self, payloads: pa.Array) -> CodecResult:
        values: list[Any] = []
        errors: dict[int, str] = {}
        read, writer, reader, wrapped = _read, self._writer, self._reader, self._wrapped
        tagged, as_raw, added = self._kind.tagged, self._kind.raw_of, self._added
        check, check_first = self._check, self._check_first
        for row, payload in enumerate(payloads.to_pylist()):
            stream = BytesIO(payload)
            try:
                if check_first:
                    check_first(payload)
                # Its arguments by position: keywords take it a tenth longer.
                value = read(stream, writer, reader, False, False, "strict", tagged)  # noqa: FBT003
                check(payload, stream.tell())
                if wrapped or tagged or added:
                    value = {**value, **added} if added else value
                    value = value[_VALUE] if wrapped else value
                    value = as_raw(value) if tagged else value
            except Exception as error:  # noqa: BLE001 - whatever bytes lead to
                errors[row], value = _told(error), None
            values.append(value)
        made = bisect_failures(self._array, values, self._kind.arrow)
        return CodecResult(made.array, made.errors | errors)

    def _array(self, values: list[Any]) -> pa.Array:
        return self._kind.from_wire(pa.array(values, self._kind.raw))


def _added_fields(writer: Any, reader: Any) -> dict[str, Any] | None:
    """Fields that a record's reader has beyond its writer; None if other parts differ, too."""
    one, other = writer["__named_schemas"], reader["__named_schemas"]
    if writer["name"] != reader["name"]:
        return None
    if any(one[name] != other[name] for name in one.keys() & other.keys() - {writer["name"]}):
        return None
    types = {field["name"]: field["type"] for field in writer["fields"]}
    added = {}
    for field in reader["fields"]:
        name = field["name"]
        if types.get(name) == field["type"]:
            continue
        if name in types or "default" not in field or field.get("aliases"):
            return None
        added[name] = field["default"]
    return added


def _told(error: Exception) -> str:
    if isinstance(error, SchemaResolutionError):
        text = str(error).replace(_WRAPPER, _VALUE)
        text = re.sub(r"^.*(?= not found in reader symbol list)", "a symbol", text)
        return f"it does not resolve against the reader's schema: {text[:300]}"
    if isinstance(error, EOFError | IndexError):
        return "it is truncated, or not of its schema"
    return f"it is not of its schema: {said(error)}"


class _Encoder:
    """Writes values as one schema has them."""

    prefix = b""

    def __init__(self, schema: _Parsed) -> None:
        self._kind = schema.kind
        self._wrapped = not schema.is_record
        self._schema = schema.plain(wrapped=self._wrapped)

    def __call__(self, values: pa.Array) -> CodecResult:
        raw = bisect_failures(self._kind.to_wire, values, self._kind.raw)
        errors = raw.errors
        for rows, text in self._kind.faults(values, ""):
            errors |= {row: text for row in rows.tolist() if row not in errors}
        stream = BytesIO()
        ends = [0]
        schema, wrapped, written_of = self._schema, self._wrapped, self._kind.written
        converted = self._kind.converted
        for row, found in enumerate(raw.array.to_pylist()):
            if found is not None and row not in errors:
                try:
                    value = written_of(found) if converted else found
                    _write(stream, schema, {_VALUE: value} if wrapped else value)
                except Exception as error:  # noqa: BLE001 - whatever a value leads to
                    errors[row] = said(error)
                    stream.seek(ends[-1])
                    stream.truncate()
            ends.append(stream.tell())
        buffers = [None, pa.array(ends, pa.int32()).buffers()[1], pa.py_buffer(stream.getvalue())]
        whole = pa.Array.from_buffers(pa.binary(), len(values), buffers)
        written = np.array(values.is_valid())
        written[[*errors]] = False
        return CodecResult(pc.if_else(pa.array(written), whole, None), errors)
