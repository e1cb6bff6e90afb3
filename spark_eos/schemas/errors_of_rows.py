"""The ``error`` column that bad records get, beside errors that rows already have."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.dead_letter_columns import ERROR_TEXTS, check_error_column
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import ConfigurationError, SchemaError

_CLASS: Final = f"{SchemaError.__module__}.{SchemaError.__qualname__}"
_CHOICES: Final = ("column", "raise")


class RowErrors:
    """What becomes of bad records: an ``error`` each, or the end of the query.

    Args:
        schema: The columns before.
        errors: ``column`` or ``raise``.

    Raises:
        ConfigurationError: ``errors`` is neither.
        UnsupportedPipelineError: There is an ``error`` column of another type.
    """

    def __init__(self, schema: T.StructType, errors: str) -> None:
        if errors not in _CHOICES:
            raise ConfigurationError(f"errors is {errors!r}; it must be 'column' or 'raise'")
        self._raises = errors == "raise"
        if not self._raises:
            check_error_column(schema)
        self._is_new = ERROR not in schema.names
        texts = [T.StructField(name, T.StringType()) for name in ERROR_TEXTS]
        made = T.StructField(ERROR, T.StructType(texts))
        self._field = made if self._is_new else schema[ERROR]

    def added(self) -> list[T.StructField]:
        """The columns that come to the others."""
        return [self._field] if self._is_new and not self._raises else []

    def put(
        self, batch: pa.RecordBatch, columns: dict[str, pa.Array], errors: Mapping[int, str]
    ) -> None:
        """Adds errors by row to the columns of a batch; a row's first error stays."""
        if self._raises:
            if errors:
                row = min(errors)
                raise SchemaError(f"{_position(batch, row)}{errors[row]}")
            return
        if not self._is_new and not errors:
            return
        kind = arrow_schema(T.StructType([self._field])).field(0).type
        texts = (errors.get(row) for row in range(batch.num_rows))
        made = pa.array([text and self._value(text) for text in texts], kind)
        if not self._is_new:
            before = columns[ERROR]
            rows = batch.num_rows
            kept = enumerate(before.is_valid().to_pylist())
            both = pa.concat_arrays([before, made.cast(before.type)])
            made = both.take(pa.array([row if valid else rows + row for row, valid in kept]))
        columns[ERROR] = made

    def _value(self, text: str) -> Any:
        text = text.encode("utf-8", "backslashreplace").decode()
        return (
            text
            if isinstance(self._field.dataType, T.StringType)
            else {
                name: {"message": text, "exception": _CLASS}.get(name)
                for name in self._field.dataType.names  # type: ignore[attr-defined]
            }
        )


def _position(batch: pa.RecordBatch, row: int) -> str:
    if "source" not in batch.schema.names:
        return ""
    source = batch.column("source")[row].as_py() or {}
    if not {"topic", "partition", "offset"} <= source.keys():
        return ""
    return f"{source['topic']}-{source['partition']}, offset {source['offset']}: "
