"""Types of schemas as columns, in all formats: Arrow arrays of what records hold, and back."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
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
# Without loss.
_WIDER: Final[dict[type[T.DataType], tuple[type[T.DataType], ...]]] = {
    T.IntegerType: (T.ByteType, T.ShortType),
    T.LongType: (T.ByteType, T.ShortType, T.IntegerType),
    T.FloatType: (T.ByteType, T.ShortType),
    T.DoubleType: (T.ByteType, T.ShortType, T.IntegerType, T.FloatType),
}


class BadValueError(PrintableError, ValueError):
    """What is wrong with a value, in words that do not quote it."""


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


class Written(NamedTuple):
    """What a column's rows are written from, None for nulls and faults; and faults by row."""

    values: Iterable[Any]
    faults: dict[int, str]  # all are there once the values have been passed over


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
        self.arrow = arrow_schema(T.StructType([T.StructField("one", spark)])).field(0).type
        self.nullable = isinstance(spark, T.NullType)
        self._raw = raw
        self._items = items
        self._fields = fields or {}
        self._required = required

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The column of values; raises what `bisect_failures` takes."""
        if self.untag:
            values = [one[1] if type(one) is tuple else one for one in values]
        return self._array(values)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        made = pa.array(values, self._raw)
        return made if self._raw == self.arrow else made.cast(self.arrow)

    def values(self, array: pa.Array, path: str) -> Written:
        """What the values of a column are written as."""
        made = bisect_failures(self._to_wire, array, self._raw)
        return Written(made.array.to_pylist(), located(path, made.errors))

    def _to_wire(self, array: pa.Array) -> pa.Array:
        return array if array.type == self._raw else array.cast(self._raw)

    def inner_values(self, array: pa.Array, path: str) -> Written:
        """As `values`, of a column within another: a null may be a fault, and members have tags."""
        array = typed(array, self.arrow)
        found, faults = self.values(array, path)
        values = [*found]
        if array.null_count and not self.nullable and self.nulls_are_faults:
            text = f"{path} is null, which its schema does not allow"
            faults |= {row: text for row, one in enumerate(array.is_null().to_pylist()) if one}
        if self.tag is not None:
            values = [one if one is None else (self.tag, one) for one in values]
        return Written(values, faults)

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
            if field.name not in self._fields:
                raise SchemaError(
                    f"{where} has a field {field.name!r} that its schema lacks; that has "
                    f"{', '.join(self._fields)}"
                )
            if kind.names.count(field.name) > 1:
                raise SchemaError(f"{where} has more than one field {field.name!r}")
            self._fields[field.name].check(field.dataType, dot + field.name)
        for name in self._required:
            if name not in kind.names and not self._fields[name].nullable:
                raise SchemaError(
                    f"{where} lacks the field {name!r}, for which its schema has no default"
                )


def located(path: str, errors: Mapping[int, str]) -> dict[int, str]:
    """Errors with the field's name."""
    return {row: f"{path}: {text}" if path else text for row, text in errors.items()}


def refused(array: pa.Array, values: Sequence[Any], text: str) -> Written:
    """The values of a column, with a fault for each that is None and not null there."""
    if values.count(None) == array.null_count:
        return Written(values, {})
    rows = enumerate(zip(values, array.is_valid().to_pylist(), strict=True))
    return Written(values, {row: text for row, (one, valid) in rows if valid and one is None})


def each(
    rows: Iterable[Any],
    function: Callable[[Any], Any],
    bad: tuple[type[Exception], ...],
    told: Callable[[Any], str] = said,
) -> tuple[list[Any], dict[int, str]]:
    """What a function makes of each row, None of a null and a bad one; and errors by row."""
    made, errors = [], {}
    for row, one in enumerate(rows):
        found = None
        if one is not None:
            try:
                found = function(one)
            except bad as error:
                errors[row] = told(error)
        made.append(found)
    return made, errors


def bisect_failures(
    function: Callable[[Any], pa.Array], rows: Any, empty: pa.DataType
) -> CodecResult:
    """Makes an array of rows; if that fails, of each half, until the rows at fault are alone."""
    made = _bisected(function, rows)
    return CodecResult(typed(made.array, empty), made.errors)


def _bisected(function: Callable[[Any], pa.Array], rows: Any) -> CodecResult:
    try:
        return CodecResult(function(rows), {})
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError, LookupError) as error:
        if not len(rows):
            raise
        if len(rows) == 1:
            return CodecResult(pa.nulls(1), {0: said(error)})
        middle = len(rows) // 2
        first, second = _bisected(function, rows[:middle]), _bisected(function, rows[middle:])
        errors = first.errors | {middle + row: text for row, text in second.errors.items()}
        one, other = typed(first.array, second.array.type), second.array
        return CodecResult(pa.concat_arrays([one, typed(other, one.type)]), errors)


def typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Rows that all are null, without a type, get one."""
    return pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array
