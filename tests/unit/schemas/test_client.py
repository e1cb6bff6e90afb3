"""A registry's answers: bad records, outages and refusals; and secrets that stay hidden."""

import logging
import pickle
import ssl
import threading
import time
import traceback
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import trustme

from spark_eos.errors import ConfigurationError, RegistryError, SchemaError
from spark_eos.schemas import SchemaRegistry, client
from spark_eos.schemas.client import Client
from spark_eos.schemas.formats import Schema
from spark_eos.schemas.registry_settings import RegistrySettings
from support.certificates import rewritten
from support.http_server import Request, http_server
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


@pytest.mark.parametrize("subject", [":.staging:a-value", ":.staging:"])
def test_an_id_is_looked_up_in_its_subjects_context(registry: StubRegistry, subject: str) -> None:
    registry.add("a-value", TEXT)
    registry.add(":.staging:a-value", '"int"')
    registry.add(":.staging:b-value", '"long"')
    asking = _client(registry)
    for _ in range(2):
        found = [asking.schema(1, own) for own in ("a-value", subject, None)]
        assert [one and one.text for one in found] == [TEXT, '"int"', TEXT]
    other, unknown = asking.schema(2, subject), asking.schema(2, "a-value")
    assert other is not None
    assert other.text == '"long"'
    assert unknown is None


def test_a_references_context_is_that_of_what_refers_to_it(registry: StubRegistry) -> None:
    registry.add("lines", '"default"')
    registry.add(":.shared:units", '"shared"')
    for text, name, own in (('"lines"', "lines", ":.shared:units"), ('"order"', "a", "lines")):
        references = [{"name": own, "subject": own, "version": 1}]
        registry.add(f":.staging:{name}", text, references=references)
    found = _client(registry).schema(2, ":.staging:a")
    assert found is not None
    assert found.references == ((":.shared:units", '"shared"'), ("lines", '"lines"'))


def test_an_unknown_id_is_none_after_the_registry_says_so_twice(registry: StubRegistry) -> None:
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
    # If nothing else is found there either, the path is wrong, or a proxy answers.
    registry.answers = [missing, missing]
    with pytest.raises(RegistryError, match="404"):
        _client(registry).schema(guid)


def test_many_unknown_ids_are_waited_for_once(
    registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    # Threads of other tests sleep by the module itself.
    own = SimpleNamespace(sleep=waited.append, monotonic=time.monotonic)
    monkeypatch.setattr(client, "time", own)
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
    with pytest.raises(RegistryError, match=words) as caught:
        _client(registry).schema(1)
    assert registry.url in str(caught.value)
    assert ("the setting `url`" in str(caught.value)) == (status in {302, 400, 404, 409})


def test_a_proxys_refusal_is_not_a_subjects(registry: StubRegistry) -> None:
    registry.answers = [(404, b"<html>"), (400, b"<html>")]
    with pytest.raises(RegistryError, match="the setting `url`"):
        _client(registry).version("a", None)
    with pytest.raises(RegistryError, match="the setting `url`"):
        _client(registry).registered("a", Schema("AVRO", TEXT), register=True)
    registry.answers = [(404, {"error_code": "ENDPOINT_NOT_FOUND", "message": "none"})]
    with pytest.raises(RegistryError, match=r"status code 404.*the setting `url`"):
        _client(registry).version("a", None)


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
    # And a proxy's pages.
    pages = [(200, b"<html>maintenance</html>"), (200, b"<html>f\xfcr</html>")]
    registry.answers = [BUSY, BUSY, *pages]
    with caplog.at_level(logging.WARNING, "spark_eos"):
        assert _client(registry, 60).schema(number) is not None
    (said,) = caplog.messages
    assert f"schema registry {registry.url} does not answer: busy" in said
    assert "EOS60" in said


def test_a_registry_that_is_down_is_an_outage() -> None:
    with pytest.raises(RegistryError, match=r"127.0.0.1:1, asked for schema id 1.*for 0.1 s"):
        Client({"url": "http://127.0.0.1:1"}, 0.1).schema(1)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e10, -1])
def test_a_wait_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="max_wait must be a number of seconds"):
        SchemaRegistry({"url": "http://a"}, max_wait=seconds)


