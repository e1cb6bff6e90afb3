"""Maps Avro types to columns; refuses types that Spark lacks."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.avro_kinds import UNITS, Decimal, Enum, Fixed, FixedUuid, Timestamp, Union
from spark_eos.schemas.kinds import PRIMITIVES, Kind, Place
from spark_eos.schemas.nested import List, Map, Record

# The valid logical types, with their underlying types, and the sizes of fixed types. Decimals are
# checked separately.
_LOGICAL: Final = {
    ("date", "int", None),
    ("time-millis", "int", None),
    ("time-micros", "long", None),
    ("uuid", "string", None),
    ("uuid", "fixed", 16),
    ("duration", "fixed", 12),
    ("big-decimal", "bytes", None),
    *(
        (f"{kind}-{unit}", "long", None)
        for kind in ("timestamp", "local-timestamp")
        for unit in UNITS
    ),
}


def resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return the definition of a type: a union's members, or a dictionary."""
    while not isinstance(schema, list):
        if isinstance(schema, str):
            schema = {"type": schema} if schema in PRIMITIVES else named[schema]
        elif isinstance(schema["type"], list | dict):
            schema = schema["type"]
        else:
            break
    return schema


def kind_of(schema: Any, named: dict[str, Any], place: Place) -> Kind:
    """Return the kind of a schema parsed by fastavro; raise SchemaError if Spark lacks a type."""
    schema = resolved(schema, named)
    if isinstance(schema, list):
        return _union(schema, named, place)
    name = schema["type"]
    kind = _logical(schema, place)
    if kind is None and name in PRIMITIVES:
        return Kind(*PRIMITIVES[name])
    if kind is None:
        kind = _KINDS[name](schema, named, place)
    # Values of named types may be tagged; so may arrays and maps that are defaults of a union.
    kind.untag = "name" in schema or name in {"array", "map"}
    return kind


def _array(schema: Any, named: dict[str, Any], place: Place) -> Kind:
    return List(kind_of(schema["items"], named, place.items()))


def _map(schema: Any, named: dict[str, Any], place: Place) -> Kind:
    return Map(Kind(*PRIMITIVES["string"]), kind_of(schema["values"], named, place.values()))


def _record(schema: Any, named: dict[str, Any], place: Place) -> Kind:
    inner = place.inside(schema["name"], f"record {schema['name']}")
    parts = ((field["name"], field["type"]) for field in schema["fields"])
    fields = {name: kind_of(kind, named, inner.field(name)) for name, kind in parts}
    return Record(fields, [field["name"] for field in schema["fields"] if "default" not in field])


_KINDS: Final = {
    "array": _array,
    "map": _map,
    "record": _record,
    "enum": lambda schema, *_: Enum(schema["symbols"]),
    "fixed": lambda schema, *_: Fixed(schema["size"]),
}


def _logical(schema: Any, place: Place) -> Kind | None:
    """Return the kind of a valid logical type; None if the schema has none."""
    base, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > 38:
            raise SchemaError(
                f"{place}: decimal({precision}, {scale}): Spark has at most 38 digits. Pass "
                f"a reader's schema (schema=) with only the {base}, or without the field"
            )
        return Decimal(precision, scale, schema.get("size"))
    if logical == "uuid" and base == "fixed":
        return FixedUuid()
    if logical == "date":
        return Kind(T.DateType(), pa.int32())
    family, _, unit = (logical or "").rpartition("-")
    if family in {"timestamp", "local-timestamp"}:
        return Timestamp(unit, local=family != "timestamp")
    if logical == "duration":
        raise SchemaError(
            f"{place}: Spark has no type for a duration, which is months, days and milliseconds. "
            "Pass a reader's schema (schema=) with only the fixed, or without the field"
        )
    return None


def _union(schema: list[Any], named: dict[str, Any], place: Place) -> Kind:
    nullable = "null" in schema
    branches = [branch for branch in schema if branch != "null"]
    if len(branches) <= 1:
        union = kind_of(branches[0] if branches else "null", named, place)
        # Without a tag, fastavro would guess a value's member, which fails for nested unions.
        union.tag = tag_of(branches[0], named) if union.tagged else None
    else:
        tags = [tag_of(branch, named) for branch in branches]
        for pair in ({"int", "long"}, {"float", "double"}):
            if pair <= {*tags}:
                raise SchemaError(
                    f"{place}: in a union of {' and '.join(sorted(pair))}, the type of a value is "
                    "ambiguous. Pass a reader's schema (schema=) with one of them"
                )
        union = Union(_members(tags, [kind_of(branch, named, place) for branch in branches]))
    union.nullable = union.nullable or nullable
    return union


def tag_of(branch: Any, named: dict[str, Any]) -> str:
    """Return fastavro's name for a member of a union."""
    if isinstance(branch, str):
        return str(named.get(branch, {}).get("name", branch))
    return str(branch["name"] if "name" in branch else branch["type"])


def without_invalid(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema's JSON without invalid logical types, which Avro ignores."""
    if "logicalType" in part and "type" in part and not _is_valid(part):
        return {name: value for name, value in part.items() if name != "logicalType"}
    return part


def _is_valid(schema: dict[str, Any]) -> bool:
    base, size = schema["type"], schema.get("size")
    if not isinstance(base, str) or not isinstance(schema["logicalType"], str):
        # For example, beside a field's type instead of in it.
        return False
    if schema["logicalType"] != "decimal":
        return (schema["logicalType"], base, size if base == "fixed" else None) in _LOGICAL
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return False
    fits = type(size) is int and precision <= math.log10(2) * (8 * size - 1)
    return precision > 0 and (base == "bytes" or (base == "fixed" and fits))


def _members(tags: list[str], kinds: Iterable[Kind]) -> dict[str, tuple[str, Kind]]:
    """Return a union's members by type name, without the namespace if that is unambiguous."""
    short = [tag.rpartition(".")[2] for tag in tags]
    names = [
        tag.replace(".", "_") if short.count(name) > 1 else name
        for tag, name in zip(tags, short, strict=True)
    ]
    return dict(zip(names, zip(tags, kinds, strict=True), strict=True))
