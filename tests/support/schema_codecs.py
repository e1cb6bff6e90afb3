"""Decodes and encodes records with their schemas, as a task does."""

from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos.schemas.formats import Codec, Schema, format_of
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
