"""Wraps functions so that a row on which they raise has an ``error``, and others are not affected.

With ``dead_letters``, such a row becomes a dead letter. Outages must never make dead letters,
so they still fail the query: `spark_eos._spark.outages` tells which errors are outages.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.columns import SOURCE
from spark_eos._spark.dead_letter_columns import ERROR_FIELD, ERROR_TEXTS
from spark_eos._spark.outages import is_outage
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError

_KINDS: Final = ("rows", "pandas", "arrow")
_ERROR_ARROW: Final = pa.struct([(name, pa.string()) for name in ERROR_TEXTS])

_Made = tuple[pa.RecordBatch, Sequence[dict[str, Any] | None]]


def guarded(
    frame: DataFrame,
    function: Callable[[Any], Any],
    schema: str | T.StructType,
    *,
    kind: str = "rows",
    stacktrace: bool = False,
    outages: Sequence[type[Exception]] = (),
) -> DataFrame:
    """Applies a function to all rows; where it raises, the row gets an ``error`` instead.

    Each row of the result is made of one row. If a function of batches raises, the batch is halved
    until the rows at fault are alone: one bad row costs one row. So it must treat rows
    independently of each other, and may be called more than once for the same row.

    Args:
        frame: The rows, with ``source`` if they are to be written directly.
        function: With kind ``rows``, from a dictionary of a row's columns to a dictionary of the
            columns of ``schema``. With ``pandas``, from a pandas DataFrame to one with these
            columns, and with ``arrow`` from a ``pyarrow.RecordBatch`` to one, with as many rows.
        schema: The columns that the function makes, without ``source`` and ``error``.
        kind: ``rows``, ``pandas`` or ``arrow``.
        stacktrace: Whether to keep the stack trace of each error, which may show values.
        outages: Further exceptions that are no row's fault, and fail the query. OSError (with it
            connections, time-outs and requests' errors), MemoryError, KafkaException, the outages
            of well-known clients, and answers such as 503 always do.

    An error that one of these has led to (``raise ... from``, or raised while it was handled) fails
    the query too, but not if it is raised ``from None``.

    A row that has such an ``error`` already, of another guarded function or of
    `spark_eos.schemas`, keeps it, and the function is not called for it.

    Returns:
        ``source``, if ``frame`` has it; the columns of ``schema``, null where the function has
        raised; and ``error``, struct<message, exception, stacktrace>, null where it has not.

    Raises:
        ConfigurationError: ``kind`` is none of the three.
        UnsupportedPipelineError: ``schema`` has a column ``source`` or ``error``.

    Examples:
        Rows that are not JSON become dead letters:

            def parse(row):
                order = json.loads(row["value"])
                return {"key": order["customer"].encode(), "value": row["value"]}

            frame = guarded(orders, parse, "key binary, value binary")
            query = sink.write(frame).start()
    """
    if kind not in _KINDS:
        raise ConfigurationError(f"kind is {kind!r}; it must be 'rows', 'pandas' or 'arrow'")
    made = schema if isinstance(schema, T.StructType) else _parsed(schema)
    if taken := {SOURCE, ERROR} & set(made.names):
        raise UnsupportedPipelineError(
            f"the function's columns include {', '.join(sorted(taken))}, which are added to them"
        )
    whole = T.StructType(
        [
            *([frame.schema[SOURCE]] if SOURCE in frame.columns else []),
            *(T.StructField(field.name, field.dataType) for field in made),
            ERROR_FIELD,
        ]
    )
    guard = _Guard(function, made.names, kind, tuple(outages), stacktrace=stacktrace)
    return frame.mapInArrow(_Mapping(guard, made, whole.names), whole)


def _parsed(ddl: str) -> T.StructType:
    return cast("T.StructType", T.StructType.fromDDL(ddl))


class _Guard:
    """Calls the user's function on a batch, or on parts of it."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        columns: Sequence[str],
        kind: str,
        outages: tuple[type[Exception], ...],
        *,
        stacktrace: bool,
    ) -> None:
        self._function = function
        self._columns = list(columns)
        self._kind = kind
        self._outages = outages
        self._stacktrace = stacktrace

    def _is_no_rows_fault(self, error: Exception) -> bool:
        return isinstance(error, UnsupportedPipelineError) or is_outage(error, self._outages)

    def made(self, batch: pa.RecordBatch, types: pa.Schema) -> Iterator[_Made]:
        """Yields batches of the function's columns, with the error or None of each row."""
        try:
            found = self._by_row(batch, types) if self._kind == "rows" else self._by_batch(batch)
            found = self._checked(found, batch, types)
        except Exception as error:
            if self._is_no_rows_fault(error):
                raise
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                yield from self.made(batch.slice(0, half), types)
                yield from self.made(batch.slice(half), types)
                return
            nothing = [pa.nulls(1, types.field(name).type) for name in self._columns]
            found = (pa.RecordBatch.from_arrays(nothing, self._columns), [self._told(error)])
        yield found

    def _by_row(self, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        errors: list[dict[str, Any] | None] = []
        rows: list[Mapping[str, Any]] = []
        nothing = dict.fromkeys(self._columns)
        for row in batch.to_pylist():
            try:
                rows.append(self._function(row))
                errors.append(None)
            except Exception as error:
                if self._is_no_rows_fault(error):
                    raise
                rows.append(nothing)
                errors.append(self._told(error))
        columns = {
            name: pa.array([row[name] for row in rows], types.field(name).type)
            for name in self._columns
        }
        return pa.RecordBatch.from_pydict(columns), errors

    def _by_batch(self, batch: pa.RecordBatch) -> _Made:
        if self._kind == "pandas":
            made = self._function(batch.to_pandas())
            found = pa.RecordBatch.from_pandas(made[self._columns], preserve_index=False)
        else:
            found = self._function(batch)
        return found, [None] * found.num_rows

    def _checked(self, made: _Made, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        found, errors = made
        if found.num_rows != batch.num_rows:
            raise UnsupportedPipelineError(
                f"the guarded function has made {found.num_rows} rows of {batch.num_rows}; it must "
                "make one of each. Filter before or after it, and explode after it"
            )
        columns = [found.column(name).cast(types.field(name).type) for name in self._columns]
        return pa.RecordBatch.from_arrays(columns, self._columns), errors

    def _told(self, error: Exception) -> dict[str, Any]:
        kind = type(error)
        trace = None
        if self._stacktrace:
            trace = "".join(traceback.format_exception(kind, error, error.__traceback__))
        return {
            "message": _text(error) or kind.__name__,
            "exception": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            "stacktrace": trace and _encodable(trace),
        }


def _text(error: Exception) -> str:
    try:
        return _encodable(str(error))
    except Exception:  # noqa: BLE001 - it is the user's own
        return ""


def _encodable(text: str) -> str:
    """The text, with what UTF-8 has no form for escaped: half a pair of surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _by_errors(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, list[Any] | None]]:
    """Consecutive rows, and the errors that they have from functions or decoding before, if any."""
    names = batch.schema.names
    errors: Any = batch.column(names.index(ERROR)) if ERROR in names else pa.nulls(batch.num_rows)
    # Of another type, it is the user's own.
    if not pa.types.is_struct(errors.type) or [one.name for one in errors.type] != [*ERROR_TEXTS]:
        if batch.num_rows:
            yield batch, None
        return
    start = 0
    for has_error, run in groupby(errors.is_valid().to_pylist()):
        rows = batch.slice(start, len([*run]))
        start += rows.num_rows
        yield rows, rows.column(ERROR).to_pylist() if has_error else None


class _Mapping:
    """The function for ``mapInArrow``."""

    def __init__(self, guard: _Guard, made: T.StructType, names: Sequence[str]) -> None:
        self._guard = guard
        self._made = made
        self._names = list(names)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = arrow_schema(self._made)
        for batch in batches:
            for rows, before in _by_errors(batch):
                if before is not None:
                    nothing = [pa.nulls(rows.num_rows, field.type) for field in types]
                    made = pa.RecordBatch.from_arrays(nothing, self._made.names)
                    yield self._whole(rows, made, before)
                    continue
                start = 0
                for made, errors in self._guard.made(rows, types):
                    yield self._whole(rows.slice(start, made.num_rows), made, errors)
                    start += made.num_rows

    def _whole(
        self, rows: pa.RecordBatch, made: pa.RecordBatch, errors: Sequence[Any]
    ) -> pa.RecordBatch:
        columns = [rows.column(SOURCE)] if SOURCE in self._names else []
        columns += [*made.columns, pa.array(errors, _ERROR_ARROW)]
        return pa.RecordBatch.from_arrays(columns, self._names)
