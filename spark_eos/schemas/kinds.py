"""Types of schemas as columns, in all formats: Arrow arrays of what records hold, and back."""

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
REMEDY: Final = "Give schema= a reader's schema without that field"
# Without loss.
_WIDER: Final[dict[type[T.DataType], tuple[type[T.DataType], ...]]] = {
    T.IntegerType: (T.ByteType, T.ShortType),
    T.LongType: (T.ByteType, T.ShortType, T.IntegerType),
    T.FloatType: (T.ByteType, T.ShortType),
    T.DoubleType: (T.ByteType, T.ShortType, T.IntegerType, T.FloatType),
}
# Types that may refer to each other can be few, and their column still too large for any memory.
_MOST_COLUMNS: Final = 20_000


class Place:
    """A place among the types of a schema, which become a column: its path, and what is around."""

    def __init__(
        self, path: str = "", within: frozenset[str] = frozenset(), made: list[int] | None = None
    ) -> None:
        self.path = path
        self._within = within
        self._made = [0] if made is None else made
        self._made[0] += 1
        if self._made[0] > _MOST_COLUMNS:
            raise SchemaError(
                f"the schema has more than {_MOST_COLUMNS:,} columns, fields of fields included. "
                "Give schema= a reader's schema with fewer fields"
            )

    def __str__(self) -> str:
        return self.path or "the schema"

    def field(self, name: str) -> "Place":
        """The place of a field."""
        return self._inner(f"{self.path}.{name}" if self.path else name)

    def items(self) -> "Place":
        """The place of a list's items."""
        return self._inner(f"{self.path}[]")

    def values(self) -> "Place":
        """The place of a map's keys, or of its values."""
        return self._inner(f"{self.path}{{}}")

    def inside(self, name: str, told: str) -> "Place":
        """The same place, in a named type, which must not be around it already."""
        if name in self._within:
            raise SchemaError(
                f"{self}: {told} contains itself, and Spark has no recursive columns. {REMEDY}"
            )
        return self._inner(self.path, name)

    def _inner(self, path: str, *names: str) -> "Place":
        return Place(path, self._within.union(names), self._made)


class BadValueError(PrintableError, ValueError):
    """What is wrong with a value, in words that do not quote it."""


class BadRows(PrintableError):  # noqa: N818 - it is caught where rows are known
    """Rows of a column that can't be written, and what is wrong with each."""

    def __init__(self, errors: dict[int, str]) -> None:
        super().__init__(errors)
        self.errors = errors

    def placed(self, places: np.ndarray) -> "BadRows":
        """The same rows by their places in another column; of several in one place, the first."""
        by_place: dict[int, str] = {}
        for row, text in self.errors.items():
            by_place.setdefault(int(places[row]), text)
        return BadRows(by_place)


def said(error: Exception) -> str:
    """What an error says, if that quotes no value of a row: libraries' errors mostly do."""
    if isinstance(error, BadValueError | json.JSONDecodeError | RecursionError):
        return str(error)
    if isinstance(error, UnicodeError):
        return "a text is no UTF-8"
    return f"a value does not fit its type ({type(error).__name__})"


class CodecResult(NamedTuple):
    """An array with one value for each row, null for those with an error; and errors by row."""

    array: pa.Array
    errors: dict[int, str]


class Kind:
    """Values of one type, as they are: how a column holds them, and what they are written as."""

    nullable = False  # whether a null may be written
    nulls_are_faults = True  # whether they are found here where they may not be written
    tagged = False  # whether there is a union of Avro in it, whose values fastavro tags
    untag = False  # whether values may be tagged though it is no union itself
    # What fastavro calls the member of a union that it is; None if fastavro can tell.
    tag: str | None = None

    def __init__(
        self,
        spark: T.DataType,
        raw: pa.DataType | None = None,  # of the values in records, if it is a single value's
        *,
        items: Sequence["Kind"] = (),  # of an array, or a map's keys and values
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
        """The type of its columns in Arrow."""
        return arrow_schema(T.StructType([T.StructField("one", self.spark)])).field(0).type

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The column of values; raises any exception if one is none of the type."""
        if self.untag:
            values = [value[1] if type(value) is tuple else value for value in values]
        return self._array(values)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        made = pa.array(values, self._raw)
        return made if self._raw == self.arrow else made.cast(self.arrow)

    def values(self, array: pa.Array, path: str) -> Iterable[Any]:
        """What the values of a column without nulls are written as; raises BadRows."""
        parts, errors = judged(self._values, array)
        if errors:
            raise BadRows(
                {row: f"{path}: {text}" if path else text for row, text in errors.items()}
            )
        return parts[0] if len(parts) == 1 else chain.from_iterable(parts)

    def _values(self, array: pa.Array) -> list[Any]:
        made: list[Any] = (array if array.type == self._raw else self._to_wire(array)).to_pylist()
        return made

    def _to_wire(self, array: pa.Array) -> pa.Array:
        return array.cast(self._raw)

    def inner_values(self, array: pa.Array, path: str) -> list[Any]:
        """As `values`, of a column within another: it may have nulls, and members have tags."""
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

    def making(self, array: pa.Array) -> tuple[Iterable[Any], Callable[[Any], Any]]:
        """As `values`, and what makes of each of them what is written; raises BadRows."""
        return self.values(array, ""), lambda value: value

    def check(self, kind: T.DataType, path: str) -> None:
        """Refuses a column of a type that can't be written, with the field's name."""
        if isinstance(kind, T.NullType) and self.nullable:
            return
        wider = _WIDER.get(type(self.spark), ())
        if type(kind) is not type(self.spark) and not isinstance(kind, wider):
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
        """Raises what `check` does."""
        raise SchemaError(
            f"{path or 'the column'} is {kind.simpleString()}, and its schema needs "
            f"{self.spark.simpleString()}"
        )

    def _check_fields(self, kind: T.StructType, path: str) -> None:
        where, dot = path or "the column", f"{path}." if path else ""
        for field in kind:
            if field.name not in self.fields:
                raise SchemaError(
                    f"{where} has a field {field.name!r} that its schema lacks; that has "
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
    rows: Iterable[Any], function: Callable[[Any], Any], told: Callable[[Any], str]
) -> tuple[list[Any], dict[int, str]]:
    """What a function makes of each row, None of a null and a bad one; and errors by row."""
    made, errors = [], {}
    for row, one in enumerate(rows):
        value = None
        if one is not None:
            try:
                value = function(one)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - any is the row's fault
                errors[row] = told(error)
        made.append(value)
    return made, errors


def judged(function: Callable[[Any], Any], rows: Any) -> tuple[list[Any], dict[int, str]]:
    """What a function makes of rows, in parts; None of a row that it refuses; and errors by row."""

    def checked(part: Any) -> Any:
        try:
            return function(part)
        except MemoryError:
            raise  # No row's fault.
        except Exception as error:  # noqa: BLE001 - of Arrow, of formats' packages, of Python
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
    """As `judged`, of a function that makes a column of a type and has errors of its own."""
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
    """Rows that all are null, without a type, get one."""
    return pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array
