"""The `headers` column that `decode` and `encode` need, if a frame has one."""

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T

from spark_eos.errors import ConfigurationError
from spark_eos.schemas import registry

_KEY = T.StructField("key", T.StringType())
_VALUE = T.StructField("value", T.BinaryType())


def _headers(*fields: T.StructField) -> T.DataType:
    return T.ArrayType(T.StructType([*fields]))


def _check(headers: T.DataType) -> None:
    schema = T.StructType([_VALUE, T.StructField("headers", headers)])
    frame: Any = SimpleNamespace(columns=schema.names, schema=schema)
    registry._check_column(frame, "value")


def test_the_sources_headers() -> None:
    _check(_headers(_KEY, _VALUE))


@pytest.mark.parametrize(
    "headers",
    [
        T.StringType(),
        T.ArrayType(T.StringType()),
        _headers(_KEY, T.StructField("value", T.StringType())),
        # The sink can write them, but a schema's id would be looked for in the wrong field.
        _headers(_VALUE, _KEY),
    ],
    ids=lambda headers: headers.simpleString(),
)
def test_headers_of_another_type_are_refused(headers: T.DataType) -> None:
    with pytest.raises(ConfigurationError, match=f"`headers` is {headers.simpleString()}"):
        _check(headers)
