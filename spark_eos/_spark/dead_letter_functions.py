"""Wraps users' functions so that only the row on which a function raises gets an error."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, NoReturn, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._client.argument_types import typed
from spark_eos._client.printable import printable
from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.columns import SOURCE
from spark_eos._spark.dead_letter_columns import has_error_column
from spark_eos._spark.names import with_known_names
from spark_eos._spark.row_errors import (
    RowError,
    RowErrors,
    bad_rows,
    position_of,
    with_place_only,
)
from spark_eos._spark.row_faults import by_halves, not_of_row
from spark_eos._spark.session_time import SETTING, SessionTime
from spark_eos._spark.signed_errors import signing_in_task
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import (
    ConfigurationError,
    SparkEosError,
    UnsupportedPipelineError,
    WriteError,
    text_of,
)

_KINDS: Final = ("rows", "pandas", "arrow")
_PASSED: Final = (SOURCE, ERROR)
_Made = tuple[pa.RecordBatch, Mapping[int, RowError]]


@typed
def guarded(
    frame: DataFrame,
    function: Callable[[Any], Any],
    schema: str | T.StructType,
    *,
    kind: str = "rows",
    errors: str | None = None,
    row_errors: Sequence[type[Exception]] = (),
    stacktrace: bool = False,
) -> DataFrame:
    """Apply a function to all rows; a row on which it raises can become a dead letter.

    Each row of the frame yields one row of the result. If a function that takes batches raises, the
    batch is halved until the bad rows are isolated, so that no other row is affected. The function
    must treat rows independently of each other, and may be called more than once for the same row.

    Args:
        frame: The rows, with ``source`` if they are to be written directly.
        function: With kind ``rows``, takes a dictionary of a row's columns and returns a dictionary
            of the columns of ``schema``. With ``pandas``, takes a pandas DataFrame and returns one
            with these columns and as many rows; with ``arrow``, the same with a
            ``pyarrow.RecordBatch``.
        schema: The columns that the function returns, without ``source`` and ``error``.
        kind: ``rows``, ``pandas`` or ``arrow``.
        errors: What happens to a row on which the function raises. By default, a direct or mirrored
            query with ``dead_letters`` turns it into a dead letter: the function's columns are
            null, and the row's ``source`` holds the error. Any other query fails. ``raise``: every
            query fails. ``column``: the function's columns are null, and a column ``error``,
            struct<message, exception, stacktrace>, holds the error, for you to handle. If the sink
            finds this column, it writes a dead letter.
        row_errors: Further exceptions that are a row's fault, such as
            ``jsonschema.ValidationError``. Exceptions of Python and its standard library already
            count as a row's fault, and so do classes whose first base is one of them. OSError,
            MemoryError, ImportError, RuntimeError, and the exceptions of modules for networks,
            databases, processes and threads do not count: they may be an outage, and end the query.
            An exception that one of these caused (``raise ... from``, or raised while it was
            handled) also ends the query, unless it was raised ``from None``.
        stacktrace: Whether to keep each error's stack trace, which may show values.

    A row that already has an error, from another guarded function or from `spark_eos.schemas`,
    keeps it, and the function is not called for that row.

    Returns:
        ``source``, if ``frame`` has it; the columns of ``schema``; and ``error``, if it was
        requested here or earlier.

    Raises:
        ConfigurationError: ``kind`` or ``errors`` is not one of the values above.
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
    frame = with_known_names(frame, _PASSED)
    if taken := [name for name in made.names if name.lower() in _PASSED]:
        raise UnsupportedPipelineError(
            f"the function's columns include {', '.join(sorted(taken))}, which guarded adds itself"
        )
    # An `error` column of another type is just input for the function.
    kept = [SOURCE, ERROR] if has_error_column(frame.schema) else [SOURCE]
    passed = T.StructType([field for field in frame.schema if field.name in kept])
    of_rows = RowErrors.of(passed, errors, WriteError)
    new = (T.StructField(field.name, field.dataType) for field in made)
    whole = {field.name: field for field in (*passed, *new, *of_rows.fields)}
    own = (function, made, kind, tuple(row_errors), stacktrace)
    time = SessionTime(frame.sparkSession.conf.get(SETTING) or "UTC")
    guard = _Guard(*own, passed=passed.names, names=[*whole], of_rows=of_rows, time=time)
    return frame.mapInArrow(guard, T.StructType([*whole.values()]))


def _parsed(ddl: str) -> T.StructType:
    return cast("T.StructType", T.StructType.fromDDL(ddl))


