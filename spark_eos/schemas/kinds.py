"""Schema types as columns, for all formats: converts values to Arrow arrays and back."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.row_faults import by_halves
from spark_eos.errors import PrintableError, SchemaError

PRIMITIVES: Final[dict[str, tuple[T.DataType, pa.DataType]]] = {
    "null": (T.NullType(), pa.null()),
    "boolean": (T.BooleanType(), pa.bool_()),
    "int": (T.IntegerType(), pa.int32()),
    "long": (T.LongType(), pa.int64()),
    "float": (T.FloatType(), pa.float32()),
    "double": (T.DoubleType(), pa.float64()),
    "bytes": (T.BinaryType(), pa.binary()),
    "string": (T.StringType(), pa.string()),
}
REMEDY: Final = "Set schema= to a reader's schema without that field"
# For each type, narrower types that convert to it without loss.
_NARROWER: Final[dict[type[T.DataType], tuple[type[T.DataType], ...]]] = {
    T.IntegerType: (T.ByteType, T.ShortType),
    T.LongType: (T.ByteType, T.ShortType, T.IntegerType),
    T.FloatType: (T.ByteType, T.ShortType),
    T.DoubleType: (T.ByteType, T.ShortType, T.IntegerType, T.FloatType),
}
# Even a few types that refer to each other can make a column too large for memory.
_MOST_COLUMNS: Final = 20_000


class Place:
    """A type's place in a schema: its path, and the named types that contain it."""

    def __init__(
        self, path: str = "", within: frozenset[str] = frozenset(), made: list[int] | None = None
    ) -> None:
        self.path = path
        self._within = within
        self._made = [0] if made is None else made
        self._made[0] += 1
        if self._made[0] > _MOST_COLUMNS:
            raise SchemaError(
                f"the schema has more than {_MOST_COLUMNS:,} columns, including nested fields. "
                "Set schema= to a reader's schema with fewer fields"
            )

    def __str__(self) -> str:
        return self.path or "the schema"

    def field(self, name: str) -> "Place":
        """Return the place of a field."""
        return self._inner(f"{self.path}.{name}" if self.path else name)

    def items(self) -> "Place":
        """Return the place of a list's items."""
        return self._inner(f"{self.path}[]")

    def values(self) -> "Place":
        """Return the place of a map's keys and values."""
        return self._inner(f"{self.path}{{}}")

    def inside(self, name: str, label: str) -> "Place":
        """Return the place inside a named type; raise SchemaError if the type contains itself."""
        if name in self._within:
            raise SchemaError(
                f"{self}: {label} contains itself, but Spark has no recursive columns. {REMEDY}"
            )
        return self._inner(self.path, name)

    def _inner(self, path: str, *names: str) -> "Place":
        return Place(path, self._within.union(names), self._made)


class BadValueError(PrintableError, ValueError):
    """Says what is wrong with a value, without quoting it."""


class BadRows(PrintableError):  # noqa: N818 - caught where the rows are known
    """Raised for rows of a column that can't be written, with an error text for each."""

    def __init__(self, errors: dict[int, str], path: str = "") -> None:
        super().__init__(errors, path)
        self.errors = {row: f"{path}: {text}" if path else text for row, text in errors.items()}

    def placed(self, places: np.ndarray) -> "BadRows":
        """Return the errors with rows replaced by ``places``; keep each place's first error."""
        by_place: dict[int, str] = {}
        for row, text in self.errors.items():
            by_place.setdefault(int(places[row]), text)
        return BadRows(by_place)


def said(error: Exception) -> str:
    """Return an error's text, or a general text if the error may quote values, as most do."""
    if isinstance(error, BadValueError | json.JSONDecodeError | RecursionError):
        return str(error)
    if isinstance(error, UnicodeError):
        return "a text is not UTF-8"
    return f"a value does not fit its type ({type(error).__name__})"


class CodecResult(NamedTuple):
    """An array with one value per row, null for rows with errors; and the errors by row."""

    array: pa.Array
    errors: dict[int, str]


