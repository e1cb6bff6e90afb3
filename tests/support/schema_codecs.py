"""Decodes and encodes records with their schemas, as a task does."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos.schemas.formats import Codec, Format, Schema, format_of
from spark_eos.schemas.kinds import CodecResult


def decoder(writer: Schema, reader: Schema | None = None) -> Codec:
    made: Codec = format_of(reader or writer).decoder(format_of(writer))
    return made


def read(payloads: list[Any], writer: Schema, reader: Schema | None = None) -> CodecResult:
    """The decoded payloads."""
    return decoder(writer, reader)(pa.array(payloads, pa.binary()))


def spark_type(schema: Schema) -> Any:
    return format_of(schema).kind.spark


def column(values: list[Any], kind: T.DataType) -> pa.Array:
    """Values as Spark passes them."""
    return pa.array(values, arrow_schema(T.StructType([T.StructField("c", kind)])).field(0).type)


def write(values: Any, schema: Schema, kind: T.DataType | None = None) -> CodecResult:
    """Values encoded with a schema."""
    kind = kind or spark_type(schema)
    array = values if isinstance(values, pa.Array) else column(values, kind)
    made: CodecResult = format_of(schema).encoder(kind)(array)
    return made


def read_alike(
    reader: Format,
    writer: Format,
    payloads: pa.Array,
    said: Callable[[pa.Array], Any] = pa.Array.to_pylist,
) -> CodecResult:
    """The decoded payloads, which must be the same together as one by one."""
    found, expected = reader.decoder(writer)(payloads), reader.decoder_by_row(writer)(payloads)
    found.array.validate(full=True)
    assert found.errors == expected.errors
    assert found.array.type == expected.array.type
    # Unlike values, texts distinguish 0.0 from -0.0, and NaN equals NaN.
    assert repr(said(found.array)) == repr(said(expected.array))
    return found


def written_alike(own: Format, values: pa.Array, kind: T.DataType | None = None) -> CodecResult:
    """The encoded values, which must be the same together as one by one."""
    kind = kind or own.kind.spark
    found, expected = own.encoder(kind)(values), own.encoder_by_row(kind)(values)
    assert found.errors == expected.errors
    assert found.array.to_pylist() == expected.array.to_pylist()
    return found


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows are left to each call that reads or writes them one by one."""
    left: list[int] = []

    def counting(make: Callable[..., Codec]) -> Callable[..., Codec]:
        def made(*arguments: Any) -> Codec:
            code = make(*arguments)

            def call(rows: pa.Array) -> CodecResult:
                left.append(len(rows))
                return code(rows)

            return call

        return made

    for name in ("decoder_by_row", "encoder_by_row"):
        monkeypatch.setattr(Format, name, counting(getattr(Format, name)))
    return left
