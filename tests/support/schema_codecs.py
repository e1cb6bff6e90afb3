"""Decodes and encodes records with their schemas, as a task does."""

import random
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


def damages(payload: bytes, chance: random.Random, some: bytes) -> list[bytes]:
    """A payload truncated, extended, with a flipped bit, and with some other bytes."""
    place = chance.randrange(len(payload) + 1)
    head, tail = payload[:place], payload[place:]
    bit = 1 << chance.randrange(8)
    more = bytes(chance.choice(some) for _ in range(chance.randint(1, 11)))
    return [
        head,
        payload + more,
        head + bytes(byte ^ bit for byte in tail[:1]) + tail[1:],
        head + more + tail[chance.randint(0, 2) :],
    ]


def with_others(
    rows: pa.Array, chance: random.Random, others: Callable[[Any, pa.DataType], list[Any]]
) -> pa.Array:
    """The same rows with nulls anywhere, and with one of the given values for each value."""

    def other(value: Any, kind: pa.DataType) -> Any:
        if chance.random() < 0.04:
            return None
        if pa.types.is_struct(kind):
            return value and {part.name: other(value[part.name], part.type) for part in kind}
        if pa.types.is_map(kind):
            return value and [(key, other(item, kind.item_type)) for key, item in value]
        if pa.types.is_list(kind):
            return value and [other(item, kind.value_type) for item in value]
        return chance.choice(others(value, kind))

    return pa.array([other(value, rows.type) for value in rows.to_pylist()], rows.type)


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
