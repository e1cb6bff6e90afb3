"""Avro's types as columns: the Spark type of each, and how Arrow arrays go there and back.

Arrays come in two forms. The raw one holds what fastavro reads and writes without logical types:
integers and bytes. The other one is Spark's.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos.errors import SchemaError

Faults = Iterator[tuple[np.ndarray, str]]

_PRIMITIVES: Final[dict[str, tuple[T.DataType, pa.DataType]]] = {
    "null": (T.NullType(), pa.null()),
    "boolean": (T.BooleanType(), pa.bool_()),
    "int": (T.IntegerType(), pa.int32()),
    "long": (T.LongType(), pa.int64()),
    "float": (T.FloatType(), pa.float32()),
    "double": (T.DoubleType(), pa.float64()),
    "bytes": (T.BinaryType(), pa.binary()),
    "string": (T.StringType(), pa.string()),
}
# Without loss.
_WIDER: Final[dict[type[T.DataType], tuple[type[T.DataType], ...]]] = {
    T.IntegerType: (T.ByteType, T.ShortType),
    T.LongType: (T.ByteType, T.ShortType, T.IntegerType),
    T.DoubleType: (T.ByteType, T.ShortType, T.IntegerType, T.FloatType),
}
_UTC: Final = pa.timestamp("us", "UTC")
_LOCAL: Final = pa.timestamp("us")
# Microseconds for each unit, as a fraction.
_UNITS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}


def kind_of(
    schema: Any, named: dict[str, Any], path: str = "", within: Sequence[str] = ()
) -> "Kind":
    """How values of a schema, as fastavro parses it, are a column.

    Raises:
        SchemaError: a type that Spark has no column for; names the field.
    """
    if isinstance(schema, list):
        return _union(schema, named, path, within)
    if isinstance(schema, str) and schema not in _PRIMITIVES:
        schema = named[schema]
    elif isinstance(schema, str):
        schema = {"type": schema}
    name = schema["type"]
    if isinstance(name, list | dict):
        return kind_of(name, named, path, within)
    if (logical := _logical(schema, path or "the schema")) is not None:
        return logical
    if name in _PRIMITIVES:
        return Kind(*_PRIMITIVES[name])
    return {"array": _array, "map": _map, "enum": _enum, "fixed": _fixed, "record": _record}[name](
        schema, named, path, within
    )


def _array(schema: Any, named: dict[str, Any], path: str, within: Sequence[str]) -> "Kind":
    return _Array(kind_of(schema["items"], named, f"{path}[]", within))


def _map(schema: Any, named: dict[str, Any], path: str, within: Sequence[str]) -> "Kind":
    return _Map(kind_of(schema["values"], named, f"{path}{{}}", within))


def _enum(schema: Any, *_: Any) -> "Kind":
    return _Enum(schema)


def _fixed(schema: Any, *_: Any) -> "Kind":
    return _Fixed(schema)


def _record(schema: Any, named: dict[str, Any], path: str, within: Sequence[str]) -> "Kind":
    full = schema["name"]
    if full in within:
        raise SchemaError(
            f"{path}: record {full} contains itself, and Spark has no recursive columns. Give "
            "schema= a reader's schema without that field"
        )
    dot, inner = f"{path}." if path else "", (*within, full)
    names = [(field["name"], field["type"], "default" in field) for field in schema["fields"]]
    return _Record([(name, kind_of(t, named, dot + name, inner), d) for name, t, d in names])


def _logical(schema: Any, where: str) -> "Kind | None":
    """The kind of a logical type; None if there is none, or Avro says to ignore it."""
    base, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and base in {"bytes", "fixed"}:
        precision, scale = schema["precision"], schema.get("scale", 0)
        if precision > 38:
            raise SchemaError(
                f"{where}: decimal({precision}, {scale}): Spark has 38 digits at most"
            )
        return _Decimal(precision, scale, schema.get("size"))
    if logical == "uuid" and base == "fixed" and schema["size"] == 16:
        return _FixedUuid()
    if logical == "date" and base == "int":
        return _Date()
    family, _, unit = (logical or "").rpartition("-")
    if base == "long" and family in {"timestamp", "local-timestamp"} and unit in _UNITS:
        return _Timestamp(unit, local=family != "timestamp")
    if logical == "duration" and base == "fixed":
        raise SchemaError(
            f"{where}: Spark has no type for a duration, which is months, days and milliseconds. "
            "Give schema= a reader's schema with the fixed alone, or without the field"
        )
    return None


class Kind:
    """Values of one type, as they are.

    Attributes:
        spark: The column's type.
        raw: The Arrow type of what fastavro reads.
        arrow: The Arrow type of the column.
        plain: Whether both forms are the same.
        tagged: Whether there is a union in it, whose values fastavro tags.
        converted: Whether values are not written as Arrow has them in Python.
        nullable: Whether a null may be written.
    """

    plain = True
    tagged = False
    converted = False
    nullable = False

    def __init__(self, spark: T.DataType, raw: pa.DataType) -> None:
        self.spark = spark
        self.raw = raw
        self.arrow = arrow_schema(T.StructType([T.StructField("one", spark)])).field(0).type
        self.nullable = isinstance(spark, T.NullType)

    def refined(self, array: pa.Array) -> pa.Array:
        """The column of a raw array."""
        return array if array.type == self.arrow else array.cast(self.arrow)

    def coarsened(self, array: pa.Array) -> pa.Array:
        """The raw array of a column."""
        return array if array.type == self.raw else array.cast(self.raw)

    def check(self, kind: T.DataType, path: str) -> None:
        """Refuses a column of a type that can't be written, with the field's name."""
        if type(kind) is not type(self.spark) and not isinstance(
            kind, _WIDER.get(type(self.spark), ())
        ):
            if isinstance(kind, T.NullType) and self.nullable:
                return
            raise SchemaError(
                f"{path or 'the column'} is {kind.simpleString()}, and its schema needs "
                f"{self.spark.simpleString()}"
            )

    def faults(self, array: pa.Array, path: str) -> Faults:  # noqa: ARG002
        """Yields rows with values that can't be written, and why."""
        yield from ()

    def raw_of(self, value: Any) -> Any:
        """What fastavro has read, with unions as dictionaries of their members."""
        # Tagged with its name, if the writer has a union where the reader has none.
        return value[1] if isinstance(value, tuple) else value

    def to_write(self, value: Any) -> Any:
        """What fastavro writes: maps as dictionaries, and unions as it tells their members."""
        return value