@pytest.mark.parametrize("code", [40401, 40403])
def test_a_follower_may_know_a_new_schema_later(registry: StubRegistry, code: int) -> None:
    whole = {"id": 7, "version": 1, "subject": "a", "schema": TEXT}
    unknown = (404, {"error_code": code, "message": "not found"})
    registry.answers = [(200, {"id": 7}), unknown, (200, {"id": 7}), (200, whole)]
    made = _client(registry, 60).registered("a", Schema("AVRO", TEXT), register=True)
    assert (made.number, made.version) == (7, 1)
    assert not registry.answers


def test_a_refused_schema_is_reported_in_the_registrys_words(registry: StubRegistry) -> None:
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


def test_a_dripping_answer_gets_no_more_time_than_none() -> None:
    def drip(request: Request) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100:
            request.wfile.write(bytes([byte]))
            time.sleep(0.2)

    began = time.monotonic()
    with http_server(drip) as url, pytest.raises(RegistryError, match=r"for 1 s \(max_wait\)"):
        Client({"url": url}, 1).schema(1)
    assert time.monotonic() - began < 5
    _wait_for(lambda: "schema-registry" not in {one.name for one in threading.enumerate()})


def test_many_answers_may_take_longer_than_one(registry: StubRegistry) -> None:
    for number in range(4):
        registry.add(f"s{number}", TEXT)
    registry.delay = 0.4
    found = _client(registry).schemas(range(1, 5))
    assert None not in found.values()


def _wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


TOKEN = {
    "bearer.auth.credentials.source": "STATIC_TOKEN",
    "bearer.auth.token": "sesame",
    "bearer.auth.logical.cluster": "lsrc-1",
    "bearer.auth.identity.pool.id": "pool",
}


@pytest.mark.parametrize(
    ("user_info", "settings", "sent"),
    [
        ("", {"basic.auth.user.info": "alice:sesame"}, "alice:sesame"),
        ("", TOKEN, "sesame"),
        ("alice:sesame@", {}, "alice:sesame"),
        ("alice:sesame%2F%3F%23%2C%40%3A@", {}, "alice:sesame/?#,@:"),
        ("alice%3Asesame@", {}, "alice:sesame"),
        ("sesame@", {}, "sesame:"),
    ],
)
def test_no_secret_is_shown(
    registry: StubRegistry,
    user_info: str,
    settings: dict[str, Any],
    sent: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    number, _ = registry.add("a", TEXT)
    url = registry.url.replace("//", f"//{user_info}")
    # A server that repeats what it was sent.
    echo = {"error_code": 401, "message": f"{sent.rpartition('alice:')[2]}, {sent}, {quote(sent)}"}
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG):
        made = SchemaRegistry({"url": f"{url}, {registry.url}", **settings}, max_wait=3)
        registry.answers = [BUSY, BUSY, (503, echo), (503, echo)]
        assert made._client.schema(number) is not None
        for code in (401, 422, 409):
            registry.answers = [(code, echo)]
            with pytest.raises((RegistryError, SchemaError)) as error:
                made._client.version("a", None)
            shown += [repr(error.value), *traceback.format_exception(error.value)]
            assert error.value.__cause__ is None
    assert made._client.url == f"{registry.url},{registry.url}"
    is_token = "bearer.auth.token" in settings
    expected = "Bearer sesame" if is_token else f"Basic {b64encode(sent.encode()).decode()}"
    assert {*registry.authorization} == {expected}
    shown += [repr(made), str(made), repr(made._client), caplog.text]
    assert "EOS60" in caplog.text
    assert "HTTP Request: GET http" in caplog.text
    assert "***" in "".join(shown)
    assert "sesame" not in "".join(shown)
    assert expected.split()[1] not in "".join(shown)


