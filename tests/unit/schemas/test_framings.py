"""Each format with each framing: what encoding writes is what decoding reads, without Spark."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.row_errors import RowErrors
from spark_eos.errors import SchemaError
from spark_eos.schemas.client import Client
from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.framing import header_of, prefix_of
from spark_eos.schemas.rows import Decoding, Encoding, Member, Target
from support.registry_answers import StubRegistry, stub_registry

TEXTS = {
    "AVRO": json.dumps(
        {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    ),
    "JSON": json.dumps(
        {"title": "Order", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    ),
    "PROTOBUF": 'syntax = "proto3"; message Unit {} message Order { string id = 1; }',
}
HEADERS = T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType()))


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with stub_registry() as found:
        yield found


@pytest.mark.parametrize("framing", ["prefix", "header"])
@pytest.mark.parametrize("kind", TEXTS)
def test_what_is_written_is_read(registry: StubRegistry, kind: str, framing: str) -> None:
    number, guid = registry.add("orders-value", TEXTS[kind], kind)
    own = Schema(kind, TEXTS[kind], message="Order" if kind == "PROTOBUF" else None)
    column, prefix = format_of(own).kind.spark, format_of(own).prefix
    member, errors = Member(None, own, "Order"), RowErrors.of(T.StructType(), "column", SchemaError)
    others = [T.StructField("headers", HEADERS), *errors.fields]
    in_header = framing == "header"
    sent = (header_of(guid) if in_header else prefix_of(number)) + prefix
    target = Target(None, own, column, sent, in_header)
    whole = T.StructType([T.StructField("value", T.BinaryType()), *others])
    encoding = Encoding("value", [target], whole, errors)
    decoded = T.StructType([T.StructField("value", column), *others])
    values: list[Any] = [{"id": "o1"}, None, {"id": "zoë"}]
    headers: list[Any] = [[{"key": "a", "value": b"1"}], None, None]
    before = arrow_schema(decoded)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, before.field("value").type), pa.array(headers, before.field(1).type)],
        ["value", "headers"],
    )
    (written,) = encoding(iter([batch]))
    assert prefix == (
        SchemaId("PROTOBUF", 0, None, [1]).id_to_bytes()[5:] if kind == "PROTOBUF" else b""
    )
    for row, found in enumerate(written.to_pylist()):
        own_headers = [h["value"] for h in found["headers"] or () if h["key"] != "a"]
        if values[row] is None:
            assert (found["value"], found["headers"]) == (None, None)
        elif in_header:
            assert own_headers == [sent]
        else:
            assert found["value"].startswith(sent)
            assert own_headers == []
    decoding = Decoding(Client({"url": registry.url}, 1), "value", [member], decoded, errors)
    (read,) = decoding(iter([written]))
    assert read.column("value").to_pylist() == values
    assert read.column("error").to_pylist() == [None] * 3
