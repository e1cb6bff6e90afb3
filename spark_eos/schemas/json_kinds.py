"""Maps JSON Schema types to columns; refuses types that Spark lacks."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_rs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.kinds import PRIMITIVES, REMEDY, BadValueError, Kind, Place
from spark_eos.schemas.nested import List, Map, Record

_COMBINING: Final = ("oneOf", "anyOf", "allOf")
_NESTING: Final = {"properties", "items"}
# Keywords that imply the type if the schema does not name one.
_IMPLIED_TYPES: Final = {"properties": "object", "additionalProperties": "object", "items": "array"}
_SCALARS: Final = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}
# Keywords that never make a schema refuse a value that fits its shape (`Column`).
_ANNOTATIONS: Final = {
    *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"),
    *(
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "type",
        "properties",
        "required",
    ),
    *("required", "items", "$ref"),
}
# The drafts in which 1.0 is an integer. It isn't in older drafts.
_DRAFTS: Final = re.compile(r"https?://json-schema\.org/(draft-07|draft/20(19-09|20-12))/schema#?")
_LONG: Final = {"minimum": -(2**63), "maximum": 2**63 - 1}


class Column(NamedTuple):
    """The column for a schema's values."""

    kind: Kind
    # A schema that checks only types, and that required properties are present.
    shape: dict[str, Any]
    # Keywords that may make the schema refuse a value that fits the shape.
    beyond: frozenset[str] = frozenset()


class Resolver:
    """Resolves references relative to a place in one of the documents."""

    def __init__(self, resolver: Any, documents: Mapping[str, Any]) -> None:
        self._resolver = resolver
        self._documents = documents

    def lookup(self, reference: str) -> tuple[Any, "Resolver", str]:
        """Return the referenced schema, a resolver for its own references, and its address."""
        target = self._resolver.lookup(reference)
        address = urljoin(self._resolver.base_uri, reference)
        document, fragment = urldefrag(address)
        contents = target.contents
        # jsonschema-rs sorts properties by name; the document keeps their order.
        if document in self._documents and fragment[:1] in {"", "/"}:
            contents = self._documents[document]
            for step in fragment.split("/")[1:]:
                name = unquote(step).replace("~1", "/").replace("~0", "~")
                contents = contents[int(name) if isinstance(contents, list) else name]
        return contents, Resolver(target.resolver, self._documents), address


def column_of(schema: Any, resolver: Resolver, place: Place) -> Column:
    """Return a schema's column; raise SchemaError for types that Spark lacks."""
    made = _column(schema, resolver, place)
    return made._replace(beyond=made.beyond | _beyond(schema))


def _beyond(schema: Mapping[str, Any]) -> set[str]:
    """Return the schema's top-level keywords that its shape does not check."""
    words = schema.keys() - _ANNOTATIONS
    if schema.get("additionalProperties") in ({}, True):
        words -= {"additionalProperties"}
    if not _DRAFTS.fullmatch(schema.get("$schema", "http://json-schema.org/draft-07/schema#")):
        words |= {"$schema"}
    if "$ref" in schema or not schema.keys().isdisjoint(_COMBINING):
        # The shape is that of the other schemas.
        words |= {"type"} & schema.keys()
    if {*schema.get("required", ())} - schema.get("properties", {}).keys():
        words |= {"required"}
    return words - {*_COMBINING}


def _column(schema: Any, resolver: Resolver, place: Place) -> Column:
    if not isinstance(schema, dict):
        raise SchemaError(
            f"{place}: its schema is {json.dumps(schema)}, which does not state a type"
        )
    if (reference := schema.get("$ref")) is not None:
        beside = next((word for word in schema if word in {*_NESTING, *_COMBINING}), None)
        if beside is not None:
            raise SchemaError(
                f"{place}: $ref next to {beside} is ambiguous: up to draft 7, only the $ref "
                f"counts. Keep only one of them, or move one into a property of its own. {REMEDY}"
            )
        return _referred(reference, resolver, place)
    if any(word in schema for word in _COMBINING):
        return _combined(schema, resolver, place)
    names = _type_names(schema, place)
    nullable = "null" in names
    others = [name for name in names if name != "null"]
    if len(others) != 1:
        raise SchemaError(
            f"{place} is {' or '.join(names)}, but a column has only one type. {REMEDY}"
        )
    (name,) = others
    nested = {"object": _object, "array": _array}.get(name)
    if nested is not None:
        made = nested(schema, resolver, place)
    elif name in _SCALARS:
        made = _scalar(schema, name)
    else:
        raise SchemaError(f"{place}: JSON Schema has no type {name!r}")
    # The schema's validator reports nulls that are not allowed.
    made.kind.nulls_are_faults = False
    return _nullable(made) if nullable else made


def _nullable(column: Column) -> Column:
    column.kind.nullable = True
    names = column.shape["type"]
    return column._replace(
        shape={**column.shape, "type": names if isinstance(names, list) else [names, "null"]}
    )


def _referred(reference: str, resolver: Resolver, place: Place) -> Column:
    try:
        schema, own, address = resolver.lookup(reference)
    except jsonschema_rs.ReferencingError:
        raise SchemaError(
            f"{place}: $ref {reference!r} is in neither the schema nor its "
            "references in the registry"
        ) from None
    return column_of(schema, own, place.inside(address, reference))


