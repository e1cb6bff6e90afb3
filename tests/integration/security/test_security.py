"""Each authentication method in a whole query: driver, producer and Spark's source."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from spark_eos import ExactlyOnceSink, errors
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from support.certificates import encrypted
from support.flow import Flow
from support.queries import run_available
from support.secured import SHORT_LOGIN_MS, Secured
from support.sinks import arguments
from support.tokens import token_endpoint

KEY_PASSWORD = "k e\"y's"
TOKEN_CLIENT = "relay"
TOKEN_SECRET = "t\"o'k;e=n \\ secret%20&+"


@pytest.fixture(scope="module")
def endpoint(secured: Secured) -> Iterator[str]:
    secured.tokens.clients[TOKEN_CLIENT] = TOKEN_SECRET
    with token_endpoint(secured.tokens) as url:
        yield url


@pytest.fixture
def secured_flow(secured: Secured, tmp_path: Path) -> Flow:
    return Flow(secured.broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))


@pytest.fixture
def relayed(secured_flow: Flow, spark_eos_session: SparkSession) -> Callable[..., None]:
    """Runs a query over a few records with client settings, and checks what it wrote."""

    def run(kafka: dict[str, Any], **read: Any) -> None:
        secured_flow.produce(range(10))
        reports = run_available(spark_eos_session, secured_flow, kafka=kafka, read=read)
        assert sum(report.rows_written for report in reports) == 10
        assert sorted(secured_flow.values()) == sorted(str(n) for n in range(10))

    return run


def test_a_query_with_a_client_certificate_and_an_encrypted_key(
    secured: Secured, relayed: Callable[..., None], tmp_path: Path
) -> None:
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.write_text(secured.client.chain)
    key.write_text(encrypted(secured.client.key, KEY_PASSWORD))
    relayed(
        {
            **secured.tls("MUTUAL"),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.key.password": KEY_PASSWORD,
        }
    )


def _certificate_as_text(secured: Secured) -> dict[str, Any]:
    settings = secured.tls("MUTUAL")
    del settings["ssl.ca.location"]
    return {
        **settings,
        "ssl.ca.pem": secured.authority_file.read_text(),
        "ssl.certificate.pem": secured.client.chain,
        "ssl.key.pem": secured.client.key,
    }


def _other_host(secured: Secured) -> dict[str, Any]:
    return {**secured.tls("OTHER_HOST"), "ssl.endpoint.identification.algorithm": "none"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(lambda s: s.sasl("PLAIN"), id="PLAIN"),
        pytest.param(lambda s: s.sasl("SCRAM-SHA-256", tls=False), id="SCRAM-SHA-256 without TLS"),
        pytest.param(lambda s: s.sasl("SCRAM-SHA-512"), id="SCRAM-SHA-512"),
        pytest.param(_certificate_as_text, id="a certificate as text"),
        pytest.param(_other_host, id="a host that its certificate does not name"),
    ],
)
def test_a_query_by(
    settings: Callable[[Secured], dict[str, Any]], secured: Secured, relayed: Callable[..., None]
) -> None:
    relayed(settings(secured))


def test_a_query_by_client_credentials(
    secured: Secured, relayed: Callable[..., None], endpoint: str, spark_eos_session: SparkSession
) -> None:
    _allow(spark_eos_session, endpoint)
    relayed(
        {
            **_oauth(secured),
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": TOKEN_CLIENT,
            "sasl.oauthbearer.client.secret": TOKEN_SECRET,
            "sasl.oauthbearer.token.endpoint.url": endpoint,
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "team=orders,stage=test",
        }
    )
    own = {asked for asked in secured.tokens.asked if asked[0] == TOKEN_CLIENT}
    assert own == {(TOKEN_CLIENT, "kafka")}


@pytest.mark.slow
def test_a_query_by_a_token_function(
    secured: Secured,
    relayed: Callable[..., None],
    spark_eos_session: SparkSession,
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text(secured.tokens.token("bob")[0])
    _allow(spark_eos_session, file.as_uri())
    relayed({**_oauth(secured), "oauth_cb": _FromFile(file)}, options=_login_by_file(file))


class _FromFile:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, _config: str) -> tuple[str, float]:
        return self._file.read_text(), time.time() + 60


def _oauth(secured: Secured) -> dict[str, Any]:
    return {**secured.tls("SASL_SSL"), "sasl.mechanism": "OAUTHBEARER"}


def _login_by_file(file: Path) -> dict[str, str]:
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    return {
        "kafka.sasl.login.callback.handler.class": handler,
        "kafka.sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def _allow(spark: SparkSession, url: str) -> None:
    """Like -Dorg.apache.kafka.sasl.oauthbearer.allowed.urls at Spark's start."""
    jvm: Any = spark.sparkContext._jvm
    jvm.System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url)


