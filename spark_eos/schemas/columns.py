"""Which Spark columns can be written as a schema's types, in all formats."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos.errors import SchemaError

# Without loss.
_WIDER: Final[dict[type[T.DataType], tuple[type[T.DataType], ...]]] = {
    T.IntegerType: (T.ByteType, T.ShortType),
    T.LongType: (T.ByteType, T.ShortType, T.IntegerType),
    T.FloatType: (T.ByteType, T.ShortType),
    T.DoubleType: (T.ByteType, T.ShortType, T.IntegerType, T.FloatType),
}


class Column:
    """A type of a schema as a column.

    Args:
        spark: The column's type.
        raw: The Arrow type of the values in records.
        items: Those of an array's items, or of a map's keys and values.
        fields: Those of a struct's fields, by name.
        required: The fields that a column must have.

    Attributes:
        spark: The column's type.
        raw: The Arrow type of the values in records.
        arrow: The Arrow type of the column.
        nullable: Whether a null may be written.
    """

    nullable = False

    def __init__(
        self,
        spark: T.DataType,
        raw: pa.DataType,
        *,
        items: Sequence["Column"] = (),
        fields: Mapping[str, "Column"] | None = None,
        required: Sequence[str] = (),
    ) -> None:
        self.spark = spark
        self.raw = raw
        self.arrow = arrow_schema(T.StructType([T.StructField("one", spark)])).field(0).type
        self._items = items
        self._columns = fields or {}
        self._required = required

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
            if field.name not in self._columns:
                raise SchemaError(
                    f"{where} has a field {field.name!r} that its schema lacks; that has "
                    f"{', '.join(self._columns)}"
                )
            self._columns[field.name].check(field.dataType, dot + field.name)
        for name in self._required:
            if name not in kind.names and not self._columns[name].nullable:
                raise SchemaError(
                    f"{where} lacks the field {name!r}, for which its schema has no default"
                )
