"""Security settings of clients: which are accepted, which are refused, and which stay hidden."""

import time
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from spark_eos._client.jaas import JaasError, JaasLine, parse_jaas
from spark_eos._client.oauth import MskIam, TokenProvider, msk_region
from spark_eos._client.sasl import Msk
from spark_eos._client.settings import ClientSettings
from spark_eos.errors import ConfigurationError
from spark_eos.jobs.options import JobOptions, job_options
from support.certificates import issued, pem
from support.client_settings import OIDC, SCRAM, SERVERS
from support.messages import says
from support.pages import code_blocks, run_block
from support.secured import PASSWORD

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_.", min_size=1)
# Java's characters; a lone surrogate is none.
VALUES = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(NAMES, VALUES))
def test_a_jaas_line_is_read_as_it_was_written(options: dict[str, str]) -> None:
    line = JaasLine("some.Module", options)
    assert parse_jaas(line.render()) == line


@pytest.mark.parametrize(
    ("line", "password"),
    [
        (f'{MODULE} required username="alice" password="p w";', "p w"),
        (f"{MODULE} required username='alice' password='p\"w' ;", 'p"w'),
        (f"{MODULE}   REQUIRED\n username=alice\n password=plain;\n", "plain"),
        (rf'{MODULE} optional username="alice" password="a\"b\\c\td\101";', 'a"b\\c\tdA'),
        (f'{MODULE} required username = "alice" password = "a;b=c";', "a;b=c"),
    ],
)
def test_jaas_lines_as_users_write_them(line: str, password: str) -> None:
    assert parse_jaas(line).options == {"username": "alice", "password": password}


@pytest.mark.parametrize(
    "line",
    [
        "",
        'password="marker-secret";',
        f'{MODULE} password="marker-secret";',
        f"{MODULE} perhaps;",
        f'{MODULE} required password="marker-secret"',
        f'{MODULE} required password="marker-secret',
        f"{MODULE} required; {MODULE} required;",
        f"{MODULE} required password marker-secret;",
        f"{MODULE} required a=b password=marker secret;",
        f"{MODULE} required password=;",
    ],
)
def test_invalid_jaas_lines_are_refused_without_being_quoted(line: str) -> None:
    with says(JaasError) as caught:
        parse_jaas(line)
    assert "marker" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_sparks_style_says_the_same_as_librdkafkas(prefix: str) -> None:
    jaas = f'{MODULE} required username="alice" password="marker-secret";'
    sparks = {
        f"{prefix}bootstrap.servers": "localhost:9092",
        f"{prefix}security.protocol": "SASL_SSL",
        f"{prefix}sasl.mechanism": "SCRAM-SHA-512",
        f"{prefix}sasl.jaas.config": jaas,
    }
    assert ClientSettings(sparks) == ClientSettings(SCRAM)
    assert ClientSettings(sparks).for_spark_source()["kafka.sasl.jaas.config"] == jaas


def test_the_login_module_of_a_renamed_package_is_kept() -> None:
    # As Databricks has it.
    line = f'kafkashaded.{MODULE} required username="a" password="b";'
    settings = {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}
    client = ClientSettings({**settings, "sasl.jaas.config": line})
    assert client.for_spark_source()["kafka.sasl.jaas.config"] == line


def test_databricks_has_renamed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    options = ClientSettings(OIDC).for_spark_source()
    assert options["kafka.sasl.jaas.config"].startswith("kafkashaded.org.apache.kafka.")
    handler = options["kafka.sasl.login.callback.handler.class"]
    assert handler.startswith("kafkashaded.org.apache.kafka.")


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def jaas(line: str) -> dict[str, Any]:
    return {**without(SCRAM, "sasl.username", "sasl.password"), "sasl.jaas.config": line}


