"""To Confluent's client, `support.guid_stub` behaves like a registry with GUIDs."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_eos.testing import EmbeddedSchemaRegistry
from support.guid_stub import GuidStub, guid_stub

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'


@pytest.fixture
def stub(schema_registry: EmbeddedSchemaRegistry) -> Iterator[GuidStub]:
    with guid_stub(schema_registry.url) as found:
        yield found


def test_a_record_with_its_guid_in_a_header(stub: GuidStub) -> None:
    context = SerializationContext("guids", MessageField.VALUE, headers=[])
    conf = {"schema.id.serializer": header_schema_id_serializer}
    with SchemaRegistryClient({"url": stub.url}) as client:
        encoded = AvroSerializer(client, ORDER, conf=conf)({"id": "order 1"}, context)
    assert encoded == b"\x0eorder 1"
    headers: Any = context.headers
    ((name, value),) = headers
    assert (name, value[:1]) == ("__value_schema_id", b"\x01")
    with SchemaRegistryClient({"url": stub.url}) as other:
        assert AvroDeserializer(other)(encoded, context) == {"id": "order 1"}
    assert stub.looked_up == [str(uuid.UUID(bytes=value[1:]))]


def test_a_guid_that_no_schema_has(stub: GuidStub) -> None:
    with (
        SchemaRegistryClient({"url": stub.url}) as client,
        pytest.raises(SchemaRegistryError, match="Schema not found") as caught,
    ):
        client.get_schema_by_guid(str(uuid.uuid4()))
    assert (caught.value.http_status_code, caught.value.error_code) == (404, 40403)
