"""Avro: reads and writes records with fastavro; Arrow converts the logical types."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from pyspark.sql import types as T

from spark_eos.schemas.avro_bytes import Checker
from spark_eos.schemas.avro_changes import check_changes, exact_first
from spark_eos.schemas.avro_columns import columns_of
from spark_eos.schemas.avro_defaults import Defaults, make_plain
from spark_eos.schemas.avro_kinds import kind_of, without_invalid
from spark_eos.schemas.avro_rows import rows_of
from spark_eos.schemas.formats import Format, Schema, Together
from spark_eos.schemas.kinds import PRIMITIVES, Kind, Place, said

_VALUE: Final = "value"
# No namespace, since the wrapped types would inherit it.
_WRAPPER: Final = "spark_eos_Wrapper"
# Maximum nesting of a schema's JSON.
_DEEPEST: Final = 500

_read: Any = fastavro.schemaless_reader
_write: Any = fastavro.schemaless_writer


class Avro(Format):
    """The format ``AVRO``."""

    title = "Avro schema"

    def __init__(self, schema: Schema) -> None:
        self._texts = [*(text for _, text in schema.references), schema.text]
        self.top: Any = None  # the schema, as parsed by fastavro
        # The schema's records, enums and fixed types, by full name.
        self.named: dict[str, Any] = {}
        for text in self._texts:
            # Registries keep schemas whose defaults are invalid; a writer's defaults are not used.
            self.top = _parsed(_loaded(text), self.named, check_defaults=False)
        is_name = not isinstance(self.top, dict)
        self.name = str(self.top if is_name else self.top.get("name", self.top["type"]))
        self.is_record = not is_name and self.top["type"] == "record"

    def _kind(self) -> Kind:
        named: dict[str, Any] = {}
        for text in self._texts:
            _parsed(_loaded(text), named, check_defaults=True)
        kind = kind_of(self.top, self.named, Place())
        self.plain(wrapped=not self.is_record)  # Checks what defaults hold.
        return kind

    def plain(self, *, wrapped: bool, is_writer: bool = False) -> Any:
        """Return the schema without logical types; if ``wrapped``, as a record's only field.

        A writer's defaults are not used, so they remain as they are, even if invalid.
        """
        named: dict[str, Any] = {}
        *others, own = map(_loaded, self._texts)
        for other in others:
            _parsed(other, named, check_defaults=False)
        # fastavro parses only records in advance. A one-field record is encoded like its field.
        if wrapped:
            own = {"type": "record", "name": _WRAPPER, "fields": [{"name": _VALUE, "type": own}]}
        plain = _parsed(own, named, check_defaults=False)
        make_plain(plain, named, complete_defaults=not is_writer)
        # fastavro fails if a type is defined in place on one side and named on the other.
        for definition in plain["__named_schemas"].values():
            for field in definition.get("fields", ()):
                field["type"] = _with_names(field["type"])
        return plain

    def _columns(self, writer: "Avro") -> Together:
        return columns_of(writer, self)

    def _rows(self, column: T.DataType) -> Together:
        return rows_of(self, column)

    def default(self, value: Any, schema: Any) -> pa.Array:
        """Return the default of a field of a type, as a column with one row."""
        value = Defaults(self.named).whole(value, schema)
        return kind_of(schema, self.named, Place()).array([value])

    def _reader(self, writer: "Avro") -> Callable[[bytes], Any]:
        changed = (writer.top, writer.named) != (self.top, self.named)
        pairs = set[tuple[str, str]]()
        if changed:
            pairs = check_changes(writer.top, self.top, writer.named, self.named)
        tagged = self.kind.tagged
        wrapped = not (writer.is_record and self.is_record)
        written = writer.plain(wrapped=wrapped, is_writer=True)
        resolved = self.plain(wrapped=wrapped)
        checker = Checker(written)
        if changed:
            for union in _unions([*resolved["__named_schemas"].values()]):
                union[:] = exact_first(union)
        # Schema resolution takes as long as reading. Skip it if fields were only added or removed.
        added: dict[str, Any] | None = {}
        if changed:
            added = None if tagged else _added_fields(written, resolved)
        if added is None:
            _prefer_names(written["__named_schemas"], resolved["__named_schemas"], pairs)
        reader = resolved if added is None else None
        check, check_first = checker.check, checker.check_first
        if reader is not None:
            # fastavro skips values that the reader lacks without looking for the payload's end:
            # for ever, if an array claims many items.
            check_first = checker.check_all

        def read(payload: bytes) -> Any:
            if check_first:
                check_first(payload)
            stream = BytesIO(payload)
            # Pass arguments by position: keyword arguments take a tenth longer.
            value = _read(stream, written, reader, False, False, "strict", tagged)  # noqa: FBT003
            check(payload, stream.tell())
            if added:
                value = {**value, **added}
            return value[_VALUE] if wrapped else value

        return read

    def _writer(self) -> Callable[[Any], bytes]:
        wrapped, tag = not self.is_record, self.kind.tag
        schema = self.plain(wrapped=wrapped)

        def write(value: Any) -> bytes:
            stream = BytesIO()
            value = value if tag is None else (tag, value)
            _write(stream, schema, {_VALUE: value} if wrapped else value)
            return stream.getvalue()

        return write

    def _unread(self, error: Exception) -> str:
        if isinstance(error, SchemaResolutionError):
            text = str(error).replace(_WRAPPER, _VALUE)
            text = re.sub(r"^.*(?= not found in reader symbol list)", "a symbol", text)
            return f"it does not resolve against the reader's schema: {text[:300]}"
        if isinstance(error, EOFError | IndexError):
            return "it is truncated, or does not match its schema"
        return f"it does not match its schema: {said(error)}"

    def _unwritten(self, error: Exception) -> str:
        return said(error)


def _parsed(schema: Any, named: dict[str, Any], *, check_defaults: bool) -> Any:
    return fastavro.parse_schema(
        schema, named_schemas=named, _ignore_default_error=not check_defaults
    )


def _loaded(text: str) -> Any:
    schema = json.loads(text, object_hook=without_invalid)
    level = [schema]
    for _ in range(_DEEPEST):
        level = [inner for item in level if isinstance(item, dict | list) for inner in _parts(item)]
        if not level:
            return _simple(schema)
    # fastavro would recurse until its stack overflows.
    raise RecursionError


def _simple(schema: Any) -> Any:
    """Return a type in which names stand for primitive types that have no logical type."""
    if isinstance(schema, list):
        return [_simple(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    name = schema.get("type")
    if isinstance(name, str) and name in PRIMITIVES and "logicalType" not in schema:
        return name
    made = {**schema}
    for part in made.keys() & {"items", "values"}:
        made[part] = _simple(made[part])
    if isinstance(fields := made.get("fields"), list):
        made["fields"] = [
            {**field, "type": _simple(field["type"])}
            if isinstance(field, dict) and "type" in field
            else field
            for field in fields
        ]
    return made


def _parts(schema: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return schema.values() if isinstance(schema, dict) else schema


def _with_names(schema: Any) -> Any:
    """Return a type in which a name stands for each definition of a named type."""
    if isinstance(schema, list):
        return [_with_names(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" in schema:
        return schema["name"]
    parts = {name: _with_names(schema[name]) for name in ("items", "values") if name in schema}
    return {**schema, **parts}


def _unions(schema: Any) -> Iterator[list[Any]]:
    """Yield the unions in a type."""
    if isinstance(schema, list):
        yield schema
        for part in schema:
            yield from _unions(part)
    elif isinstance(schema, dict):
        for name in ("type", "items", "values"):
            yield from _unions(schema.get(name))
        for field in schema.get("fields", ()):
            yield from _unions(field["type"])


def _prefer_names(
    written: Mapping[str, Any], read: Mapping[str, Any], pairs: Iterable[tuple[str, str]]
) -> None:
    """Remove aliases that fastavro might prefer to the own name of a field that the writer has."""
    for before, after in pairs:
        names = {field["name"] for field in written[before]["fields"]}
        for field in read[after]["fields"]:
            if field["name"] in names and "aliases" in field:
                field["aliases"] = [alias for alias in field["aliases"] if alias not in names]


def _without_defaults(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return a named type's definition without defaults, which do not matter to its writer."""
    fields = [
        {name: part for name, part in field.items() if name != "default"}
        for field in definition.get("fields", ())
    ]
    return {**definition, "fields": fields}


def _added_fields(writer: Any, reader: Any) -> dict[str, Any] | None:
    """Return the fields that only the reader's record has; None if anything else differs."""
    written, other = writer["__named_schemas"], reader["__named_schemas"]
    if writer["name"] != reader["name"]:
        return None
    names = written.keys() & other.keys() - {writer["name"]}
    if any(_without_defaults(written[name]) != _without_defaults(other[name]) for name in names):
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
