"""What a registry answers: a bad record, an outage, or a refusal; and that no secret is shown."""

import logging
import pickle
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from spark_eos.errors import ConfigurationError, RegistryError, SchemaError
from spark_eos.schemas import SchemaRegistry, client
from spark_eos.schemas.client import Client
from spark_eos.schemas.formats import Schema
from support.certificates import rewritten
from support.registry_answers import StubRegistry, stub_registry

TEXT = '"string"'
UNKNOWN = (404, {"error_code": 40403, "message": "Schema not found"})
BUSY = (503, {"error_code": 50301, "message": "busy"})


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with stub_registry() as found:
        yield found


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_AGAIN_SECONDS", 0.01)
    client._asked_twice.clear()


def _client(registry: StubRegistry, max_wait: float = 0.01, **settings: Any) -> Client:
    return Client({"url": registry.url, **settings}, max_wait)


def test_a_schema_is_asked_for_once_for_each_id_and_guid(registry: StubRegistry) -> None:
    number, guid = registry.add("a", TEXT)
    asking = _client(registry)
    again = pickle.loads(pickle.dumps(asking))  # noqa: S301 - as Spark does
    for one in (asking, again, asking):
        for key in (number, uuid.UUID(guid)):
            found = one.schema(key)
            assert found is not None
            assert found.text == TEXT
    assert len(registry.authorization) == 2


def test_an_unknown_id_is_none_once_the_registry_has_said_so_twice(registry: StubRegistry) -> None:
    asking = _client(registry)
    assert asking.schema(1) is None
    assert len(registry.authorization) == 2
    # No registry has such an id, and they answer as if the path were wrong.
    assert asking.schema(2**31) is None
    assert len(registry.authorization) == 2
    # Once with each further batch: it has waited for followers before.
    assert asking.schema(1) is None
    assert len(registry.authorization) == 3
    registry.add("a", TEXT)
    assert asking.schema(1) is not None
    # A follower that does not know it yet.
    registry.answers = [UNKNOWN]
    assert _client(registry).schema(1) is not None


def test_a_registry_without_guids_knows_none(registry: StubRegistry) -> None:
    guid, missing = uuid.uuid4(), (404, {"error_code": 404, "message": "HTTP 404 Not Found"})
    registry.answers = [missing, (200, ["AVRO"])] * 2
    assert _client(registry).schema(guid) is None
    assert not registry.answers
    # Nor is anything else there: so it is the path, or a proxy.
    registry.answers = [missing, missing]
    with pytest.raises(RegistryError, match="404"):
        _client(registry).schema(guid)


def test_many_unknown_ids_are_waited_for_once(
    registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    # Threads of other tests sleep by the module itself.
    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=waited.append))
    registry.answers = [UNKNOWN] * 14
    number, _ = registry.add("a", TEXT)
    asking = _client(registry)
    found = asking.schemas(range(14))
    assert [key for key, one in found.items() if one is not None] == [number]
    assert len(waited) == 1
    assert len(registry.authorization) == 28


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, {"error_code": 401, "message": "Unauthorized"}),
        (403, {"error_code": 40301, "message": "Forbidden"}),
        # A proxy's, or that of a wrong path.
        (404, b"<html>not here</html>"),
        (404, {"status": 404, "error": "Not Found"}),
        (302, b""),
        (400, {"error_code": 400, "message": "bad"}),
        (404, {"error_code": 40401, "message": "no subject"}),
        (409, {"error_code": 409, "message": "conflict"}),
        (500, {"error_code": 50001, "message": "store"}),
        (503, b"unavailable"),
        (200, {}),
    ],
)
def test_another_answer_is_no_records_fault(registry: StubRegistry, status: int, body: Any) -> None:
    registry.answers = [(status, body)] * 20
    words = "has no schema" if status == 200 else str(status)
    with pytest.raises(RegistryError, match=words) as told:
        _client(registry).schema(1)
    assert registry.url in str(told.value)
    assert ("the setting `url`" in str(told.value)) == (status in {302, 400, 404, 409})


def test_a_proxys_refusal_is_not_a_subjects(registry: StubRegistry) -> None:
    registry.answers = [(404, b"<html>"), (400, b"<html>")]
    with pytest.raises(RegistryError, match="the setting `url`"):
        _client(registry).version("a", None)
    with pytest.raises(RegistryError, match="the setting `url`"):
        _client(registry).registered("a", Schema("AVRO", TEXT), register=True)


@pytest.mark.parametrize("code", [40401, 40402])
def test_a_schema_whose_reference_is_gone_is_no_unknown_id(
    registry: StubRegistry, code: int
) -> None:
    references = [{"name": "shop.Line", "subject": "lines", "version": 3}]
    whole = {"id": 1, "version": 1, "subject": "a", "schema": TEXT, "references": references}
    missing = (404, {"error_code": code, "message": "not found"})
    words = "refers to version 3 of subject 'lines', which"
    registry.answers = [(200, whole), missing] * 2
    with pytest.raises(RegistryError, match=words):
        _client(registry, 60).schema(1)
    with pytest.raises(RegistryError, match=words):
        _client(registry, 60).version("a", None)
    assert not registry.answers