class _Date(Kind):
    plain = False

    def __init__(self) -> None:
        super().__init__(T.DateType(), pa.int32())


class _Timestamp(Kind):
    plain = False

    def __init__(self, unit: str, *, local: bool) -> None:
        super().__init__(T.TimestampNTZType() if local else T.TimestampType(), pa.int64())
        self._micros, self._own = _UNITS[unit]

    def refined(self, array: pa.Array) -> pa.Array:
        return _times(array, self._micros, self._own).cast(self.arrow)

    def coarsened(self, array: pa.Array) -> pa.Array:
        # Rounded down to milliseconds, as the sink's own timestamps.
        return _times(array.cast(pa.int64()), self._own, self._micros)


def _times(array: pa.Array, factor: int, divisor: int) -> pa.Array:
    """Integers times a fraction, rounded down."""
    if factor != 1:
        array = pc.multiply_checked(array, factor)
    if divisor == 1:
        return array
    # Arrow's own division rounds towards zero.
    found = np.floor_divide(np.asarray(array.fill_null(0)), divisor)
    return pa.array(found, mask=np.asarray(array.is_null()))


class _Decimal(Kind):
    plain = False

    def __init__(self, precision: int, scale: int, size: int | None) -> None:
        super().__init__(T.DecimalType(precision, scale), pa.binary())
        self._size = size

    def refined(self, array: pa.Array) -> pa.Array:
        limit = 10**self.spark.precision  # type: ignore[attr-defined]
        numbers = []
        for raw in array.to_pylist():
            number = int.from_bytes(raw or b"", "big", signed=True)
            if abs(number) >= limit:
                raise ValueError(f"{number} has more digits than {self.spark.simpleString()}")
            numbers.append(number.to_bytes(16, "little", signed=True))
        buffers = [_validity(array), pa.py_buffer(b"".join(numbers))]
        return pa.Array.from_buffers(self.arrow, len(array), buffers)

    def coarsened(self, array: pa.Array) -> pa.Array:
        numbers = memoryview(array.cast(self.arrow).take(pa.array(range(len(array)))).buffers()[1])
        made = []
        for row, is_null in enumerate(array.is_null().to_pylist()):
            number = int.from_bytes(numbers[16 * row : 16 * row + 16], "little", signed=True)
            # As fastavro, and so Confluent's serializer, has it.
            size = self._size or (number.bit_length() + 8) // 8
            made.append(None if is_null else number.to_bytes(size, "big", signed=True))
        return pa.array(made, pa.binary())

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        given, own = (cast("T.DecimalType", one) for one in (kind, self.spark))
        more = given.precision - given.scale > own.precision - own.scale
        if more or given.scale > own.scale:
            raise SchemaError(
                f"{path} is {kind.simpleString()}, which may not fit the schema's "
                f"{self.spark.simpleString()}: cast it"
            )


