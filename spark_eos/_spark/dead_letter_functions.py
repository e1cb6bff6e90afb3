"""Wraps functions so that a row on which they raise has an error, and others are not affected.

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
from spark_eos._spark.dead_letter_columns import has_error_column
from spark_eos._spark.outages import is_outage
from spark_eos._spark.row_errors import RowError, RowErrors, bad_rows, row_errors
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError, WriteError

_KINDS: Final = ("rows", "pandas", "arrow")

_Made = tuple[pa.RecordBatch, Mapping[int, RowError]]


def guarded(
    frame: DataFrame,
    function: Callable[[Any], Any],
    schema: str | T.StructType,
    *,
    kind: str = "rows",
    errors: str | None = None,
    stacktrace: bool = False,
    outages: Sequence[type[Exception]] = (),
) -> DataFrame:
    """Applies a function to all rows; one on which it raises can become a dead letter.

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
        errors: What becomes of a row on which it raises. By default a direct or mirrored query with
            ``dead_letters`` makes a dead letter of it: the function's columns are null, and its
            ``source`` has the error. Any other query ends. ``raise``: each query ends. ``column``:
            the columns are null, and the row gets a column ``error``, struct<message, exception,
            stacktrace>; you decide what becomes of it. If the sink finds this column, it makes a
            dead letter.
        stacktrace: Whether to keep the stack trace of each error, which may show values.
        outages: Further exceptions that are no row's fault, and fail the query. OSError (with it
            connections, time-outs and requests' errors), MemoryError, KafkaException, the outages
            of well-known clients, and answers such as 503 always do.

    An error that one of these has led to (``raise ... from``, or raised while it was handled) fails
    the query too, but not if it is raised ``from None``.

    A row that has an error already, of another guarded function or of `spark_eos.schemas`, keeps
    it, and the function is not called for it.

    Returns:
        ``source``, if ``frame`` has it; the columns of ``schema``; and ``error``, if that was asked
        for here or before.

    Raises:
        ConfigurationError: ``kind`` or ``errors`` can't be used.
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
    # A column `error` of another kind is the function's to read.
    kept = [SOURCE, ERROR] if has_error_column(frame.schema) else [SOURCE]
    passed = T.StructType([field for field in frame.schema if field.name in kept])
    of_rows = row_errors(passed, errors, WriteError)
    new = (T.StructField(field.name, field.dataType) for field in made)
    whole = {field.name: field for field in (*passed, *new, *of_rows.fields)}
    guard = _Guard(function, made.names, kind, tuple(outages), stacktrace=stacktrace)
    mapping = _Mapping(guard, made, passed.names, [*whole], of_rows)
    return frame.mapInArrow(mapping, T.StructType([*whole.values()]))


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
        """Yields batches of the function's columns, with the errors of rows."""
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
            found = (pa.RecordBatch.from_arrays(nothing, self._columns), {0: self._told(error)})
        yield found

    def _by_row(self, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        errors: dict[int, RowError] = {}
        rows: list[Mapping[str, Any]] = []
        nothing = dict.fromkeys(self._columns)
        for number, row in enumerate(batch.to_pylist()):
            try:
                rows.append(self._function(row))
            except Exception as error:
                if self._is_no_rows_fault(error):
                    raise
                rows.append(nothing)
                errors[number] = self._told(error)
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
        return found, {}

    def _checked(self, made: _Made, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        found, errors = made
        if found.num_rows != batch.num_rows:
            raise UnsupportedPipelineError(
                f"the guarded function has made {found.num_rows} rows of {batch.num_rows}; it must "
                "make one of each. Filter before or after it, and explode after it"
            )
        columns = [found.column(name).cast(types.field(name).type) for name in self._columns]
        return pa.RecordBatch.from_arrays(columns, self._columns), errors

    def _told(self, error: Exception) -> RowError:
        kind = type(error)
        trace = None
        if self._stacktrace:
            trace = "".join(traceback.format_exception(kind, error, error.__traceback__))
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        return RowError(_text(error) or kind.__name__, name, trace, error)


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is the user's own
        return ""


class _Mapping:
    """The function for ``mapInArrow``."""

    def __init__(
        self,
        guard: _Guard,
        made: T.StructType,
        passed: Sequence[str],
        names: Sequence[str],
        errors: RowErrors,
    ) -> None:
        self._guard = guard
        self._made = made
        self._passed = list(passed)
        self._names = list(names)
        self._errors = errors

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = arrow_schema(self._made)
        for batch in batches:
            start = 0
            for is_bad, run in groupby(bad_rows(batch).to_pylist()):
                rows = batch.slice(start, len([*run]))
                start += rows.num_rows
                yield from self._made_of(rows, types, is_bad=is_bad)

    def _made_of(
        self, rows: pa.RecordBatch, types: pa.Schema, *, is_bad: bool
    ) -> Iterator[pa.RecordBatch]:
        if is_bad:
            nothing = [pa.nulls(rows.num_rows, field.type) for field in types]
            yield self._whole(rows, pa.RecordBatch.from_arrays(nothing, self._made.names), {})
            return
        start = 0
        for made, errors in self._guard.made(rows, types):
            yield self._whole(rows.slice(start, made.num_rows), made, errors)
            start += made.num_rows

    def _whole(
        self, rows: pa.RecordBatch, made: pa.RecordBatch, errors: Mapping[int, RowError]
    ) -> pa.RecordBatch:
        columns = {name: rows.column(name) for name in self._passed}
        columns |= dict(zip(self._made.names, made.columns, strict=True))
        self._errors.put(rows, columns, errors)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], self._names)