def test_it_waits_for_a_registry_that_is_away_and_says_so(
    registry: StubRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    number, _ = registry.add("a", TEXT)
    # And a proxy's page.
    registry.answers = [BUSY, BUSY, (200, b"<html>maintenance</html>")]
    with caplog.at_level(logging.WARNING, "spark_eos"):
        assert _client(registry, 60).schema(number) is not None
    (said,) = caplog.messages
    assert f"schema registry {registry.url} does not answer: busy" in said
    assert "EOS60" in said


def test_nobody_there_is_an_outage() -> None:
    with pytest.raises(RegistryError, match=r"127.0.0.1:1, asked for schema id 1.*for 0.1 s"):
        Client({"url": "http://127.0.0.1:1"}, 0.1).schema(1)


def test_a_refused_schema_is_told_in_the_registrys_words(registry: StubRegistry) -> None:
    registry.answers = [(409, {"error_code": 409, "message": "READER_FIELD_MISSING 'cents'"})]
    schema = _client(registry)
    with pytest.raises(SchemaError, match=r"not compatible.*READER_FIELD_MISSING 'cents'"):
        schema.registered("a", Schema("AVRO", TEXT), register=True)


def test_references_come_with_their_schema_the_deepest_first(registry: StubRegistry) -> None:
    def referring(*subjects: str) -> list[dict[str, Any]]:
        return [{"name": f"shop.{one}", "subject": one, "version": 1} for one in subjects]

    def answer(name: str, *subjects: str) -> tuple[int, Any]:
        ids = {"id": 1, "version": 1, "subject": name}
        return 200, {**ids, "schema": name, "references": referring(*subjects)}

    registry.answers = [answer("Order", "Line", "Sum"), answer("Line", "Sum"), answer("Sum")]
    found = _client(registry).schema(1)
    assert found is not None
    assert found.references == (("shop.Sum", "Sum"), ("shop.Line", "Line"))


@pytest.mark.parametrize(
    ("userinfo", "settings"),
    [
        ("", {"basic.auth.user.info": "alice:sesame"}),
        (
            "",
            {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": "sesame",
                "bearer.auth.logical.cluster": "lsrc-1",
                "bearer.auth.identity.pool.id": "pool",
            },
        ),
        ("alice:sesame@", {}),
    ],
)
def test_no_secret_is_shown(
    registry: StubRegistry, userinfo: str, settings: dict[str, Any]
) -> None:
    # A server that repeats what it was sent.
    registry.answers = [(401, {"error_code": 401, "message": "sesame is wrong for alice:sesame"})]
    url = registry.url.replace("//", f"//{userinfo}")
    found = SchemaRegistry({"url": url, **settings}, max_wait=0.01)
    with pytest.raises(RegistryError) as error:
        found._client.version("a", None)
    assert found._client.url == registry.url
    assert registry.authorization[0]
    shown = [str(error.value), repr(error.value), repr(found), str(found), repr(found._client)]
    assert "***" in str(error.value)
    assert "sesame" not in "".join(shown)
    assert error.value.__cause__ is None


def test_numbers_may_be_texts_as_options_of_jobs_are(registry: StubRegistry) -> None:
    number, _ = registry.add("a", TEXT)
    texts: dict[str, Any] = {
        "timeout": "2.5",
        "max.retries": "1",
        "retries.wait.ms": "5",
        "cache.capacity": "9",
    }
    assert _client(registry, **texts).schema(number) is not None
    with pytest.raises(ConfigurationError, match=r"max\.retries must be a number"):
        Client({"url": registry.url, "max.retries": "few"}, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "url"),
        ({"url": "localhost:8081"}, "Invalid url"),
        ({"url": "http://a", "ssl.ca": "x"}, "Unrecognized properties: ssl.ca"),
        ({"url": "http://a", "ssl.ca.location": "/nowhere.pem"}, "No such file"),
    ],
)
def test_settings_that_can_not_be_used_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SchemaRegistry(settings)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigurationError, match=r"install spark-eos\[schemas\]"):
        SchemaRegistry({"url": "http://a"})


def test_mutual_tls(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    own = authority.issue_cert("alice@example.org")
    files = {name: str(tmp_path / name) for name in ("ca", "other", "certificate", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    other.cert_pem.write_to_path(files["other"])
    own.cert_chain_pems[0].write_to_path(files["certificate"])
    Path(files["key"]).write_text(
        rewritten(own.private_key_pem.bytes(), password="sesame"), encoding="utf-8"
    )
    settings: dict[str, Any] = {
        "ssl.ca.location": files["ca"],
        "ssl.certificate.location": files["certificate"],
        "ssl.key.location": files["key"],
        "ssl.key.password": "sesame",
    }
    with stub_registry(context) as registry:
        number, _ = registry.add("a", TEXT)
        assert _client(registry, **settings).schema(number) is not None
        with pytest.raises(RegistryError, match=r"https://127\.0\.0\.1"):
            _client(registry, 0.01, **{"ssl.ca.location": files["ca"]}).schema(number)
        with pytest.raises(RegistryError, match=r"CERTIFICATE_VERIFY_FAILED"):
            _client(registry, **{**settings, "ssl.ca.location": files["other"]}).schema(number)