class Kind:
    """Converts values of one type to columns and back; this base class only casts."""

    nullable = False  # whether nulls may be written
    nulls_are_faults = True  # whether to report nulls that may not be written
    tagged = False  # whether the type contains an Avro union, whose values fastavro tags
    untag = False  # whether values may be tagged although the type is not a union
    # fastavro's name for the type as a union member; None if fastavro finds the member itself.
    tag: str | None = None

    def __init__(
        self,
        spark: T.DataType,
        raw: pa.DataType | None = None,  # the type of values in records; None for containers
        *,
        items: Sequence["Kind"] = (),  # an array's items, or a map's keys and values
        fields: Mapping[str, "Kind"] | None = None,
        required: Sequence[str] = (),  # the fields that a column must have
    ) -> None:
        self.spark = spark
        self.nullable = isinstance(spark, T.NullType)
        self._raw = raw
        self._items = items
        self.fields = fields or {}
        self._required = required

    @cached_property
    def arrow(self) -> pa.DataType:
        """The Arrow type of a column."""
        return arrow_schema(T.StructType([T.StructField("one", self.spark)])).field(0).type

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return the values as a column; may raise any exception if a value has another type."""
        if self.untag:
            values = [value[1] if type(value) is tuple else value for value in values]
        return self._array(values)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        made = pa.array(values, self._raw)
        return made if self._raw == self.arrow else made.cast(self.arrow)

    def values(self, array: pa.Array, path: str) -> Iterable[Any]:
        """Return the values to write for a column without nulls; raise BadRows for bad values."""
        parts, errors = judged(self._values, array)
        if errors:
            raise BadRows(errors, path)
        return parts[0] if len(parts) == 1 else chain.from_iterable(parts)

    def _values(self, array: pa.Array) -> list[Any]:
        made: list[Any] = (array if array.type == self._raw else self._to_wire(array)).to_pylist()
        return made

    def _to_wire(self, array: pa.Array) -> pa.Array:
        return array.cast(self._raw)

    def inner_values(self, array: pa.Array, path: str) -> list[Any]:
        """Like `values`, for a nested column, which may have nulls and tagged union members."""
        array = typed(array, self.arrow)
        if not array.null_count:
            return [*self._tagged(self.values(array, path))]
        valid = np.asarray(array.is_valid())
        if not self.nullable and self.nulls_are_faults:
            text = f"{path} is null, which its schema does not allow"
            raise BadRows(dict.fromkeys(np.flatnonzero(~valid).tolist(), text))
        try:
            rest = iter(self._tagged(self.values(array.drop_null(), path)))
        except BadRows as bad:
            raise bad.placed(np.flatnonzero(valid)) from None
        return [next(rest) if is_valid else None for is_valid in valid.tolist()]

    def _tagged(self, values: Iterable[Any]) -> Iterable[Any]:
        return values if self.tag is None else ((self.tag, value) for value in values)

    def check(self, kind: T.DataType, path: str) -> None:
        """Raise SchemaError, with the field's path, if a column of this type can't be written."""
        if isinstance(kind, T.NullType) and self.nullable:
            return
        narrower = _NARROWER.get(type(self.spark), ())
        if type(kind) is not type(self.spark) and not isinstance(kind, narrower):
            self.refuse(kind, path)
        if isinstance(kind, T.StructType):
            self._check_fields(kind, path)
        items: list[T.DataType] = []
        if isinstance(kind, T.ArrayType):
            items, path = [kind.elementType], f"{path}[]"
        elif isinstance(kind, T.MapType):
            items, path = [kind.keyType, kind.valueType], f"{path}{{}}"
        for own, item in zip(self._items, items, strict=True):
            own.check(item, path)

    def refuse(self, kind: T.DataType, path: str) -> None:
        """Raise the SchemaError of `check`."""
        raise SchemaError(
            f"{path or 'the column'} is {kind.simpleString()}, but its schema needs "
            f"{self.spark.simpleString()}"
        )

    def _check_fields(self, kind: T.StructType, path: str) -> None:
        where, dot = path or "the column", f"{path}." if path else ""
        for field in kind:
            if field.name not in self.fields:
                raise SchemaError(
                    f"{where} has a field {field.name!r} that its schema lacks; the schema has "
                    f"{', '.join(self.fields)}"
                )
            if kind.names.count(field.name) > 1:
                raise SchemaError(f"{where} has more than one field {field.name!r}")
            self.fields[field.name].check(field.dataType, dot + field.name)
        for name in self._required:
            if name not in kind.names and not self.fields[name].nullable:
                raise SchemaError(
                    f"{where} lacks the field {name!r}, for which its schema has no default"
                )


def each(
    rows: Iterable[Any], function: Callable[[Any], Any], describe: Callable[[Any], str]
) -> tuple[list[Any], dict[int, str]]:
    """Return a function's result for each row (None for null and bad rows), and errors by row."""
    made, errors = [], {}
    for row, argument in enumerate(rows):
        value = None
        if argument is not None:
            try:
                value = function(argument)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - any error is the row's fault
                errors[row] = describe(error)
        made.append(value)
    return made, errors


def judged(function: Callable[[Any], Any], rows: Any) -> tuple[list[Any], dict[int, str]]:
    """Return a function's results for parts of the rows (None for a bad row), and errors by row."""

    def checked(part: Any) -> Any:
        try:
            return function(part)
        except MemoryError:
            raise  # Not a row's fault.
        except Exception as error:  # noqa: BLE001 - from Arrow, a format's package or Python
            raise BadValueError(said(error)) from None

    parts: list[Any] = []
    errors: dict[int, str] = {}
    count = 0
    for part in by_halves(checked, rows, (BadValueError,)):
        if part.error is not None:
            errors[count] = str(part.error)
        parts.append(part.made)
        count += len(part.rows)
    return parts, errors


def coded(function: Callable[[Any], CodecResult], rows: Any, kind: pa.DataType) -> CodecResult:
    """Like `judged`, for a function that returns a column of type ``kind`` and its own errors."""
    parts, errors = judged(function, rows)
    arrays: list[pa.Array] = []
    count = 0
    for part in parts:
        array, own = (pa.nulls(1, kind), {}) if part is None else part
        errors |= {count + row: text for row, text in own.items()}
        arrays.append(typed(array, kind))
        count += len(array)
    return CodecResult(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), errors)


def typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Give a type to an untyped array of nulls."""
    return pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array
