"""Several Protobuf messages in one topic, with a text schema that refers to another."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.serde import SchemaId
from pyspark.sql import SparkSession

from spark_eos.errors import ConfigurationError
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import EmbeddedSchemaRegistry
from support.guid_stub import guid_stub

HEAD = 'syntax = "proto3"; package shop; '
MONEY = HEAD + "message Money { int64 units = 1; }"
EVENTS = (
    HEAD
    + 'import "shop/money.proto"; message Order { Money price = 1; }'
    + "message Refund { message Line { string id = 1; } repeated Line lines = 1; }"
)
# Message indexes, and a message.
ORDER = ([0], b"\x0a\x02\x08\x05")
LINE = ([1, 0], b"\x0a\x01a")
REFUND = ([1], b"\x0a\x03\x0a\x01a")
MESSAGES = {"order": "shop.Order", "line": "shop.Refund.Line"}
VALUES = [
    {"order": {"price": {"units": 5}}, "line": None},
    {"order": None, "line": {"id": "a"}},
]


@pytest.fixture
def subject(registry_client: SchemaRegistryClient) -> str:
    """A subject with the events."""
    topic = f"t{uuid.uuid4().hex[:8]}"
    registry_client.register_schema(f"{topic}-money", Schema(MONEY, "PROTOBUF"))
    reference = SchemaReference("shop/money.proto", f"{topic}-money", 1)
    registry_client.register_schema(f"{topic}-value", Schema(EVENTS, "PROTOBUF", [reference]))
    return f"{topic}-value"


@pytest.mark.slow
def test_a_schema_of_several_messages_is_a_struct_of_them(
    spark: SparkSession,
    schema_registry: EmbeddedSchemaRegistry,
    registry_client: SchemaRegistryClient,
    subject: str,
) -> None:
    number = registry_client.get_latest_version(subject).schema_id
    framed = [
        SchemaId("PROTOBUF", number, None, indexes).id_to_bytes() + message
        for indexes, message in (ORDER, LINE, REFUND)
    ]
    broken = [framed[0][:5], framed[0][:-1], framed[0][:5] + b"\x04\x00\x0a\x08\x05"]
    rows = [(one,) for one in (*framed, *broken)]
    frame = spark.createDataFrame(rows, "value binary").coalesce(1)
    subjects = dict.fromkeys(MESSAGES, subject)
    with guid_stub(schema_registry.url) as stub:
        registry = SchemaRegistry({"url": stub.url})
        decoded = registry.decode(frame, subject=subjects, message=MESSAGES, errors="column")
        found = decoded.collect()
        read: list[Any] = [row.value and row.value.asDict(recursive=True) for row in found]
        assert read == [*VALUES, None, None, None, None]
        errors = [row.error and row.error.message for row in found]
        assert errors[:2] == [None, None]
        assert "it is a shop.Refund, not one of shop.Order, shop.Refund.Line" in errors[2]
        assert "it is a message that its schema lacks" in errors[3]
        assert "it is truncated" in errors[4]
        assert "it is a message that its schema lacks" in errors[5]
        encoded = registry.encode(decoded, subject=subjects, message=MESSAGES).collect()
        assert [row.value and bytes(row.value) for row in encoded] == [*framed[:2], *[None] * 4]
        # In headers, the indexes follow the GUID.
        headed = registry.encode(decoded, subject=subjects, message=MESSAGES, framing="header")
        again = registry.decode(
            headed.select("value", "headers"), subject=subjects, message=MESSAGES
        )
        first, second, *_ = again.collect()
        assert [row.value.asDict(recursive=True) for row in (first, second)] == VALUES
        with SchemaRegistryClient({"url": stub.url}) as client:
            guid = client.get_latest_version(subject).guid
        assert [[bytes(one.value) for one in row.headers] for row in (first, second)] == [
            [SchemaId("PROTOBUF", None, guid, indexes).guid_to_bytes()]
            for indexes in (ORDER[0], LINE[0])
        ]


def test_a_message_is_named_by_its_full_name(
    spark: SparkSession, schema_registry: EmbeddedSchemaRegistry, subject: str, tmp_path: Path
) -> None:
    registry = SchemaRegistry({"url": schema_registry.url})
    frame = spark.createDataFrame([(b"x",)], "value binary")
    # The second time by the pin, which has the references, too.
    for _ in range(2):
        made = registry.decode(
            frame, subject=subject, message="shop.Refund", pinned=str(tmp_path)
        ).schema["value"]
        assert made.dataType.simpleString() == "struct<lines:array<struct<id:string>>>"
    with pytest.raises(ConfigurationError, match="message is 'x', but the schema is of string"):
        registry.decode(frame, schema='"string"', message="x")
    for code in (registry.decode, registry.encode):
        for subjects in (subject, {"order": subject}):
            with pytest.raises(ConfigurationError, match="message has 'oder', which is not a name"):
                code(frame, subject=subjects, message={"oder": "shop.Order"})
