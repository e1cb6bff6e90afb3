"""JSON: records are parsed and written by Python's own json, and validated by jsonschema-rs.

Faster parsers round whole numbers beyond 64 bits, or write other numbers than Confluent's
serializer.
"""

import json
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

import jsonschema_rs
import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spark_eos.schemas.formats import (
    BadValueError,
    CodecResult,
    Decoder,
    Schema,
    bisect_failures,
    said,
)
from spark_eos.schemas.json_types import Document, document_of, shape_validator


class JsonSchema:
    """The format ``JSON``."""

    def spark_type(self, schema: Schema) -> T.DataType:
        """The column that values of a schema become; all its parts may be null."""
        return document_of(schema).column().kind.spark

    def record_name(self, schema: Schema) -> str:
        """The title, which Confluent's serializers take for it; else the id."""
        top = document_of(schema).top
        return str(top.get("title") or top.get("$id", "object")) if isinstance(top, dict) else ""

    def records(self, schema: Schema, payloads: pa.Array) -> dict[str, np.ndarray]:
        """The rows of each record's full name, among payloads that a schema has written."""
        return {self.record_name(schema): np.arange(len(payloads))}

    def decoder(self, writer: Schema, reader: Schema) -> Decoder:
        """Reads what is of the writer's schema, and has the reader's types."""
        return _Decoder(writer, reader)

    def encoder(self, schema: Schema, kind: T.DataType) -> "_Encoder":
        """Writes columns of a type; checks first that they fit."""
        document = document_of(schema)
        made = _Encoder(document)
        made.kind.check(kind, "")
        return made


def _refuse(constant: str) -> NoReturn:
    raise BadValueError(f"{constant} is no value in JSON")


class _Exact(float):
    """A number of which Arrow takes the double, or the whole number as it is written."""

    def __new__(cls, text: str) -> "_Exact":
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __index__(self) -> int:
        found = Decimal(self.text)
        # Arrow passes over errors here, but not over a number that it has no room for.
        return int(found) if found == int(found) else 2**64


_parse: Final = json.JSONDecoder(parse_constant=_refuse).decode
_parse_exactly: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_Exact).decode
# Whole numbers that may be rounded: with a point, or an exponent, after many digits; or that an
# exponent makes large.
_ROUNDED: Final = re.compile(rb"\d{16}(\.|[eE]-)|\d[eE]\+?\d")
# As Confluent's JSONSerializer.
_write: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class _Decoder:
    """Reads payloads that one schema has written, as another one has them."""

    def __init__(self, writer: Schema, reader: Schema) -> None:
        column = document_of(reader).column()
        self._kind = column.kind
        # The writer's own may leave open what the columns' types are inferred from.
        self._validators = [document_of(writer).validator(), shape_validator(column.shape)]

    def __call__(self, payloads: pa.Array) -> CodecResult:
        values: list[Any] = []
        errors: dict[int, str] = {}
        checks = [validator.validate for validator in self._validators]
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                value = _parse(payload.decode())
                for check in checks:
                    check(value)
                if _ROUNDED.search(payload):
                    value = _parse_exactly(payload.decode())
            except jsonschema_rs.ValidationError as error:
                errors[row], value = _told(error), None
            except (ValueError, RecursionError) as error:
                errors[row], value = f"it is no JSON: {said(error)}", None
            values.append(value)
        made = bisect_failures(self._array, values, self._kind.arrow)
        return CodecResult(made.array, made.errors | errors)

    def _array(self, values: list[Any]) -> pa.Array:
        return self._kind.from_wire(pa.array(values, self._kind.raw))


def _told(error: jsonschema_rs.ValidationError) -> str:
    steps = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in error.instance_path)
    path = "".join(steps).removeprefix(".")
    return f"{path or 'the record'}: {error.message[:300]}"


class _Encoder:
    """Writes values as one schema has them.

    Attributes:
        kind: The schema's types.
    """

    prefix = b""

    def __init__(self, document: Document) -> None:
        self.kind = document.column().kind
        self._validator = document.validator()

    def __call__(self, values: pa.Array) -> CodecResult:
        raw = bisect_failures(self.kind.to_wire, values, self.kind.raw)
        errors = raw.errors
        made: list[bytes | None] = []
        check, to_write = self._validator.validate, self.kind.to_write
        converted = self.kind.converted
        for row, found in enumerate(raw.array.to_pylist()):
            written = None
            if found is not None:
                value = to_write(found) if converted else found
                try:
                    check(value)
                    written = _write(value).encode()
                except jsonschema_rs.ValidationError as error:
                    errors[row] = _told(error)
                except ValueError as error:
                    errors[row] = said(error)
            made.append(written)
        return CodecResult(pa.array(made, pa.binary()), errors)
