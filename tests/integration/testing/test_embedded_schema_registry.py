from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from spark_eos.testing import EmbeddedSchemaRegistry

STRING = Schema('"string"', "AVRO")


def test_a_schema_is_found_by_its_id(schema_registry: EmbeddedSchemaRegistry) -> None:
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        number = client.register_schema("found-value", STRING)
    with SchemaRegistryClient({"url": schema_registry.url}) as other:
        assert other.get_schema(number) == STRING
