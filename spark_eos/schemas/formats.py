"""What each format of schemas has to know: its types as columns, and how to read and write rows.

A format is one module with one class; nothing else asks which format a schema has.
"""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spark_eos.errors import ConfigurationError, PrintableError, SchemaError


@dataclass(frozen=True)
class Schema:
    """A schema's text.

    Attributes:
        kind: Its format, as registries call it: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: The schema.
        references: Name and text of each schema that it refers to, after those which that one
            refers to itself.
        message: The full name of the message, where a schema may have several; None for the first.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    message: str | None = None


class CodecResult(NamedTuple):
    """An array with one value for each row, null for those with an error; and errors by row."""

    array: pa.Array
    errors: dict[int, str]


Decoder = Callable[[pa.Array], CodecResult]
"""Makes values of payloads: binary, without nulls, without magic byte and id."""


class Encoder(Protocol):
    """Makes payloads of values; a null becomes a null.

    Attributes:
        prefix: Bytes between schema id and payload, such as Protobuf's message indexes.
    """

    prefix: bytes

    def __call__(self, values: pa.Array) -> CodecResult:
        """Payloads, binary."""


class BadValueError(PrintableError, ValueError):
    """What is wrong with a value, in words that do not quote it."""


def said(error: Exception) -> str:
    """What an error says, if that quotes no value of a row: libraries' errors mostly do."""
    if isinstance(error, BadValueError | json.JSONDecodeError | RecursionError):
        return str(error)
    if isinstance(error, UnicodeError):
        return "a text is no UTF-8"
    return f"a value does not fit its type ({type(error).__name__})"


class Format(Protocol):
    """One format of schemas. All methods raise `SchemaError`, with the field at fault."""

    def spark_type(self, schema: Schema) -> T.DataType:
        """The column that values of a schema become; all its parts may be null."""

    def record_name(self, schema: Schema) -> str:
        """The full name of the record that a schema describes, which tells schemas apart."""

    def records(self, schema: Schema, payloads: pa.Array) -> dict[str, np.ndarray]:
        """The rows of each record's full name, among payloads that a schema has written."""

    def decoder(self, writer: Schema, reader: Schema) -> Decoder:
        """Reads what one schema has written as another one has it; for a worker."""

    def encoder(self, schema: Schema, kind: T.DataType) -> Encoder:
        """Writes columns of a type; checks first that they fit. For the driver and workers."""


_FORMATS: Final = {
    "AVRO": "spark_eos.schemas.avro:Avro",
    "JSON": "spark_eos.schemas.json_schema:JsonSchema",
    "PROTOBUF": "spark_eos.schemas.protobuf:Protobuf",
}


def format_of(schema: Schema) -> Format:
    """The format of a schema.

    Raises:
        SchemaError: spark-eos does not have it.
        ConfigurationError: a package is missing.
    """
    try:
        module, _, name = _FORMATS[schema.kind].partition(":")
    except KeyError:
        raise SchemaError(
            f"the schema is of the format {schema.kind!r}; spark-eos has {', '.join(_FORMATS)}"
        ) from None
    try:
        return cast("Format", getattr(importlib.import_module(module), name)())
    except ImportError as error:
        raise ConfigurationError(
            f"{error}: install spark-eos[schemas], on Spark's executors too"
        ) from error


def bisect_failures(
    function: Callable[[Any], pa.Array], rows: Any, empty: pa.DataType
) -> CodecResult:
    """Makes an array of rows; if that fails, of each half, until the rows at fault are alone."""
    made = _bisected(function, rows)
    return CodecResult(_typed(made.array, empty), made.errors)


def _bisected(function: Callable[[Any], pa.Array], rows: Any) -> CodecResult:
    try:
        return CodecResult(function(rows), {})
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError, LookupError) as error:
        if not len(rows):
            raise
        if len(rows) == 1:
            return CodecResult(pa.nulls(1), {0: said(error)})
        middle = len(rows) // 2
        first = _bisected(function, _part(rows, 0, middle))
        second = _bisected(function, _part(rows, middle, len(rows)))
        errors = first.errors | {middle + row: text for row, text in second.errors.items()}
        one, other = _typed(first.array, second.array.type), second.array
        return CodecResult(pa.concat_arrays([one, _typed(other, one.type)]), errors)


def _part(rows: Any, begin: int, end: int) -> Any:
    """Some of the rows; a slice of an array would still hold the items of the others."""
    return rows.take(pa.array(range(begin, end))) if isinstance(rows, pa.Array) else rows[begin:end]


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Rows that all have failed have no type yet: they get that of the others."""
    return pa.nulls(len(array), kind) if pa.types.is_null(array.type) else array