@dataclass(frozen=True)
class _Guard:
    """The function for ``mapInArrow``: calls the user's function on each batch or parts of it."""

    function: Callable[[Any], Any]
    schema: T.StructType
    kind: str
    row_errors: tuple[type[Exception], ...]
    stacktrace: bool
    passed: list[str]
    names: list[str]
    of_rows: RowErrors
    time: SessionTime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = arrow_schema(self.schema)
        with signing_in_task():
            for batch in batches:
                yield from self._each_run(batch, types)

    def _each_run(self, batch: pa.RecordBatch, types: pa.Schema) -> Iterator[pa.RecordBatch]:
        start = 0
        for is_bad, run in groupby(bad_rows(batch).to_pylist()):
            rows = batch.slice(start, len([*run]))
            start += rows.num_rows
            yield from self._nulls(rows, types, {}) if is_bad else self._made_of(rows, types)

    def _nulls(
        self, rows: pa.RecordBatch, types: pa.Schema, errors: Mapping[int, RowError]
    ) -> Iterator[pa.RecordBatch]:
        nothing = [pa.nulls(rows.num_rows, field.type) for field in types]
        yield self._whole(rows, pa.RecordBatch.from_arrays(nothing, self.schema.names), errors)

    def _made_of(self, rows: pa.RecordBatch, types: pa.Schema) -> Iterator[pa.RecordBatch]:
        make = partial(self._made, types=types)
        for part in by_halves(make, rows, self.row_errors, self._refuse):
            if part.error is None:
                yield self._whole(part.rows, *part.made)
            else:
                yield from self._nulls(part.rows, types, {0: self._row_error(part.error)})

    def _whole(
        self, rows: pa.RecordBatch, made: pa.RecordBatch, errors: Mapping[int, RowError]
    ) -> pa.RecordBatch:
        columns = {name: rows.column(name) for name in self.passed}
        columns |= dict(zip(self.schema.names, made.columns, strict=True))
        self.of_rows.put(rows, columns, errors)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.names], self.names)

    def _refuse(self, error: Exception, other: BaseException, rows: pa.RecordBatch) -> NoReturn:
        """End the query for an error that may not be a row's fault."""
        if isinstance(error, SparkEosError):
            raise error
        name = _name(type(other))
        text = f": {printable(_text(error))}".removesuffix(": ")
        raise WriteError(
            f"{position_of(rows, 0)}{_name(type(error))}{text}. The query ends because {name} may "
            "be an outage, for which no row is to blame. If it is the row's fault, list it: "
            f"guarded(..., row_errors=[{name}])"
        ) from error

    def _made(self, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        """Return a batch of the function's columns, and the errors by row."""
        given = with_place_only(batch)
        make = self._by_row if self.kind == "rows" else self._by_batch
        return self._checked(make(given, types), batch, types)

    def _by_row(self, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        errors: dict[int, RowError] = {}
        rows: list[Mapping[str, Any]] = []
        nothing = dict.fromkeys(self.schema.names)
        for number, row in enumerate(self.time.rows(batch)):
            try:
                rows.append(self.function(row))
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything
                if (other := not_of_row(error, self.row_errors)) is not None:
                    self._refuse(error, other, batch.slice(number, 1))
                rows.append(nothing)
                errors[number] = self._row_error(error)
        columns = {
            name: self.time.array([row[name] for row in rows], types.field(name).type)
            for name in self.schema.names
        }
        return pa.RecordBatch.from_pydict(columns), errors

    def _by_batch(self, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        if self.kind == "arrow":
            return self.function(batch), {}
        made = self.function(self.time.pandas(batch))[self.schema.names]
        columns = made.assign(
            **{field.name: self.time.series(made[field.name], field.type) for field in types}
        )
        return pa.RecordBatch.from_pandas(columns, preserve_index=False), {}

    def _checked(self, made: _Made, batch: pa.RecordBatch, types: pa.Schema) -> _Made:
        rows, errors = made
        if rows.num_rows != batch.num_rows:
            raise UnsupportedPipelineError(
                f"the guarded function returned {rows.num_rows} rows for {batch.num_rows}; it must "
                "return one for each. Filter before or after it, and explode after it"
            )
        columns = [rows.column(name).cast(types.field(name).type) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, self.schema.names), errors

    def _row_error(self, error: Exception) -> RowError:
        kind = type(error)
        trace = None
        if self.stacktrace:
            trace = "".join(traceback.format_exception(kind, error, error.__traceback__))
        return RowError(_text(error) or kind.__name__, _name(kind), trace, error)


def _name(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _text(error: Exception) -> str:
    try:
        return text_of(error)
    except Exception:  # noqa: BLE001 - the exception's own __str__ may raise
        return ""
