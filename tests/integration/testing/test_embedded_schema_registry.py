import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError

from spark_eos._jars.cache import cache_directory
from spark_eos.testing import EmbeddedSchemaRegistry, RegistryStartError

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
OTHER_AVRO = AVRO.replace('"string"', '"int"')
PROTOBUF = 'syntax = "proto3";\nmessage Order {\n  string id = 1;\n}\n'
JSON = '{"type": "object", "properties": {"id": {"type": "string"}}}'


@pytest.mark.parametrize(("kind", "text"), [("AVRO", AVRO), ("PROTOBUF", PROTOBUF), ("JSON", JSON)])
def test_a_schema_is_found_by_its_id(
    kind: str, text: str, schema_registry: EmbeddedSchemaRegistry
) -> None:
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        number = client.register_schema(f"found-{kind}", Schema(text, kind))
    with SchemaRegistryClient({"url": schema_registry.url}) as other:
        found = other.get_schema(number)
        assert found.schema_type == kind
        assert found.schema_str is not None
        assert found.schema_str.split() == text.split()
        latest = other.get_latest_version(f"found-{kind}")
    assert (latest.schema_id, latest.version) == (number, 1)
    assert f"GET /apis/ccompat/v7/schemas/ids/{number} 200" in schema_registry.log()


def test_an_incompatible_schema_is_refused(schema_registry: EmbeddedSchemaRegistry) -> None:
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        client.register_schema("evolving", Schema(AVRO, "AVRO"))
        client.set_config("evolving", ServerConfig(ConfigCompatibilityLevel.FULL))
        with pytest.raises(SchemaRegistryError, match="ncompatible") as caught:
            client.register_schema("evolving", Schema(OTHER_AVRO, "AVRO"))
    assert caught.value.http_status_code == 409


@pytest.mark.slow
def test_a_restart_keeps_schemas_and_address(
    schema_registry: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, url, pid = schema_registry, schema_registry.url, schema_registry.pid
    with SchemaRegistryClient({"url": url}) as client:
        number = client.register_schema("kept", Schema(AVRO, "AVRO"))
    registry.kill()
    assert not registry.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0))
    # Apicurio's variable: each request would need a token.
    monkeypatch.setenv("AUTH_ENABLED", "true")
    registry.start()
    assert registry.url == url
    assert registry.pid != pid
    with SchemaRegistryClient({"url": url}) as client:
        assert client.get_latest_version("kept").schema_id == number


@pytest.mark.slow
def test_it_takes_its_classes_from_an_archive(schema_registry: EmbeddedSchemaRegistry) -> None:
    maps = Path(f"/proc/{schema_registry.pid}/maps").read_text().splitlines()
    cache = str(cache_directory().resolve())
    assert [line for line in maps if cache in line and line.endswith("classes.jsa")]


def test_one_that_can_not_start_shows_its_log() -> None:
    registry = EmbeddedSchemaRegistry(heap="1m")
    with pytest.raises(RegistryStartError, match="ended with exit code 1") as caught:
        registry.start()
    assert "Too small" in str(caught.value)
    assert not registry.is_running
    with pytest.raises(RuntimeError, match="no URL"):
        _ = registry.url


@pytest.mark.slow
def test_a_new_registry_may_have_another_port() -> None:
    registry = EmbeddedSchemaRegistry()
    with registry:
        port = urlsplit(registry.url).port
    with socket.create_server(("127.0.0.1", port or 0)), registry:
        assert urlsplit(registry.url).port != port
