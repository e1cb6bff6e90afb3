"""Records with schemas of a real registry as columns, in queries of each API and delivery."""

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import DeadLetters, ExactlyOnceSink
from spark_eos._spark.failed_query import cause_of
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import EmbeddedSchemaRegistry
from support.apis import Api, Queries
from support.dead_letters import create_dead_letter_topic, headers_of
from support.flow import Flow
from support.pipelines import priced
from support.protobuf_messages import MessageDeserializer, MessageSerializer, compiled
from support.queries import run_available

ID = {"name": "id", "type": "string"}
AMOUNT = {"name": "amount", "type": "double"}
ORDER = json.dumps({"type": "record", "name": "shop.Order", "fields": [ID, AMOUNT]})
# Its second version.
DISCOUNT = {"name": "discount", "type": ["null", "double"], "default": None}
ORDER_2 = json.dumps({"type": "record", "name": "shop.Order", "fields": [AMOUNT, DISCOUNT, ID]})
PRICE = json.dumps(
    {"type": "record", "name": "shop.Price", "fields": [ID, {"name": "cents", "type": "long"}]}
)
ORDER_JSON = {
    "title": "shop.Order",
    "type": "object",
    "properties": {"id": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["id", "amount"],
}
DISCOUNT_JSON = {"discount": {"type": ["number", "null"]}}
ORDER_JSON_2 = {**ORDER_JSON, "properties": {**ORDER_JSON["properties"], **DISCOUNT_JSON}}  # type: ignore[dict-item]
PRICE_JSON = {
    "title": "shop.Price",
    "type": "object",
    "properties": {"id": {"type": "string"}, "cents": {"type": "integer"}},
    "required": ["id", "cents"],
}
PROTO = 'syntax = "proto3"; package shop; '
ORDER_PROTO = PROTO + "message Unit {} message Order { string id = 1; double amount = 2; }"
ORDER_PROTO_2 = ORDER_PROTO.replace("2; }", "2; optional double discount = 3; }")
PRICE_PROTO = compiled(PROTO + "message Price { string id = 1; int64 cents = 2; }")
LIKE_A_GUID = b"\x01" * 30
UNKNOWN = b"\x00\xff\xff\xff\xf0\x02a"


class Format(NamedTuple):
    """Confluent's own serializers of a format, with orders, prices and broken records' errors."""

    kind: str
    serializer: Callable[[SchemaRegistryClient, str], Any]
    deserializer: Callable[[SchemaRegistryClient], Any]
    orders: list[str]
    price: str
    truncated: str
    too_long: str
    message: str | None = None


AVRO = Format(
    "AVRO",
    AvroSerializer,
    AvroDeserializer,
    [ORDER, ORDER_2],
    PRICE,
    "it is truncated",
    "1 bytes are left",
)
JSON = Format(
    "JSON",
    lambda client, schema: JSONSerializer(schema, client),
    lambda client: JSONDeserializer(None, schema_registry_client=client),
    [json.dumps(ORDER_JSON), json.dumps(ORDER_JSON_2)],
    json.dumps(PRICE_JSON),
    "it is not JSON: Expecting",
    "it is not JSON: Extra data",
)
PROTOBUF = Format(
    "PROTOBUF",
    MessageSerializer,
    lambda client: MessageDeserializer(client, PRICE_PROTO),
    [compiled(ORDER_PROTO), compiled(ORDER_PROTO_2)],
    PRICE_PROTO,
    "it is truncated",
    "it is truncated, or does not match its schema",
    "shop.Order",
)


class Records:
    """Confluent's own serializers for a topic's records.

    Args:
        client: the registry's client.
        topic: the topic.
        schemas: versions of its value's schema; registered on first use.
        of: their format.
    """

    def __init__(
        self, client: SchemaRegistryClient, topic: str, *schemas: str, of: Format = AVRO
    ) -> None:
        self.client = client
        self.subject = f"{topic}-value"
        self.context = SerializationContext(topic, MessageField.VALUE)
        self.writers = [of.serializer(self.client, schema) for schema in schemas]
        for schema in schemas:
            self.client.register_schema(self.subject, Schema(schema, of.kind))
        self.reader = of.deserializer(self.client)

    def write(self, value: dict[str, Any], version: int = 1) -> bytes:
        return self.writers[version - 1](value, self.context) or b""

    def read(self, record: bytes) -> Any:
        return self.reader(record, self.context)


def _orders(records: Records, count: int) -> list[bytes]:
    """Orders of all versions, in turn."""
    versions = len(records.writers)
    return [
        records.write({"id": f"o{n}", "amount": n + 0.5, "discount": None}, n % versions + 1)
        for n in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("of", [AVRO, JSON, PROTOBUF], ids=lambda of: of.kind)
@pytest.mark.parametrize(
    "delivery",
    [
        "direct",
        pytest.param("staged", marks=pytest.mark.slow),
        pytest.param("mirrored", marks=pytest.mark.slow),
    ],
)
def test_records_are_read_and_written_as_confluents_are(
    request: pytest.FixtureRequest,
    queries: Queries,
    schema_registry: EmbeddedSchemaRegistry,
    registry_client: SchemaRegistryClient,
    delivery: str,
    of: Format,
) -> None:
    flow: Flow = request.getfixturevalue("mirrored_flow" if delivery == "mirrored" else "flow")
    dlq = create_dead_letter_topic(flow)
    orders = Records(registry_client, flow.source, *of.orders, of=of)
    prices = Records(registry_client, flow.target, of.price, of=of)
    good = _orders(orders, 40)
    broken = [b"oops", UNKNOWN, LIKE_A_GUID, good[0][:-1], good[1] + b"\x00"]
    flow.produce([*good, *broken], key=b"k")
    flow.produce([None], key=b"gone")
    names = {"url": schema_registry.url, "subject": orders.subject, "to": prices.subject}
    names |= {"message": of.message} if of.message else {}
    names |= {"errors": "column"} if delivery == "staged" else {}
    started = Api(queries).start(
        flow, "priced", arguments=names, dead_letter_topic=dlq, delivery=delivery
    )
    started.replay()
    assert {report["delivery"] for report in started.reports()} == {delivery}
    expected = {prices.write({"id": f"o{n}", "cents": 100 * n + 50}) for n in range(40)}
    written = [value for m in flow.written() if (value := m.value()) is not None]
    assert sorted(written) == sorted(expected)
    assert {prices.read(value)["cents"] for value in written} == {100 * n + 50 for n in range(40)}
    assert [m.key() for m in flow.written() if m.value() is None] == [b"gone"]
    found = {m.value(): headers_of(m)["__dlq.errors.message"] for m in flow.written(dlq)}
    number = int.from_bytes(good[0][1:5], "big")
    assert found.keys() == {*broken}
    assert "byte 0x6f" in found[b"oops"]
    assert f"schema id {0xFFFFFFF0} is not known" in found[UNKNOWN]
    assert "schema id 01010101-0101-0101-0101-010101010101 is not" in found[LIKE_A_GUID]
    assert f"schema id {number}: {of.truncated}" in found[good[0][:-1]]
    assert of.too_long in found[good[1] + b"\x00"]


def test_records_of_a_sink_without_dead_letters(
    queries: Queries,
    flow: Flow,
    schema_registry: EmbeddedSchemaRegistry,
    registry_client: SchemaRegistryClient,
) -> None:
    """The sink's own tasks encode."""
    orders = Records(registry_client, flow.source, ORDER, ORDER_2)
    prices = Records(registry_client, flow.target, PRICE)
    flow.produce(_orders(orders, 40), key=b"k")
    flow.produce([None], key=b"gone")
    names = {"url": schema_registry.url, "subject": orders.subject, "to": prices.subject}
    Api(queries).start(flow, "priced", arguments=names).replay()
    expected = {prices.write({"id": f"o{n}", "cents": 100 * n + 50}) for n in range(40)}
    assert {(m.key(), m.value()) for m in flow.written()} == {
        (b"gone", None),
        *((b"k", value) for value in expected),
    }
    assert len(flow.written()) == 41


@pytest.mark.slow
def test_a_registry_that_is_away_makes_no_dead_letters(
    flow: Flow,
    spark_eos_session: SparkSession,
    schema_registry: EmbeddedSchemaRegistry,
    registry_client: SchemaRegistryClient,
) -> None:
    dlq = create_dead_letter_topic(flow)
    orders = Records(registry_client, flow.source, ORDER, ORDER_2)
    flow.produce([*_orders(orders, 20), b"oops"])
    url = {"url": schema_registry.url, "timeout": 1}

    def start(before: Callable[[], object], max_wait: float) -> None:
        def text(frame: DataFrame) -> DataFrame:
            registry = SchemaRegistry(url, max_wait=max_wait)
            rows = registry.decode(frame, subject=orders.subject)
            made = rows.select("source", F.col("value.id").alias("value"))
            before()
            return made

        run_available(spark_eos_session, flow, text, dead_letter_topic=dlq)

    with pytest.raises(StreamingQueryException) as failed:
        start(schema_registry.kill, 2)
    cause = cause_of(str(failed.value))
    assert re.fullmatch(
        r"RegistryError: schema registry http://\S+, asked for schema id \d+: "
        r"ConnectError: .*, for 2 s \(max_wait\) \[more: spark-eos explain EOS29\]",
        cause,
    ), cause
    assert flow.written() == flow.written(dlq) == []
    schema_registry.start()

    def away_for_a_while() -> None:
        schema_registry.pause()
        threading.Timer(8, schema_registry.resume).start()

    began = time.monotonic()
    start(away_for_a_while, 120)
    assert time.monotonic() - began > 8
    assert sorted(flow.values()) == sorted(f"o{n}" for n in range(20))
    assert [m.value() for m in flow.written(dlq)] == [b"oops"]


def test_a_bad_record_without_dead_letters_ends_the_query(
    flow: Flow,
    spark_eos_session: SparkSession,
    schema_registry: EmbeddedSchemaRegistry,
    registry_client: SchemaRegistryClient,
) -> None:
    orders = Records(registry_client, flow.source, ORDER)
    prices = Records(registry_client, flow.target, PRICE)
    flow.produce([*_orders(orders, 2), b"oops"], partition=0)

    def transform(frame: DataFrame) -> DataFrame:
        return priced(frame, schema_registry.url, orders.subject, prices.subject)

    words = rf"SchemaError: {flow.source}-0, offset 2: the value begins.*dead_letters"
    with pytest.raises(StreamingQueryException, match=words):
        run_available(spark_eos_session, flow, transform)
    assert flow.written() == []


def test_the_source_stays_what_it_is(
    flow: Flow,
    spark_eos_session: SparkSession,
    schema_registry: EmbeddedSchemaRegistry,
    registry_client: SchemaRegistryClient,
) -> None:
    orders = Records(registry_client, flow.source, ORDER)
    sink = ExactlyOnceSink(
        **flow.options(), dead_letters=DeadLetters(create_dead_letter_topic(flow))
    )
    frame = sink.read(spark_eos_session, subscribe=flow.source, include_headers=True)
    registry = SchemaRegistry({"url": schema_registry.url})
    made = registry.decode(frame, subject=orders.subject)
    kept = [field for field in frame.schema if field.name not in {"value", "topic"}]
    own = {"value", "topic"}
    assert [field for field in made.schema if field.name not in own] == kept
    # The source's own topic is still refused as the target's.
    with pytest.raises(UnsupportedPipelineError, match="the `topic` column is the source's"):
        sink.write(registry.encode(made, subject=orders.subject))
    sink.close()
