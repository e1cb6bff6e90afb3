import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
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


@pytest.fixture
def registry(schema_registry: EmbeddedSchemaRegistry) -> Iterator[EmbeddedSchemaRegistry]:
    """The shared one, which runs again when the test ends."""
    yield schema_registry
    if not schema_registry.is_running:
        schema_registry.start()


def _asked(url: str, seconds: float = 30) -> bytes:
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=seconds)) as connection:
        connection.request("GET", f"{urlsplit(url).path}/subjects")
        return connection.getresponse().read()


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


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_restart_keeps_schemas_and_address(
    how: str, registry: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pid = registry.url, registry.pid
    with SchemaRegistryClient({"url": url}) as client:
        number = client.register_schema(f"kept-{how}", Schema(AVRO, "AVRO"))
    getattr(registry, how)()
    assert not registry.is_running
    with pytest.raises(ConnectionRefusedError):
        _asked(url)
    # Apicurio's variable: each request would need a token.
    monkeypatch.setenv("AUTH_ENABLED", "true")
    registry.start()
    assert registry.url == url
    assert registry.pid != pid
    with SchemaRegistryClient({"url": url}) as client:
        assert client.get_latest_version(f"kept-{how}").schema_id == number


def test_a_paused_registry_is_silent(registry: EmbeddedSchemaRegistry) -> None:
    registry.pause()
    try:
        with pytest.raises(TimeoutError):
            _asked(registry.url, 0.5)
    finally:
        registry.resume()
    assert _asked(registry.url).startswith(b"[")


def test_it_takes_its_classes_from_an_archive(schema_registry: EmbeddedSchemaRegistry) -> None:
    maps = Path(f"/proc/{schema_registry.pid}/maps").read_text().splitlines()
    cache = str(cache_directory().resolve())
    assert [line for line in maps if cache in line and line.endswith("classes.jsa")]


def test_a_port_that_is_taken_is_named(schema_registry: EmbeddedSchemaRegistry) -> None:
    port = urlsplit(schema_registry.url).port
    with pytest.raises(RegistryStartError, match=f"Port {port} .* is in use"):
        EmbeddedSchemaRegistry(port=port).start()


def test_one_that_can_not_start_shows_its_log() -> None:
    registry = EmbeddedSchemaRegistry(heap="1m")
    with pytest.raises(RegistryStartError, match="ended with exit code 1") as caught:
        registry.start()
    assert "Too small" in str(caught.value)
    assert not registry.is_running
    with pytest.raises(RuntimeError, match="no URL"):
        _ = registry.url


OWNER = """
import os, time
from spark_eos.testing import EmbeddedSchemaRegistry
registry = EmbeddedSchemaRegistry()
registry.start()
print(registry.pid, os.readlink(f"/proc/{registry.pid}/cwd"), registry.url, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_outlives_its_owner() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, directory, url = owner.stdout.readline().split()
        assert _asked(url) == b"[]"
        assert list(Path(directory).glob("schemas*"))
        owner.kill()
    deadline = time.monotonic() + 60
    while Path(directory).exists() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
