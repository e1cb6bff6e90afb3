"""The base class of schema formats; other code does not depend on a schema's format."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spark_eos.errors import ConfigurationError, PrintableError, SchemaError, SparkEosError
from spark_eos.schemas.kinds import BadRows, CodecResult, Kind, coded, each, typed


@dataclass(frozen=True)
class Schema:
    """A schema's text, with the schemas that it refers to."""

    kind: str  # as registries call it: AVRO, PROTOBUF or JSON
    text: str
    # Name and text of each; a schema comes after the schemas that it refers to itself.
    references: tuple[tuple[str, str], ...] = ()
    # The full name of the message, if the format allows several in a schema; None: the first one.
    message: str | None = None


Codec = Callable[[pa.Array], CodecResult]
Together = Callable[[pa.Array], tuple[pa.Array, np.ndarray]]
"""Reads or writes all rows of a batch together; also returns the numbers of rows left out."""


class OneByOne(PrintableError):  # noqa: N818 - no error: the rows are coded one by one
    """Raised for a schema, or a part of it, whose rows can't be coded together."""


class Format(ABC):
    """A parsed schema of one format. Any error in the schema raises `SchemaError`."""

    title: str  # the format's name in errors
    name: str  # the full name of its records, which identifies the schema
    prefix = b""  # between schema id and payload, such as Protobuf's message indexes

    @cached_property
    def kind(self) -> Kind:
        """The column's kind. Made on demand: a writer's schema may have types that Spark lacks."""
        with _judged(self.title):
            return self._kind()

    def records(self, payloads: pa.Array) -> dict[str, np.ndarray]:
        """Return the row numbers of this schema's payloads, by the full name of the record."""
        return {self.name: np.arange(len(payloads))}

    def decoder(self, writer: Any) -> Codec:
        """Return a codec that decodes payloads of a writer's schema; payloads must not be null."""
        return _with_others(lambda: self._columns(writer), self.decoder_by_row(writer))

    def encoder(self, column: T.DataType) -> Codec:
        """Check a column's type; return a codec that encodes columns. Nulls stay null."""
        return _with_others(lambda: self._rows(column), self.encoder_by_row(column))

    def decoder_by_row(self, writer: Any) -> Codec:
        """Return a codec like `decoder` that reads records one by one, and reports all errors."""
        kind = self.kind
        with _judged(self.title):
            read = self._reader(writer)

        def decode(payloads: pa.Array) -> CodecResult:
            values, errors = each(payloads.to_pylist(), read, self._unread)
            made = coded(lambda part: CodecResult(kind.array(part), {}), values, kind.arrow)
            return CodecResult(made.array, made.errors | errors)

        return decode

    def encoder_by_row(self, column: T.DataType) -> Codec:
        """Return a codec like `encoder` that writes rows one by one, and reports all errors."""
        kind = self.kind
        kind.check(column, "")
        with _judged(self.title):
            write = self._writer()

        def encode(rows: pa.Array) -> CodecResult:
            good, errors = np.flatnonzero(rows.is_valid()), dict[int, str]()
            while True:
                try:
                    values = kind.values(rows if len(good) == len(rows) else rows.take(good), "")
                    break
                except BadRows as bad:
                    errors |= bad.placed(good).errors
                    good = np.delete(good, [*bad.errors])
            payloads, faults = each(values, write, self._unwritten)
            made = np.full(len(rows), None)
            made[good] = payloads
            return CodecResult(
                pa.array(made, pa.binary()), errors | BadRows(faults).placed(good).errors
            )

        return lambda array: coded(encode, typed(array, kind.arrow), pa.binary())

    @abstractmethod
    def _kind(self) -> Kind: ...

    @abstractmethod
    def _columns(self, writer: Any) -> Together:
        """Return a function that reads the writer's payloads together; any error means no."""

    @abstractmethod
    def _rows(self, column: T.DataType) -> Together:
        """Return a function that writes columns of a type together; any error means no."""

    @abstractmethod
    def _reader(self, writer: Any) -> Callable[[bytes], Any]:
        """Return a function that reads the writer's payloads, by the format's own rules."""

    @abstractmethod
    def _writer(self) -> Callable[[Any], bytes]: ...

    @abstractmethod
    def _unread(self, error: Any) -> str:
        """Return an error text for a record that can't be read."""

    @abstractmethod
    def _unwritten(self, error: Any) -> str:
        """Return an error text for a value that can't be written."""


def _with_others(make: Callable[[], Together], one_by_one: Codec) -> Codec:
    """Return a codec that handles rows together, and rows that this leaves out one by one."""
    try:
        together = make()
    except Exception:  # noqa: BLE001 - OneByOne, or an invalid schema
        return one_by_one

    def code(rows: pa.Array) -> CodecResult:
        try:
            array, left = together(rows)
        except Exception:  # noqa: BLE001 - a column that is too large, or an invalid schema
            return one_by_one(rows)
        if not len(left):
            return CodecResult(array, {})
        others = one_by_one(rows.take(pa.array(left)))
        places = np.arange(len(array))
        places[left] = len(array) + np.arange(len(left))
        made = pa.concat_arrays([array, others.array]).take(pa.array(places))
        return CodecResult(made, {int(left[row]): text for row, text in others.errors.items()})

    return code


_FORMATS: Final = {
    "AVRO": "spark_eos.schemas.avro:Avro",
    "JSON": "spark_eos.schemas.json_schema:JsonSchema",
    "PROTOBUF": "spark_eos.schemas.protobuf:Protobuf",
}


@contextmanager
def _judged(title: str) -> Iterator[None]:
    """Re-raise errors as SchemaError, unless the machine is at fault."""
    try:
        yield
    except (SparkEosError, MemoryError, ImportError, OSError):
        raise
    except Exception as error:
        raise SchemaError(f"the {title} can't be used: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or contains itself"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return f"{getattr(error, 'message', error)}"[:1000] or type(error).__name__


# Cached: a worker needs a schema's format for each batch, and parsing takes time.
@lru_cache(maxsize=1000)
def format_of(schema: Schema) -> Any:
    """Return a schema's `Format`; raise ConfigurationError if the format's packages are missing."""
    try:
        module, _, name = _FORMATS[schema.kind].partition(":")
    except KeyError:
        raise SchemaError(
            f"the schema's format is {schema.kind!r}; spark-eos supports {', '.join(_FORMATS)}"
        ) from None
    made = getattr(imported(module), name)
    with _judged(made.title):
        return made(schema)


def imported(module: str) -> Any:
    """Import a module that needs the extra's packages; raise ConfigurationError without them."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f"{error}: install spark-eos[schemas], on Spark's executors too"
        ) from error