def _validity(array: pa.Array) -> pa.Buffer:
    return array.is_valid().buffers()[1]


class _FixedUuid(Kind):
    plain = False

    def __init__(self) -> None:
        super().__init__(T.StringType(), pa.binary())

    def refined(self, array: pa.Array) -> pa.Array:
        found = (raw and str(uuid.UUID(bytes=raw)) for raw in array.to_pylist())
        return pa.array(list(found), self.arrow)

    def coarsened(self, array: pa.Array) -> pa.Array:
        return pa.array([text and uuid.UUID(text).bytes for text in array.to_pylist()], pa.binary())


class _Enum(Kind):
    def __init__(self, schema: Any) -> None:
        super().__init__(T.StringType(), pa.string())
        self._symbols = pa.array(schema["symbols"], pa.string())

    def faults(self, array: pa.Array, path: str) -> Faults:
        known = pc.is_in(array.cast(pa.string()), self._symbols)
        bad = np.flatnonzero(np.asarray(pc.and_(array.is_valid(), pc.invert(known))))
        for value in pc.unique(array.take(pa.array(bad))).to_pylist():
            found = bad[np.asarray(pc.equal(array, value).fill_null(False))[bad]]  # noqa: FBT003
            yield found, f"{path}: {value!r} is none of {', '.join(self._symbols.to_pylist())}"


class _Fixed(Kind):
    def __init__(self, schema: Any) -> None:
        super().__init__(T.BinaryType(), pa.binary())
        self._size = schema["size"]

    def faults(self, array: pa.Array, path: str) -> Faults:
        other = pc.not_equal(pc.binary_length(array), self._size)
        bad = np.flatnonzero(np.asarray(other.fill_null(False)))  # noqa: FBT003
        yield bad, f"{path} does not have {self._size} bytes"


class _Array(Kind):
    def __init__(self, item: Kind) -> None:
        super().__init__(T.ArrayType(item.spark), pa.list_(item.raw))
        self.plain, self.tagged, self.converted = item.plain, item.tagged, item.converted
        self._item = item

    def refined(self, array: pa.Array) -> pa.Array:
        return _with_child(array, self.arrow, self._item.refined(array.values))

    def coarsened(self, array: pa.Array) -> pa.Array:
        child = self._item.coarsened(array.values)
        return _with_child(array, pa.list_(child.type), child)

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        self._item.check(kind.elementType, f"{path}[]")  # type: ignore[attr-defined]

    def faults(self, array: pa.Array, path: str) -> Faults:
        yield from _item_faults(array, array.values, self._item, f"{path}[]")

    def raw_of(self, value: Any) -> Any:
        return value and [self._item.raw_of(one) for one in value]

    def to_write(self, value: Any) -> Any:
        return value and [self._item.to_write(one) for one in value]


