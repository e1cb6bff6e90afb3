"""Maps Avro types to columns; refuses types that Spark lacks.

Converts values to columns and back; fastavro handles only their underlying types.
"""

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.kinds import PRIMITIVES, BadValueError, Kind, Place
from spark_eos.schemas.nested import List, Map, Record, check_filled

# Microseconds per unit, as a fraction.
UNITS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}
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


class Timestamp(Kind):
    def __init__(self, unit: str, *, local: bool) -> None:
        super().__init__(T.TimestampNTZType() if local else T.TimestampType(), pa.int64())
        self._micros, self._own = UNITS[unit]

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return _times(pa.array(values, pa.int64()), self._micros, self._own).cast(self.arrow)

    def _to_wire(self, array: pa.Array) -> pa.Array:
        # Milliseconds are rounded down, as in the sink's own timestamps.
        return _times(array.cast(pa.int64()), self._own, self._micros)


def _times(array: pa.Array, factor: int, divisor: int) -> pa.Array:
    """Multiply integers by a fraction, and round down."""
    if factor != 1:
        array = pc.multiply_checked(array, factor)
    if divisor == 1:
        return array
    # Arrow's own division rounds towards zero.
    quotients = np.floor_divide(np.asarray(array.fill_null(0)), divisor)
    return pa.array(quotients, mask=np.asarray(array.is_null()))


class Decimal(Kind):
    def __init__(self, precision: int, scale: int, size: int | None) -> None:
        super().__init__(T.DecimalType(precision, scale), pa.binary())
        self._limit = 10**precision
        self._size = size

    def _array(self, values: Sequence[Any]) -> pa.Array:
        numbers = []
        for raw in values:
            number = int.from_bytes(raw or b"", "big", signed=True)
            if abs(number) >= self._limit:
                raise BadValueError(f"a number has more digits than {self.spark.simpleString()}")
            numbers.append(number.to_bytes(16, "little", signed=True))
        valid = pa.array([raw is not None for raw in values], pa.bool_()).buffers()[1]
        buffers = [valid, pa.py_buffer(b"".join(numbers))]
        return pa.Array.from_buffers(self.arrow, len(values), buffers)

    def _to_wire(self, array: pa.Array) -> pa.Array:
        numbers = array.cast(self.arrow)
        numbers = memoryview(numbers.buffers()[1] or b"")[16 * numbers.offset :]
        made = []
        for row in range(len(array)):
            number = int.from_bytes(numbers[16 * row : 16 * row + 16], "little", signed=True)
            # The same size as in fastavro, and therefore in Confluent's serializer.
            size = self._size or (number.bit_length() + 8) // 8
            made.append(number.to_bytes(size, "big", signed=True))
        return pa.array(made, pa.binary())

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        given, own = (cast("T.DecimalType", kind_) for kind_ in (kind, self.spark))
        more = given.precision - given.scale > own.precision - own.scale
        if more or given.scale > own.scale:
            raise SchemaError(
                f"{path} is {kind.simpleString()}, which may not fit the schema's "
                f"{self.spark.simpleString()}: cast it"
            )


class FixedUuid(Kind):
    def __init__(self) -> None:
        super().__init__(T.StringType(), pa.binary())

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([raw and str(uuid.UUID(bytes=raw)) for raw in values], self.arrow)

    def _to_wire(self, array: pa.Array) -> pa.Array:
        texts = array.to_pylist()
        try:
            return pa.array([uuid.UUID(text).bytes for text in texts], pa.binary())
        except ValueError:
            raise BadValueError("a text is not a UUID") from None


class Enum(Kind):
    def __init__(self, symbols: Sequence[str]) -> None:
        super().__init__(T.StringType(), pa.string())
        self._symbols = dict.fromkeys(symbols)

    def _values(self, array: pa.Array) -> list[Any]:
        values = super()._values(array)
        if not self._symbols.keys() >= {*values}:
            raise BadValueError(f"a text is not one of {', '.join(self._symbols)}")
        return values


class Fixed(Kind):
    def __init__(self, size: int) -> None:
        super().__init__(T.BinaryType(), pa.binary())
        self._size = size

    def _values(self, array: pa.Array) -> list[Any]:
        values = super()._values(array)
        if not {self._size} >= {*map(len, values)}:
            raise BadValueError(f"a value does not have {self._size} bytes")
        return values


_MEMBERS: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("int", "long", "double", "float"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}


class Union(Record):
    """A union as a struct with a field for each type, exactly one of which is not null."""

    def __init__(self, members: Mapping[str, tuple[str, Kind]]) -> None:
        super().__init__({name: kind for name, (_, kind) in members.items()})
        self.tagged = True
        self._by_tag = {tag: name for name, (tag, _) in members.items()}
        self._by_type = {
            kind: next(self._by_tag[tag] for tag in tags if tag in self._by_tag)
            for kind, tags in _MEMBERS.items()
            if not self._by_tag.keys().isdisjoint(tags)
        }
        for tag, kind in members.values():
            kind.nullable, kind.tag = True, tag

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return super()._array([None if value is None else self._member(value) for value in values])

    def _member(self, value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            return {self._by_tag[value[0]]: value[1]}
        return {self._by_type[type(value)]: value}

    def _parts(self, records: Sequence[Any], name: str) -> list[Any]:
        return [record.get(name) for record in records]

    def _record(self, names: list[str], parts: tuple[Any, ...]) -> Any:  # noqa: ARG002
        return next(part for part in parts if part is not None)

    def _check_together(self, arrays: Mapping[str, pa.Array], path: str) -> None:
        text = f"{path} must have exactly one member that is not null"
        check_filled(arrays.values(), lambda count: count == 1, text)


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