def _combined(schema: Mapping[str, Any], resolver: Resolver, place: Place) -> Column:
    """Return the column of a schema that combines one type, possibly with null."""
    word, *more = (word for word in _COMBINING if word in schema)
    branches = schema[word]
    # Confluent's generator adds a title to the null branch.
    others = [
        branch
        for branch in branches
        if not (isinstance(branch, dict) and branch.get("type") == "null")
    ]
    if more or word == "allOf" or len(others) != 1 or _NESTING & schema.keys():
        raise SchemaError(f"{place}: {word} can only combine one type with null. {REMEDY}")
    made = column_of(others[0], resolver, place)
    if len(others) == len(branches):
        return made
    # oneOf refuses a null that fits both branches.
    twice = {word} if made.kind.nullable and word == "oneOf" else set()
    return _nullable(made)._replace(beyond=made.beyond | twice)


def _type_names(schema: Mapping[str, Any], place: Place) -> list[str]:
    names = schema.get("type")
    if names is not None:
        return [names] if isinstance(names, str) else list(names)
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return list(dict.fromkeys(_JSON_NAMES[type(value)] for value in values))
    for word, name in _IMPLIED_TYPES.items():
        if word in schema:
            return [name]
    raise SchemaError(f"{place}: its schema does not state a type. {REMEDY}")


_JSON_NAMES: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    dict: "object",
    list: "array",
}


def _scalar(schema: Mapping[str, Any], name: str) -> Column:
    shape: dict[str, Any] = {"type": name}
    kind = _FORMATS.get(schema.get("format", "")) if name == "string" else None
    if kind is not None:
        return Column(kind(), {**shape, "format": schema["format"]})
    return Column(Kind(*PRIMITIVES[_SCALARS[name]]), shape | (_LONG if name == "integer" else {}))


def _array(schema: Mapping[str, Any], resolver: Resolver, place: Place) -> Column:
    items = schema.get("items")
    if not isinstance(items, dict) or "prefixItems" in schema:
        raise SchemaError(f"{place}: an array needs items of one type. {REMEDY}")
    item = column_of(items, resolver, place.items())
    return Column(List(item.kind), {"type": "array", "items": item.shape}, item.beyond)


def _object(schema: Mapping[str, Any], resolver: Resolver, place: Place) -> Column:
    properties = schema.get("properties")
    if properties:
        parts = properties.items()
        made = {name: column_of(part, resolver, place.field(name)) for name, part in parts}
        required = [name for name in schema.get("required", ()) if name in made]
        shape = {
            "type": "object",
            "properties": {name: column.shape for name, column in made.items()},
            "required": required,
        }
        kinds = {name: column.kind for name, column in made.items()}
        beyond = frozenset().union(*(column.beyond for column in made.values()))
        return Column(Object(kinds, required), shape, beyond)
    values = schema.get("additionalProperties")
    if not isinstance(values, dict) or "patternProperties" in schema:
        raise SchemaError(
            f"{place}: an object needs properties, or additionalProperties of one type. {REMEDY}"
        )
    value = column_of(values, resolver, place.values())
    return Column(
        Map(Kind(*PRIMITIVES["string"]), value.kind),
        {"type": "object", "additionalProperties": value.shape},
        value.beyond,
    )


class Object(Record):
    """A struct; its JSON records contain null for a null field, or omit the field."""

    def __init__(self, properties: Mapping[str, Kind], required: Sequence[str]) -> None:
        super().__init__(properties, required)
        names = {name for name, kind in properties.items() if kind.nullable}
        # Nulls in required fields are written; nulls in optional fields that must not be null are
        # left out.
        self.nulls = [name for name in required if name in names]
        self.left_out = properties.keys() - names - {*required}

    def _parts(self, records: Sequence[Any], name: str) -> list[Any]:
        return [record.get(name) for record in records]

    def _record(self, names: list[str], parts: tuple[Any, ...]) -> Any:
        made = super()._record(names, parts)
        for name in self.nulls:
            made.setdefault(name)
        left_out = self.left_out
        if not left_out or None not in parts:
            return made
        return {
            name: value for name, value in made.items() if value is not None or name not in left_out
        }


class Date(Kind):
    """A date, which is a string in JSON."""

    def __init__(self) -> None:
        super().__init__(T.DateType(), pa.string())

    def texts(self, array: pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Return texts, and a mask of the texts whose years RFC 3339 does not allow."""
        return _of_length(array.cast(pa.string()), len("2026-01-01"))

    def _to_wire(self, array: pa.Array) -> pa.Array:
        return _checked(*self.texts(array))


class DateTime(Kind):
    """A date and time with a time zone, which is a string in JSON."""

    def __init__(self) -> None:
        super().__init__(T.TimestampType(), pa.string())

    def _array(self, values: Sequence[Any]) -> pa.Array:
        # RFC 3339 also allows lowercase letters. Fractions are rounded down to microseconds.
        texts = pc.utf8_upper(pa.array(values, pa.string()))
        micros = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
        return micros.cast(pa.timestamp("us", "UTC")).cast(self.arrow)

    def texts(self, array: pa.Array) -> tuple[pa.Array, np.ndarray]:
        """Return texts, and a mask of the texts whose years RFC 3339 does not allow."""
        # Drop the time zone: Arrow would look up its rules for each value.
        texts = array.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(pa.string())
        texts = pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "")
        return _of_length(texts, len("2026-01-01T00:00:00.000000Z"))

    def _to_wire(self, array: pa.Array) -> pa.Array:
        return _checked(*self.texts(array))


def _of_length(texts: pa.Array, length: int) -> tuple[pa.Array, np.ndarray]:
    other = pc.not_equal(pc.binary_length(texts), length).fill_null(False)  # noqa: FBT003
    return texts, np.asarray(other)


def _checked(texts: pa.Array, wrong: np.ndarray) -> pa.Array:
    if wrong.any():
        raise BadValueError("JSON Schema's date formats only allow the years 0000 to 9999")
    return texts


_FORMATS: Final[dict[str, type[Date] | type[DateTime]]] = {"date": Date, "date-time": DateTime}
