"""docs/schemas.md: its queries read and write what the page says."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

import spark_eos
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import EmbeddedKafka, EmbeddedSchemaRegistry
from support.dead_letters import headers_of
from support.flow import consume
from support.page_commands import run_commands
from support.pages import code_blocks, replaced, run_block

PRODUCE, QUERY, LOOK, SEVERAL, REGISTER = code_blocks("schemas", "python")
TOPICS, CHECK, COPY = code_blocks("schemas", "sh")
ID = {"name": "id", "type": "string"}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark_eos_session")]


def _record(name: str, *fields: dict[str, str]) -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields})


ORDER = _record("shop.Order", ID, {"name": "amount", "type": "double"})
REFUND = _record("shop.Refund", ID)


@pytest.fixture
def client(schema_registry: EmbeddedSchemaRegistry) -> Iterator[SchemaRegistryClient]:
    """Confluent's own client of the registry."""
    with SchemaRegistryClient({"url": schema_registry.url}) as found:
        yield found


def _written(client: SchemaRegistryClient, subject: str, schema: str, value: Any) -> bytes:
    conf = {"subject.name.strategy": lambda *_: subject}
    context = SerializationContext("any", MessageField.VALUE)
    return AvroSerializer(client, schema, conf=conf)(value, context) or b""


def test_the_query_and_its_dead_letters(
    embedded_kafka: EmbeddedKafka,
    schema_registry: EmbeddedSchemaRegistry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefix, servers = uuid.uuid4().hex[:8], embedded_kafka.bootstrap_servers
    words = {
        "localhost:9092": servers,
        "http://localhost:8081": schema_registry.url,
        "order-prices": prefix,
        "orders-": f"{prefix}-orders-",
        "checkpoints/prices": str(tmp_path / "checkpoint"),
    }

    def run(code: str) -> dict[str, Any]:
        return run_block(replaced(code, words), {})

    def give(code: str) -> str:
        return run_commands(replaced(code, words))

    give(TOPICS)
    run(PRODUCE)
    monkeypatch.setattr(spark_eos, "run", lambda query: query.processAllAvailable())
    names = run(QUERY)
    names["query"].stop()
    names["sink"].close()
    found = run(LOOK)["found"].collect()
    prices = [(f"o{n}", 100 * n + 25) for n in range(10)]
    assert sorted(row for row in found if row.id is not None) == prices
    (tombstone,) = [m for m in consume(servers, f"{prefix}-orders-prices") if m.value() is None]
    assert tombstone.key() is not None
    (dead_letter,) = consume(servers, f"{prefix}-orders-avro-dlq")
    assert dead_letter.value() == b"oops"
    assert "not with a schema id" in headers_of(dead_letter)["__dlq.errors.message"]
    checked = give(CHECK)
    assert "oops" in checked
    assert "SOUND" in checked


def test_the_job_that_copies() -> None:
    run_commands(COPY)


def test_several_subjects_and_a_registration(
    schema_registry: EmbeddedSchemaRegistry,
    client: SchemaRegistryClient,
    spark_eos_session: SparkSession,
) -> None:
    prefix = uuid.uuid4().hex[:8]
    records = [
        _written(client, f"{prefix}-shop.Order", ORDER, {"id": "o1", "amount": 0.5}),
        _written(client, f"{prefix}-shop.Refund", REFUND, {"id": "o2"}),
    ]
    frame = spark_eos_session.createDataFrame([(record,) for record in records], "value binary")
    frame.createOrReplaceTempView(f"events_{prefix}")
    known = {"registry": SchemaRegistry({"url": schema_registry.url}), "spark": spark_eos_session}
    words = {'"events-': f'"{prefix}-', '"events"': f'"events_{prefix}"'}
    assert run_block(SEVERAL, words, **known)["refunds"].collect() == [("o2",)]
    subject = f"{prefix}-notes-value"
    made = run_block(REGISTER, {'"notes-value"': f'"{subject}"'}, **known)
    (row,) = made["rows"].collect()
    assert AvroDeserializer(client)(
        bytes(row.value), SerializationContext("notes", MessageField.VALUE)
    ) == {"text": "paid"}
    assert client.get_versions(subject) == [1]
