"""A refused client soon gets an error with the reason, the address and the setting to change."""

import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

from spark_eos._cli import main
from spark_eos._client import connections
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._worker import producer as producer_module
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.producer import TransactionalProducer
from spark_eos.errors import AuthenticationError, DeadlineExceededError
from support.certificates import issued, pem
from support.flow import Flow
from support.members import writer_settings
from support.secured import Secured
from support.tokens import TokenAuthority, token_endpoint

# Long enough that trying until then is not an answer within seconds.
PATIENCE = 600.0
SECONDS = 60.0


def runs_out(settings: dict[str, Any], words: str, seconds: float) -> None:
    """Checks the error after the time limit; a busy machine may need longer to find it."""
    with (
        closing(Connections(ClientSettings(settings))) as connections,
        pytest.raises(DeadlineExceededError) as failure,
    ):
        connections.brokers(Deadline(seconds, "connect_timeout_ms"))
    if not re.search(words, str(failure.value)):
        assert seconds < SECONDS, failure.value
        runs_out(settings, words, seconds * 5)


def reach(settings: dict[str, Any]) -> None:
    with closing(Connections(ClientSettings(settings))) as connections:
        connections.brokers(Deadline(PATIENCE, "connect_timeout_ms"))


def refused(settings: dict[str, Any], words: str, within: float = SECONDS) -> str:
    began = time.monotonic()
    with pytest.raises(AuthenticationError, match=words) as caught:
        reach(settings)
    assert time.monotonic() - began < within
    text = str(caught.value)
    assert settings["bootstrap.servers"] in text  # the listener
    assert settings.get("security.protocol", "PLAINTEXT") in text
    return text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password(secured: Secured, mechanism: str) -> None:
    text = refused(secured.sasl(mechanism, password="marker-secret"), r"sasl\.password")
    assert mechanism in text
    assert "marker" not in text


def test_a_mechanism_that_the_listener_does_not_have(secured: Secured) -> None:
    settings = secured.sasl("PLAIN", tls=False)
    settings["bootstrap.servers"] = secured.broker.servers_of("SCRAM_ONLY")
    refused(settings, r"does not support this mechanism: change sasl\.mechanism")


def test_an_authority_that_is_not_trusted(secured: Secured) -> None:
    settings = secured.tls()
    del settings["ssl.ca.location"]
    refused(settings, r"unable to get local issuer certificate: set ssl\.ca\.location")
    other = pem(trustme.CA())
    refused({**settings, "ssl.ca.pem": other}, r"set ssl\.ca\.location")


def test_a_certificate_for_another_host(secured: Secured) -> None:
    refused(secured.tls("OTHER_HOST"), r"not valid for '127\.0\.0\.1'.*advertised\.listeners")


def test_an_expired_certificate_of_the_broker(secured: Secured) -> None:
    refused(secured.tls("EXPIRED"), "certificate has expired: the broker needs")


def test_no_certificate_where_one_is_asked_for(secured: Secured) -> None:
    refused(secured.tls("MUTUAL"), r"asks for a client certificate.*set ssl\.certificate\.location")


@pytest.mark.parametrize("fault", ["expired", "of another authority"])
def test_a_client_certificate_that_the_broker_does_not_accept(secured: Secured, fault: str) -> None:
    authority = secured.authority if fault == "expired" else trustme.CA()
    own = issued(authority, "client.test", expired=fault == "expired")
    settings = {"ssl.certificate.pem": own.chain, "ssl.key.pem": own.key}
    refused({**secured.tls("MUTUAL"), **settings}, r"change ssl\.certificate\.location")