@pytest.mark.parametrize(
    "settings",
    [
        {**SCRAM, "ssl.truststore.location": "/x.jks"},
        {**SCRAM, "ssl.keystore.location": "/x.p12"},
        {**SCRAM, "ssl.keystore.password": "marker-secret"},
        {**SCRAM, "ssl.crl.location": "/x"},
        {**SCRAM, "ssl.cipher.suites": "x"},
        {**SCRAM, "sasl.passwrod": "marker-secret"},
        {**SCRAM, "sasl.mechanism": "GSSAPI"},
        {**SCRAM, "sasl.kerberos.principal": "x"},
        {**SCRAM, "sasl.login.callback.handler.class": "x"},
        {**SCRAM, "enable.ssl.certificate.verification": "false"},
        {**SCRAM, "enable.ssl.certificate.verification": "no"},
        {**SCRAM, "ssl.endpoint.identification.algorithm": "x"},
        {**SCRAM, "ssl.endpoint.identification.algorithm": ""},
        {**SCRAM, "kafka.ssl.endpoint.identification.algorithm": ""},
        {**SCRAM, "security.protocol": "TLS"},
        {**SCRAM, "security.protocol": "SSL"},
        without(SCRAM, "security.protocol"),
        {**SERVERS, "ssl.ca.location": "/x"},
        without(SCRAM, "sasl.password"),
        without(SCRAM, "sasl.mechanism"),
        {**SCRAM, "sasl.jaas.config": "x required;"},
        jaas("org.other.LoginModule required username=a password=b;"),
        jaas(f"{MODULE} required username=a password=b t=true;"),
        jaas(f"{MODULE} required username=a password=marker-secret"),
        {**SCRAM, "kafka.sasl.password": "x"},
        {**SCRAM, "ssl.ca.location": "/nowhere"},
        {**SCRAM, "ssl.ca.pem": "marker-secret"},
        {**SCRAM, "ssl.ca.pem": "x", "ssl.ca.location": "y"},
        {**SCRAM, "ssl.certificate.pem": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"},
        {**SCRAM, "oauth_cb": "x"},
        without(OIDC, "sasl.oauthbearer.method"),
        without(OIDC, "sasl.oauthbearer.client.secret"),
        {**OIDC, "sasl.oauthbearer.token.endpoint.url": "file:///x"},
        {**OIDC, "sasl.oauthbearer.grant.type": "x"},
        {**OIDC, "sasl.oauthbearer.extensions": "marker-secret"},
        {**OIDC, "sasl.oauthbearer.assertion.file": "x"},
        {**OIDC, "sasl.jaas.config": "x required;"},
        {**OIDC, "oauth_cb": print},
        {**OIDC, "enable.sasl.oauthbearer.unsecure.jwt": "true"},
        {**OIDC, "sasl.oauthbearer.token.endpoint.url": "http://10.0.0.1/x"},
        *(
            {**OIDC, "sasl.oauthbearer.token.endpoint.url": f"https://a:{password}@b/x"}
            for password in (
                "marker-secret",
                *(f"{before}{sign}marker-secret" for before in ("1", "mark") for sign in "/?#"),
            )
        ),
        {**SCRAM, "ssl.key.location": "-----BEGIN PRIVATE KEY-----\nmarker-secret\n-----END..."},
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any]) -> None:
    with says(ConfigurationError) as caught:
        ClientSettings(settings)
    assert "marker" not in str(caught.value)


def test_a_token_is_used_until_most_of_its_life_is_over() -> None:
    lives = [100.0, -1.0, 100.0]
    made = []

    def function(config: str) -> tuple[str, float, str, dict[str, str]]:
        made.append(config)
        return f"token {len(made)}", time.time() + lives[len(made) - 1], "me", {"team": "orders"}

    provider = TokenProvider(function, "config")
    assert [provider.token() for _ in range(3)] == ["token 1"] * 3
    assert provider.extensions() == {"team": "orders"}
    provider._renewal = 0
    assert provider.token() == "token 2"
    assert provider.token() == "token 3"
    assert made == ["config"] * 3


def test_the_region_of_msk_is_in_the_names_of_its_brokers() -> None:
    names = "b-1.orders.abc.c2.kafka.eu-west-1.amazonaws.com:9098,b-2.x:9098"
    assert msk_region(names) == "eu-west-1"
    assert msk_region("boot-x.c1.kafka-serverless.us-east-2.amazonaws.com:9098") == "us-east-2"
    assert msk_region("broker-1:9092") is None


def test_amazons_own_jaas_line_is_taken() -> None:
    module = "software.amazon.msk.auth.iam.IAMLoginModule"
    settings = {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}
    line = f'{module} required awsRoleArn="arn:1" awsRoleSessionName="orders";'
    client = ClientSettings({**settings, "sasl.jaas.config": line})
    options = client.for_spark_source()
    assert options["kafka.sasl.jaas.config"] == line
    assert options["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
    assert isinstance(client.security.sasl, Msk)
    assert client.security.sasl.function == MskIam(None, role="arn:1", session="orders")
    assert client.for_producer("id", 1)["sasl.mechanism"] == "OAUTHBEARER"
    with says(ConfigurationError):
        ClientSettings({**settings, "sasl.jaas.config": f"{module} required awsDebugCreds=true;"})


def test_jobs_prefer_the_command_line_to_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# c\nsasl.password = {PASSWORD}\nclient.id=file\nbootstrap.servers=x:1\n")
    seen: list[JobOptions] = []

    @click.command()
    @job_options
    def job(options: JobOptions) -> None:
        seen.append(options)

    line = "--bootstrap-servers y:2 --group-id g --source a --target b --checkpoint-location c"
    more = ["--kafka-config", str(file), "--kafka", "client.id=line"]
    result = CliRunner().invoke(job, [*line.split(), *more])
    assert result.exit_code == 0, result.output
    assert seen[0].kafka == {
        "sasl.password": PASSWORD,
        "client.id": "line",
        "bootstrap.servers": "y:2",
    }
    assert "sasl.password" not in repr(seen[0])


def _my_token(_configuration: str) -> tuple[str, float]:
    return "token", time.time() + 3_600


def test_the_settings_that_the_docs_show_are_taken(tmp_path: Path) -> None:
    authority = trustme.CA()
    client = issued(authority, "client")
    (tmp_path / "authority.pem").write_text(pem(authority))
    (tmp_path / "login-authority.pem").write_text(pem(authority))
    (tmp_path / "client.pem").write_text(client.chain)
    (tmp_path / "client.key").write_text(client.key)
    shown: list[str] = []
    names: dict[str, Any] = {
        "password": "p",
        "secret": "s",
        "line": f'{MODULE} required username="orders" password="p";',
        "my_token": _my_token,
    }
    # docs/security.md
    for block in code_blocks("security", "python"):
        settings = block.partition("sink = ")[0].replace("/etc/kafka", str(tmp_path))
        found = ClientSettings(run_block(settings, {}, **names)["kafka"])
        shown.append(found.security.protocol)
    assert shown == ["SSL", *["SASL_SSL"] * 5]


def test_a_jaas_name_that_kafka_would_split_is_quoted() -> None:
    line = JaasLine("some.Module", {"user_alice@example.com": "p w", "user_bob": "b"})
    assert line.render() == 'some.Module required "user_alice@example.com"="p w" user_bob="b";'


@pytest.mark.parametrize("before", ["# F\u0151tan\u00fas\u00edtv\u00e1ny\n", "\ufeff"])
def test_text_around_certificates_is_ignored(before: str) -> None:
    authority = before + trustme.CA().cert_pem.bytes().decode()
    tls = {**SERVERS, "security.protocol": "SSL", "ssl.ca.pem": authority}
    assert ClientSettings(tls).for_spark_source()["kafka.ssl.truststore.certificates"].isascii()
    ClientSettings({**SERVERS, **OIDC, "https.ca.pem": authority})


def test_https_authorities_are_checked_at_once() -> None:
    broken = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
    with pytest.raises(
        ConfigurationError, match=r"https\.ca\.location or https\.ca\.pem can't be used"
    ):
        ClientSettings({**SERVERS, **OIDC, "https.ca.pem": broken})


@pytest.mark.parametrize("password", ["", "x"])
def test_a_password_of_a_key_that_has_none_is_left_out(password: str) -> None:
    """Java would try to decrypt the key."""
    own = issued(trustme.CA(), "client")
    tls = {"ssl.certificate.pem": own.chain, "ssl.key.pem": own.key, "ssl.key.password": password}
    given = ClientSettings({**SERVERS, "security.protocol": "SSL", **tls})
    assert "kafka.ssl.key.password" not in given.for_spark_source()