class _Map(Kind):
    converted = True

    def __init__(self, item: Kind) -> None:
        super().__init__(T.MapType(T.StringType(), item.spark), pa.map_(pa.string(), item.raw))
        self.plain, self.tagged = item.plain, item.tagged
        self._item = item

    def refined(self, array: pa.Array) -> pa.Array:
        return _with_items(array, self.arrow, self._item.refined(array.items))

    def coarsened(self, array: pa.Array) -> pa.Array:
        child = self._item.coarsened(array.items)
        return _with_items(array, pa.map_(array.type.key_type, child.type), child)

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        given = cast("T.MapType", kind)
        if not isinstance(given.keyType, T.StringType):
            raise SchemaError(f"{path} is {kind.simpleString()}: keys of Avro's maps are strings")
        self._item.check(given.valueType, f"{path}{{}}")

    def faults(self, array: pa.Array, path: str) -> Faults:
        yield from _item_faults(array, array.items, self._item, f"{path}{{}}")

    def raw_of(self, value: Any) -> Any:
        return value and {key: self._item.raw_of(one) for key, one in value.items()}

    def to_write(self, value: Any) -> Any:
        # Arrow has maps as pairs.
        return None if value is None else {key: self._item.to_write(one) for key, one in value}


def _with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """A list, or a map, with another child; the same slice of the same rows."""
    own = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), own, offset=array.offset, children=[child])


def _with_items(array: pa.Array, kind: pa.DataType, items: pa.Array) -> pa.Array:
    entries = pa.StructArray.from_arrays(
        [array.keys, items], fields=[kind.key_field, kind.item_field]
    )
    return _with_child(array, kind, entries)


def _item_faults(array: pa.Array, items: pa.Array, kind: Kind, path: str) -> Faults:
    """What is wrong with the items of lists or maps, by row of those."""
    offsets = np.asarray(array.offsets)
    begin, end = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
    own = items.slice(begin, end - begin)
    rows = np.repeat(np.arange(len(array)), np.diff(offsets)) if len(array) else offsets[:0]
    yield from ((rows[found], text) for found, text in _null_faults(own, None, kind, path))


def _null_faults(array: pa.Array, within: pa.Array | None, kind: Kind, path: str) -> Faults:
    """What is wrong with values within valid ones, first of all nulls that may not be."""
    if array.null_count and not kind.nullable:
        missing = array.is_null() if within is None else pc.and_(array.is_null(), within)
        yield (
            np.flatnonzero(np.asarray(missing)),
            f"{path} is null, which its schema does not allow",
        )
    yield from kind.faults(array, path)


class _Record(Kind):
    def __init__(self, fields: Sequence[tuple[str, Kind, bool]]) -> None:
        self._fields = {name: kind for name, kind, _ in fields}
        self._with_default = {name for name, _, default in fields if default}
        kinds = self._fields.items()
        super().__init__(
            T.StructType([T.StructField(name, kind.spark) for name, kind in kinds]),
            pa.struct([(name, kind.raw) for name, kind in kinds]),
        )
        self.plain = all(kind.plain for _, kind in kinds)
        self._tagged = [name for name, kind in kinds if kind.tagged]
        self._converted = [name for name, kind in kinds if kind.converted]
        self.tagged, self.converted = bool(self._tagged), bool(self._converted)

    def refined(self, array: pa.Array) -> pa.Array:
        if self.plain and array.type == self.arrow:
            return array
        parts = zip(self._fields.values(), array.flatten(), strict=True)
        return _struct(array, [kind.refined(part) for kind, part in parts], [*self.arrow])

    def coarsened(self, array: pa.Array) -> pa.Array:
        names = [field.name for field in array.type]
        parts = zip(names, array.flatten(), strict=True)
        children = [self._fields[name].coarsened(part) for name, part in parts]
        pairs = zip(names, children, strict=True)
        return _struct(array, children, [pa.field(name, one.type) for name, one in pairs])

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        where, dot = path or "the column", f"{path}." if path else ""
        given = cast("T.StructType", kind)
        for field in given:
            if field.name not in self._fields:
                raise SchemaError(
                    f"{where} has a field {field.name!r} that its schema lacks; that has "
                    f"{', '.join(self._fields)}"
                )
            self._fields[field.name].check(field.dataType, dot + field.name)
        for name, own in self._fields.items():
            if name not in given.names and name not in self._with_default and not own.nullable:
                raise SchemaError(
                    f"{where} lacks the field {name!r}, for which its schema has no default"
                )

    def faults(self, array: pa.Array, path: str) -> Faults:
        dot = f"{path}." if path else ""
        valid = array.is_valid()
        for field, part in zip(array.type, array.flatten(), strict=True):
            yield from _null_faults(part, valid, self._fields[field.name], dot + field.name)

    def raw_of(self, value: Any) -> Any:
        record = value[1] if isinstance(value, tuple) else value
        for name in self._tagged if record is not None else ():
            record[name] = self._fields[name].raw_of(record[name])
        return record

    def to_write(self, value: Any) -> Any:
        for name in self._converted if value is not None else ():
            if name in value:
                value[name] = self._fields[name].to_write(value[name])
        return value


