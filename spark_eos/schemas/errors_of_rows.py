"""The ``error`` column that bad records get, beside errors that rows already have."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.dead_letter_columns import ERROR_FIELD, ERROR_TEXTS, check_error_column
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import ConfigurationError, SchemaError

_CLASS: Final = f"{SchemaError.__module__}.{SchemaError.__qualname__}"
_CHOICES: Final = ("column", "raise")


class RowErrors:
    """What becomes of bad records: an ``error`` each, or the end of the query.

    A column of that name that dead letters can be made of becomes one of these errors, whatever its
    type, so that all that comes after takes its rows for bad.

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

    def columns(self) -> list[T.StructField]:
        """The column that rows have then, if any."""
        return [] if self._raises else [ERROR_FIELD]

    def put(
        self, batch: pa.RecordBatch, columns: dict[str, pa.Array], errors: Mapping[int, str]
    ) -> None:
        """Adds errors by row to the columns of a batch; a row's first error stays."""
        if self._raises:
            if errors:
                row = min(errors)
                raise SchemaError(f"{_position(batch, row)}{errors[row]}")
            return
        kind, rows = arrow_schema(T.StructType([ERROR_FIELD])).field(0).type, batch.num_rows
        before = _as_error(columns[ERROR], kind) if ERROR in columns else pa.nulls(rows, kind)
        if errors:
            made = pa.array([_value(errors.get(row)) for row in range(rows)], kind)
            kept = enumerate(before.is_valid().to_pylist())
            both = pa.concat_arrays([before, made])
            before = both.take(pa.array([row if valid else rows + row for row, valid in kept]))
        columns[ERROR] = before


def _value(text: str | None) -> dict[str, str | None] | None:
    if text is None:
        return None
    told = {"message": text.encode("utf-8", "backslashreplace").decode(), "exception": _CLASS}
    return {name: told.get(name) for name in ERROR_TEXTS}


def _as_error(before: pa.Array, kind: pa.DataType) -> pa.Array:
    """Errors that are texts, or lack some of the fields, with all fields."""
    if before.type == kind:
        return before
    nothing = pa.nulls(len(before), pa.string())
    if pa.types.is_struct(before.type):
        found = {field.name: before.field(field.name) for field in before.type}
    else:
        found = {"message": before}
    arrays = [found.get(field.name, nothing).cast(field.type) for field in kind]
    return pa.StructArray.from_arrays(arrays, fields=[*kind], mask=before.is_null())


def _position(batch: pa.RecordBatch, row: int) -> str:
    if "source" not in batch.schema.names:
        return ""
    source = batch.column("source")[row].as_py() or {}
    if not {"topic", "partition", "offset"} <= source.keys():
        return ""
    return f"{source['topic']}-{source['partition']}, offset {source['offset']}: "
