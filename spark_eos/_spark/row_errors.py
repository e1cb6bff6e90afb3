"""Handles rows that `guarded`, `decode` and `encode` can't process."""

import functools
from collections.abc import Mapping
from typing import Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos._client.printable import printable
from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.columns import PLACE, SOURCE
from spark_eos._spark.dead_letter_columns import (
    ERROR_FIELD,
    ERROR_TEXTS,
    carries_letter,
    check_error_column,
    has_error_column,
)
from spark_eos._spark.signed_errors import ERRORS_CARRIED, job_tags
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import ConfigurationError, SparkEosError

_COLUMN_IS_FOR_YOU: Final = (
    "errors='column' keeps such rows, with nulls and a column `error`, for you to handle"
)


class RowError(NamedTuple):
    """Why a row can't be processed; ``exception`` is the name of the exception's class."""

    message: str
    exception: str
    stacktrace: str | None = None
    cause: Exception | None = None


class RowErrors:
    """Puts the errors of bad rows into ``error`` or ``source``, or ends the job with an error."""

    # A direct query can't drop an error in ``source``, because no row is written directly without
    # ``source``. So a task puts errors there only in those jobs of the sink that make dead letters.
    # In any other job, a bad row fails the job: the query may drop ``source``, as staged queries
    # do, and the error would then be lost unnoticed.

    def __init__(self, place: str | None, raised: type[SparkEosError]) -> None:
        self._place = place
        self._raised = raised
        self.fields = (ERROR_FIELD,) if place == ERROR else ()

    @classmethod
    def of(
        cls, schema: T.StructType, errors: str | None, raised: type[SparkEosError]
    ) -> "RowErrors":
        """Choose what happens to a frame's bad rows; ``errors`` is as for `guarded`."""
        if errors is None and has_error_column(schema):
            errors = "column"  # like an earlier function of the query
        if errors == "column":
            check_error_column(schema)
            return cls(ERROR, raised)
        if errors is None and carries_letter(schema):
            return cls(SOURCE, raised)
        if errors in {None, "raise"}:
            return cls(None, raised)
        raise ConfigurationError(f"errors is {errors!r}; it must be 'column' or 'raise'")

    def put(
        self, batch: pa.RecordBatch, columns: dict[str, pa.Array], errors: Mapping[int, RowError]
    ) -> None:
        """Add the errors, by row, to a batch's new columns; a row keeps its first error."""
        if self._place == ERROR:
            # An `error` column may have any type that dead letters allow, so convert it.
            kind = _arrow_type()
            before = columns.get(ERROR)
            before = pa.nulls(batch.num_rows, kind) if before is None else _as_error(before, kind)
            columns[ERROR] = _joined(before, errors)
            return
        if not errors:
            return
        if self._place is None:
            self._end(
                batch,
                errors,
                "With dead_letters, bad rows of sink.read that keep `source` become dead letters; "
                + _COLUMN_IS_FOR_YOU,
            )
        source = columns[SOURCE]
        if ERRORS_CARRIED not in job_tags() or not all(source[row].is_valid for row in errors):
            self._end(
                batch,
                errors,
                "The error of a bad row is kept in `source`, and only a direct or mirrored query "
                "of a sink with dead_letters turns it into a dead letter; this is a different "
                f"query or job. {_COLUMN_IS_FOR_YOU}",
            )
        parts = dict(zip(_names(source.type), source.flatten(), strict=True))
        parts[ERROR] = _joined(parts[ERROR], errors)
        columns[SOURCE] = pa.StructArray.from_arrays(
            [*parts.values()], fields=[*source.type], mask=source.is_null()
        )

    def _end(self, batch: pa.RecordBatch, errors: Mapping[int, RowError], advice: str) -> NoReturn:
        row = min(errors)
        error = errors[row]
        own = f"{self._raised.__module__}.{self._raised.__qualname__}"
        text = error.message if error.exception == own else f"{error.exception}: {error.message}"
        raise self._raised(f"{position_of(batch, row)}{printable(text)}. {advice}") from error.cause


def bad_rows(batch: pa.RecordBatch) -> pa.Array:
    bad = pa.repeat(False, batch.num_rows)  # noqa: FBT003 - a value
    names = batch.schema.names
    # Compare the names only: the texts may be of Arrow's large string type.
    if ERROR in names and _names(batch.column(ERROR).type) == [*ERROR_TEXTS]:
        bad = batch.column(ERROR).is_valid()
    if SOURCE in names and ERROR in _names(batch.column(SOURCE).type):
        bad = pc.or_(bad, pc.struct_field(batch.column(SOURCE), ERROR).is_valid())
    return bad


@functools.cache
def _arrow_type() -> pa.DataType:
    return arrow_schema(T.StructType([ERROR_FIELD])).field(0).type


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind] if pa.types.is_struct(kind) else []


def _joined(before: pa.Array, errors: Mapping[int, RowError]) -> pa.Array:
    if not errors:
        return before
    rows = len(before)
    made = pa.array([_value(errors.get(row)) for row in range(rows)], before.type)
    kept = enumerate(before.is_valid().to_pylist())
    both = pa.concat_arrays([before, made])
    return both.take(pa.array([row if valid else rows + row for row, valid in kept]))


def _value(error: RowError | None) -> dict[str, str | None] | None:
    if error is None:
        return None
    # Escape lone surrogates, which UTF-8 can't encode.
    texts = ((name, getattr(error, name)) for name in ERROR_TEXTS)
    return {
        name: text and text.encode("utf-8", "backslashreplace").decode() for name, text in texts
    }


def _as_error(before: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert errors that are strings, or lack some fields, to structs with all fields."""
    if before.type == kind:
        return before
    nothing = pa.nulls(len(before), pa.string())
    if pa.types.is_struct(before.type):
        fields = {field.name: before.field(field.name) for field in before.type}
    else:
        fields = {"message": before}
    arrays = [fields.get(field.name, nothing).cast(field.type) for field in kind]
    return pa.StructArray.from_arrays(arrays, fields=[*kind], mask=before.is_null())


def position_of(batch: pa.RecordBatch, row: int) -> str:
    """Return where a row comes from, as the start of a message; empty if that is unknown."""
    source = batch.column(SOURCE) if SOURCE in batch.schema.names else None
    if source is None or not set(PLACE) <= set(_names(source.type)) or not source[row].is_valid:
        return ""
    # Convert no other field: Python can't represent every timestamp.
    topic, partition, offset = (pc.struct_field(source, name)[row].as_py() for name in PLACE)
    if None in (topic, partition, offset):
        return ""
    return f"{topic}-{partition}, offset {offset}: "


def with_place_only(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose ``source`` has only topic, partition and offset."""
    # Drop the record carried for dead letters: Python can't represent every timestamp.
    place = batch.schema.get_field_index(SOURCE)
    source = None if place < 0 else batch.column(place)
    if source is None or not set(PLACE) < set(_names(source.type)):
        return batch
    fields = [source.type.field(name) for name in PLACE]
    parts = [pc.struct_field(source, name) for name in PLACE]
    own = pa.StructArray.from_arrays(parts, fields=fields, mask=source.is_null())
    return batch.set_column(place, SOURCE, own)