def _struct(array: pa.Array, children: list[pa.Array], fields: list[pa.Field]) -> pa.Array:
    if not fields:
        return array
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


_MEMBERS: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("int", "long", "double", "float"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}


class _Union(Kind):
    """One member of a struct for each type; the others are null."""

    plain = False
    tagged = True
    converted = True

    def __init__(self, members: dict[str, tuple[str, Kind]]) -> None:
        self._members = members
        self._by_tag = {tag: name for name, (tag, _) in members.items()}
        super().__init__(
            T.StructType([T.StructField(name, kind.spark) for name, (_, kind) in members.items()]),
            pa.struct([(name, kind.raw) for name, (_, kind) in members.items()]),
        )
        self._struct = _Record([(name, kind, True) for name, (_, kind) in members.items()])
        for _, kind in members.values():
            kind.nullable = True

    def refined(self, array: pa.Array) -> pa.Array:
        return self._struct.refined(array)

    def coarsened(self, array: pa.Array) -> pa.Array:
        return self._struct.coarsened(array)

    def check(self, kind: T.DataType, path: str) -> None:
        self._struct.check(kind, path)

    def faults(self, array: pa.Array, path: str) -> Faults:
        members = array.flatten()
        found = sum(np.asarray(part.is_valid()).astype(int) for part in members)
        wrong = np.asarray(array.is_valid()) & (found != 1)
        yield np.flatnonzero(wrong), f"{path} must have exactly one member that is not null"
        yield from self._struct.faults(array, path)

    def raw_of(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            name, value = self._by_tag[value[0]], value[1]
        else:
            tags = (tag for tag in _MEMBERS[type(value)] if tag in self._by_tag)
            name = self._by_tag[next(tags)]
        return {name: self._members[name][1].raw_of(value)}

    def to_write(self, value: Any) -> Any:
        if value is None:
            return None
        ((name, one),) = ((name, one) for name, one in value.items() if one is not None)
        tag, kind = self._members[name]
        found = kind.to_write(one)
        return found if tag in {"array", "map"} else (tag, found)


def _union(schema: list[Any], named: dict[str, Any], path: str, within: Sequence[str]) -> Kind:
    nullable = "null" in schema
    branches = [one for one in schema if one != "null"]
    if len(branches) <= 1:
        found = kind_of(branches[0] if branches else "null", named, path, within)
    else:
        tags = [_tag(one) for one in branches]
        for pair in ({"int", "long"}, {"float", "double"}):
            if pair <= {*tags}:
                raise SchemaError(
                    f"{path or 'the schema'}: in a union of {' and '.join(sorted(pair))} nothing "
                    "tells which one a value is. Give schema= a reader's schema with one of them"
                )
        found = _Union(_members(tags, [kind_of(one, named, path, within) for one in branches]))
    found.nullable = found.nullable or nullable
    return found


def _tag(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch["name"] if "name" in branch else branch["type"])


def _members(tags: list[str], kinds: Iterable[Kind]) -> dict[str, tuple[str, Kind]]:
    """The members by name: the type's, without its namespace where that is clear."""
    short = [tag.rpartition(".")[2] for tag in tags]
    names = [
        tag.replace(".", "_") if short.count(name) > 1 else name
        for tag, name in zip(tags, short, strict=True)
    ]
    return dict(zip(names, zip(tags, kinds, strict=True), strict=True))
