"""JSON: parsed by orjson (single rows: by Python's json), and validated by jsonschema-rs."""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, NoReturn
from urllib.parse import urljoin

import jsonschema_rs
import orjson
from pyspark.sql import types as T

from spark_eos.schemas.formats import Format, Schema, Together
from spark_eos.schemas.json_columns import columns_of, rows_of
from spark_eos.schemas.json_kinds import Column, Resolver, column_of
from spark_eos.schemas.kinds import BadValueError, Kind, Place, said

# The address of a schema without an id; nothing is read from it.
_ROOT: Final = "file:///"
# Replaces values in errors, which never show them.
_MASK: Final = "the value"


def _refuse(constant: str) -> NoReturn:
    raise BadValueError(f"{constant} is not a JSON value")


class _Exact(float):
    """A number that Arrow reads as a double or, for an integer column, exactly as written."""

    def __new__(cls, text: str) -> "_Exact":
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __index__(self) -> int:
        number = Decimal(self.text)
        # Arrow ignores exceptions raised here, but refuses a number that is too large for it.
        return int(number) if number == int(number) else 2**64


# Not orjson, which rounds integers beyond 64 bits.
_parse: Final = json.JSONDecoder(parse_constant=_refuse).decode
_parse_exactly: Final = json.JSONDecoder(parse_constant=_refuse, parse_float=_Exact).decode
# Integers that a double may round: many digits before a decimal point or an exponent, or a number
# that its exponent makes large.
_ROUNDED: Final = re.compile(rb"\d{16}(\.|[eE]-)|\d[eE]\+?\d")
# Refuses NaN, which orjson would turn into null. Confluent's serializer uses orjson as well.
_check: Final = json.JSONEncoder(allow_nan=False).encode


class JsonSchema(Format):
    """The format ``JSON``. Referenced schemas are not fetched."""

    title = "JSON Schema"

    def __init__(self, schema: Schema) -> None:
        self._top: Any = json.loads(schema.text)
        own = self._top.get("$id", "") if isinstance(self._top, dict) else ""
        self._root = urljoin(_ROOT, own) if isinstance(own, str) else _ROOT
        # The names of references are relative to the schema's own id, if it has one.
        documents = {
            urljoin(base, name): json.loads(text)
            for name, text in schema.references
            for base in (_ROOT, self._root)
        }
        whole = jsonschema_rs.Registry([*documents.items(), (self._root, self._top)])
        self._resolver = Resolver(whole.resolver(self._root), {**documents, self._root: self._top})
        self.validator = jsonschema_rs.validator_for(
            self._top,
            registry=jsonschema_rs.Registry([*documents.items()]),
            base_uri=self._root,
            offline=True,
            validate_formats=False,  # like Confluent's serializer
            mask=_MASK,
        )
        # Confluent's serializers use the title as the name.
        top = self._top if isinstance(self._top, dict) else {"$id": ""}
        self.name = str(top.get("title") or top.get("$id", "object"))

    @cached_property
    def _column(self) -> Column:
        return column_of(self._top, self._resolver, Place(within=frozenset({self._root})))

    def _kind(self) -> Kind:
        return self._column.kind

    @cached_property
    def _shape(self) -> Any:
        """A validator of the columns' types, which a writer's schema may leave open."""
        return jsonschema_rs.validator_for(self._column.shape, validate_formats=True, mask=_MASK)

    def _columns(self, writer: "JsonSchema") -> Together:
        fits, valid = self._shape.is_valid, writer.validator.is_valid
        implied = writer is self and not self._column.beyond
        check = fits if implied else lambda value: fits(value) and valid(value)
        return columns_of(self.kind, check)

    def _rows(self, _column: T.DataType) -> Together:
        # A column never has fields that its schema lacks.
        implied = self._column.beyond <= {"additionalProperties"}
        return rows_of(self.kind, None if implied else self.validator.is_valid)

    def _reader(self, writer: "JsonSchema") -> Callable[[bytes], Any]:
        validate, validate_shape = writer.validator.validate, self._shape.validate

        def read(payload: bytes) -> Any:
            value = _parse(payload.decode())
            validate(value)
            validate_shape(value)
            return _parse_exactly(payload.decode()) if _ROUNDED.search(payload) else value

        return read

    def _writer(self) -> Callable[[Any], bytes]:
        validate = self.validator.validate

        def write(value: Any) -> bytes:
            validate(value)
            _check(value)
            return orjson.dumps(value)

        return write

    def _unread(self, error: Exception) -> str:
        is_json = isinstance(error, jsonschema_rs.ValidationError)
        return self._unwritten(error) if is_json else f"it is not JSON: {said(error)}"

    def _unwritten(self, error: Exception) -> str:
        if not isinstance(error, jsonschema_rs.ValidationError):
            return said(error)
        steps = (
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path
        )
        path = "".join(steps).removeprefix(".")
        return f"{path or 'the record'}: {error.message[:300]}"