@pytest.mark.parametrize("sign", ["/", "?", "#", ",", "@/", ":"])
@pytest.mark.parametrize("before", ["1", "mark"])
@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://alice:{}@127.0.0.1:1"},
        {"url": "http://127.0.0.1:1,http://alice:{}@127.0.0.1:1"},
        {"url": "alice:{}@127.0.0.1:1"},
        {"url": "http://127.0.0.1:1", "proxy": "http://alice:{}@127.0.0.1:1"},
        {
            "url": "http://127.0.0.1:1",
            **TOKEN,
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.client.id": "a",
            "bearer.auth.client.secret": "sesame",
            "bearer.auth.scope": "a",
            "bearer.auth.issuer.endpoint.url": "https://alice:{}@127.0.0.1:1/token",
        },
    ],
)
def test_no_refusal_of_a_setting_shows_a_secret(
    settings: dict[str, str], sign: str, before: str, caplog: pytest.LogCaptureFixture
) -> None:
    password = f"{before}{sign}sesame{sign}"
    given = {name: value.replace("{}", password) for name, value in settings.items()}
    with caplog.at_level(logging.DEBUG):
        try:
            made: Any = SchemaRegistry(given, max_wait=0)
            made._client.schema(1)
        except (ConfigurationError, RegistryError) as error:
            made = [repr(error), *traceback.format_exception(error)]
    assert "sesame" not in f"{made}{caplog.text}"


def test_secrets_in_nested_settings_are_not_shown() -> None:
    def refuse(config: Any) -> Any:
        raise OSError(f"refused {config['oauth']['client_secret']}, {config['keys'][0]}")

    settings = {
        "url": "http://127.0.0.1:1",
        "bearer.auth.credentials.source": "CUSTOM",
        "bearer.auth.custom.provider.function": refuse,
        "bearer.auth.custom.provider.config": {
            "oauth": {"client_secret": "sesame"},
            "keys": ["sesame2"],
        },
    }
    with pytest.raises(RegistryError, match=r"refused \*\*\*, \*\*\*") as error:
        Client(settings, 0).schema(1)
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://alice:sesame@a,http://bob:sesame@b"},
        {"url": "http://alice:sesame@a", "basic.auth.user.info": "bob:sesame"},
        {"url": "http://a", "basic.auth.user.info": "sesame"},
    ],
)
def test_users_that_contradict_each_other_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"basic\.auth\.user\.info") as error:
        SchemaRegistry(settings)
    assert "sesame" not in str(error.value)


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
        ({"url": "localhost:8081"}, "url must be an http or https URL"),
        ({"url": "http://a", "ssl.ca": "x"}, "Unrecognized properties: ssl.ca"),
        (
            {"url": "http://a", "ssl.ca.location": "/nowhere.pem"},
            r"ssl\.ca\.location=/nowhere\.pem.*No such file",
        ),
    ],
)
def test_settings_that_can_not_be_used_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SchemaRegistry(settings)


@pytest.mark.parametrize("of", ["ca", "certificate", "key"])
def test_a_key_in_place_of_a_file_is_not_quoted(of: str) -> None:
    text = "-----BEGIN PRIVATE KEY-----\nsesame\n-----END PRIVATE KEY-----"
    with pytest.raises(ConfigurationError, match=rf"ssl\.{of}\.location is a PEM text") as error:
        SchemaRegistry({"url": "http://a", f"ssl.{of}.location": text})
    assert "sesame" not in str(error.value)


def test_a_file_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    with pytest.raises(ConfigurationError, match=r"SSL_CERT_FILE=/nowhere\.pem.*No such file"):
        SchemaRegistry({"url": "http://a"})
    # With an authority of its own, the client ignores the variable.
    with pytest.raises(ConfigurationError, match="No such file") as error:
        SchemaRegistry({"url": "http://a", "ssl.ca.location": "/absent.pem"})
    assert "SSL_CERT_FILE" not in str(error.value)


def test_a_file_that_an_executor_lacks_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    asking = Client({"url": "https://127.0.0.1:1", "ssl.ca.location": str(file)}, 60)
    file.unlink()
    began = time.monotonic()
    with pytest.raises(RegistryError, match=rf"ssl\.ca\.location={file}.*No such file"):
        asking.schema(1)
    assert time.monotonic() - began < 20


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigurationError, match=r"install spark-eos\[schemas\]"):
        SchemaRegistry({"url": "http://a"})


@pytest.mark.parametrize("more", [{}, {"ssl.key.password": None}])
def test_openssl_asks_nobody_for_a_password(more: dict[str, Any]) -> None:
    settings = {"url": "http://127.0.0.1:1", "ssl.certificate.location": "c", **more}
    assert RegistrySettings(settings)._values["ssl.key.password"] == ""


def test_a_certificate_may_be_none() -> None:
    SchemaRegistry({"url": "http://127.0.0.1:1", "ssl.certificate.location": None})


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