@pytest.mark.parametrize(
    ("listener", "protocol", "words"),
    [
        ("SSL", "PLAINTEXT", "speaks TLS, not PLAINTEXT: set security.protocol to SSL"),
        ("SASL_SSL", "SSL", "speaks security.protocol=SSL"),
        # Which of the two, OpenSSL's version decides.
        (None, "SSL", r"speaks security\.protocol=SSL|speak TLS\?.*security\.protocol"),
        (None, "SASL_PLAINTEXT", "does not speak SASL.*security.protocol"),
    ],
)
def test_a_listener_of_another_protocol(
    secured: Secured,
    listener: str | None,
    protocol: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_SILENCE", 1.0)
    servers = secured.broker.bootstrap_servers
    if listener is not None:
        servers = secured.broker.servers_of(listener)
    sasl = secured.sasl("PLAIN", tls=False) if protocol.startswith("SASL") else {}
    settings = {**sasl, "bootstrap.servers": servers, "security.protocol": protocol}
    if protocol == "SSL":
        settings["ssl.ca.location"] = str(secured.authority_file)
    refused(settings, words)


def oauth(secured: Secured, **more: Any) -> dict[str, Any]:
    return {**secured.tls("SASL_SSL"), "sasl.mechanism": "OAUTHBEARER", **more}


@pytest.mark.parametrize("fault", ["expired", "forged"])
def test_a_token_that_the_broker_does_not_accept(secured: Secured, fault: str) -> None:
    authority = secured.tokens if fault == "expired" else TokenAuthority()
    token, _ = authority.token("bob", lifetime=-120 if fault == "expired" else 60)
    text = refused(
        oauth(secured, oauth_cb=lambda _: (token, time.time() + 60)),
        "does not accept the token that oauth_cb returned",
    )
    assert token not in text


@pytest.mark.parametrize(
    ("function", "words"),
    [(lambda _: "marker-secret", "must return a tuple"), (lambda _: (1, 2), "must return")],
)
def test_a_token_function_that_returns_something_else(
    secured: Secured, function: Callable[[str], Any], words: str
) -> None:
    text = refused(oauth(secured, oauth_cb=function), words)
    assert "marker" not in text


@pytest.mark.slow
def test_a_failing_token_function_is_retried_and_finally_named(secured: Secured) -> None:
    asked = []

    def fails(_config: str) -> Any:
        asked.append(1)
        raise RuntimeError("the vault is sealed")

    runs_out(oauth(secured, oauth_cb=fails), r"oauth_cb failed.*the vault is sealed", 3)
    assert len(asked) > 1


def client_credentials(secured: Secured, url: str, **more: str) -> dict[str, Any]:
    settings = {
        "method": "oidc",
        "client.id": "errors",
        "client.secret": "marker-secret",
        "token.endpoint.url": url,
        **more,
    }
    named = {f"sasl.oauthbearer.{name}": text for name, text in settings.items()}
    return oauth(secured, **named)


def test_client_credentials_that_the_endpoint_does_not_accept(secured: Secured) -> None:
    with token_endpoint(secured.tokens) as url:
        text = refused(client_credentials(secured, url), r"answered 401.*client\.secret")
    assert url in text
    assert "marker" not in text


@pytest.mark.slow
def test_an_endpoint_that_is_not_there(secured: Secured) -> None:
    settings = client_credentials(secured, "http://127.0.0.1:1/token")
    runs_out(settings, r"token\.endpoint\.url.*can't be reached", 1)


def test_msk_signs_tokens_that_reach_the_broker(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "marker-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "marker-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_REGION", raising=False)
    settings = {**secured.tls("SASL_SSL"), "sasl.mechanism": "AWS_MSK_IAM"}
    refused(settings, "set the environment variable AWS_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    # A broker of Amazon's would take it.
    text = refused(settings, "broker refuses the credentials: check the AWS credentials")
    assert "marker" not in text


def command_options(settings: dict[str, Any], tmp_path: Path) -> list[str]:
    """The commands' option for client settings."""
    file = tmp_path / "client.properties"
    lines = [f"{name} = {value}" for name, value in settings.items()]
    file.write_text("\n".join(["# A comment.", "", *lines]))
    servers = settings["bootstrap.servers"]
    return ["--bootstrap-servers", servers, "--kafka-config", str(file)]


@pytest.mark.parametrize("command", ["status", "abort", "verify"])
def test_the_commands_log_in_and_say_why_they_can_not(
    secured: Secured, command: str, tmp_path: Path
) -> None:
    flow = Flow(secured.broker, "", "")
    arguments = [command, "--group-id", flow.group_id]
    if command == "verify":
        arguments += ["--input", flow.source, "--output", flow.target, "--key", "--json"]
    good = secured.sasl("SCRAM-SHA-512")
    result = CliRunner().invoke(main, [*arguments, *command_options(good, tmp_path)])
    if command == "status":
        assert f"group '{flow.group_id}' does not exist" in result.output
    elif command == "abort":
        assert "No open transactions" in result.output
    else:
        assert "has no committed offset" in result.output
    bad = {**good, "sasl.password": "marker-secret"}
    result = CliRunner().invoke(main, [*arguments, *command_options(bad, tmp_path)])
    assert result.exit_code == (2 if command == "verify" else 1)
    assert "check sasl.username and sasl.password" in result.output
    assert "marker" not in result.output


def test_lines_that_are_not_settings_are_refused_but_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=alice\nmarker-secret\n")
    where = ["--bootstrap-servers", "x", "--group-id", "g", "--kafka-config"]
    result = CliRunner().invoke(main, ["status", *where, str(file)])
    assert "line 2 of" in result.output
    assert "marker" not in result.output
    result = CliRunner().invoke(main, ["status", *where, "/nowhere"])
    assert "No such file" in result.output


def test_a_producer_that_is_refused_ends_its_task_at_once(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(secured.broker, "", str(tmp_path / "workers"))
    settings = replace(
        writer_settings(flow),
        client=ClientSettings(secured.sasl("SCRAM-SHA-256", password="marker-secret")),
    )
    began = time.monotonic()
    producer = TransactionalProducer(settings)
    with closing(producer), pytest.raises(TransactionError, match=r"sasl\.password") as caught:
        producer.begin(lambda: None)
    assert not caught.value.again
    # And if librdkafka alone is refused.
    monkeypatch.setattr(Connections, "brokers", lambda *_: [])
    monkeypatch.setattr(producer_module, "fence_producer", lambda *_: None)
    producer = TransactionalProducer(settings)
    with closing(producer), pytest.raises(TransactionError, match="sasl_ssl://") as caught:
        producer.begin(lambda: None)
    assert not caught.value.again
    assert "marker" not in str(caught.value)
    assert time.monotonic() - began < 15