def test_sparks_java_client_asks_any_endpoint_unless_restricted(
    spark_eos_session: SparkSession,
) -> None:
    """As described in docs/security.md."""
    jvm: Any = spark_eos_session.sparkContext._jvm
    name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
    setting = "sasl.oauthbearer.token.endpoint.url"
    package = jvm.org.apache.kafka.common.security.oauthbearer.internals.secured
    utils = package.ConfigurationUtils({setting: "https://login.example.com/token"})
    before = jvm.System.getProperty(name)
    try:
        jvm.System.clearProperty(name)
        utils.throwIfURLIsNotAllowed(setting)
        allowed = "https://other.example.com/token, https://login.example.com/token"
        jvm.System.setProperty(name, allowed)
        utils.throwIfURLIsNotAllowed(setting)
        jvm.System.setProperty(name, "https://login.example.com/")
        with pytest.raises(IllegalArgumentException, match=r"not allowed\. Update system property"):
            utils.throwIfURLIsNotAllowed(setting)
    finally:
        jvm.System.clearProperty(name)
        if before is not None:
            jvm.System.setProperty(name, before)


def test_a_token_function_without_a_java_class_is_refused(
    secured: Secured, secured_flow: Flow, spark_eos_session: SparkSession
) -> None:
    kafka = {**_oauth(secured), "oauth_cb": lambda _: secured.tokens.token("bob")}
    sink = ExactlyOnceSink(**{**secured_flow.options(), "kafka": kafka})
    with pytest.raises(errors.ConfigurationError, match=r"kafka\.sasl\.login\.callback\.handler"):
        sink.read(spark_eos_session, subscribe=secured_flow.source)


@pytest.mark.slow
def test_the_source_can_not_log_in_otherwise_than_the_others(
    secured: Secured, secured_flow: Flow, spark_eos_session: SparkSession
) -> None:
    sink = ExactlyOnceSink(**{**secured_flow.options(), "kafka": secured.sasl("PLAIN")})
    options = {"kafka.sasl.jaas.config": "x"}
    with pytest.raises(errors.ConfigurationError, match="set it once, in kafka="):
        sink.read(spark_eos_session, subscribe=secured_flow.source, options=options)


def test_a_wrong_password_is_reported_when_reading_and_writing(
    secured: Secured, secured_flow: Flow, spark_eos_session: SparkSession
) -> None:
    kafka = secured.sasl("SCRAM-SHA-256", password="wrong")
    sink = ExactlyOnceSink(**{**secured_flow.options(), "kafka": kafka})
    with pytest.raises(errors.AuthenticationError, match=r"check sasl\.username and"):
        sink.read(spark_eos_session, subscribe=secured_flow.source)
    frame = ExactlyOnceSink(**arguments(**secured_flow.options())).read(
        spark_eos_session, subscribe=secured_flow.source
    )
    with pytest.raises(errors.AuthenticationError, match=r"check sasl\.username and"):
        sink.write(frame.select("source", "value"))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "PLAIN"])
def test_a_connection_that_lives_longer_than_its_login(
    secured: Secured, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker closes connections that don't authenticate again in time (KIP-368)."""
    settings = {
        **secured.sasl("PLAIN", tls=False),
        "bootstrap.servers": secured.broker.servers_of("SHORT"),
    }
    if mechanism == "OAUTHBEARER":
        del settings["sasl.username"], settings["sasl.password"]
        token = secured.tokens.token("bob")
        settings |= {"sasl.mechanism": mechanism, "oauth_cb": lambda _: token}
    with (
        caplog.at_level(logging.DEBUG, "kafka.net.connection"),
        closing(Connections(ClientSettings(settings))) as connections,
    ):
        end = time.monotonic() + 1.3 * SHORT_LOGIN_MS / 1000
        while time.monotonic() < end:
            connections.send(MetadataRequest(topics=[]), Deadline(30, "test"))
            time.sleep(0.05)
        # Before they are closed, which kafka-python calls lost as well.
        assert "Beginning SASL re-authentication" in caplog.text
        lost = [line for line in caplog.text.splitlines() if "Connection lost" in line]
        # Another test's client may still look for a broker that has ended.
        assert [line for line in lost if "ECONNREFUSED" not in line] == []
