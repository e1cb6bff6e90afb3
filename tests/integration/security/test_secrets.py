"""No log, plan, event, error, object or document contains secrets."""

import base64
import json
import logging
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos import ExactlyOnceSink
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from support import secrets_main
from support.certificates import encrypted
from support.flow import Flow
from support.registry_answers import stub_registry
from support.secured import MARK, MARKED_PASSWORD, MARKED_USER, Secured
from support.tokens import token_endpoint
from support.versions import HIDES_OPTIONS, needs_redacted_plans

LOG4J2 = """
rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c %m%n%ex
"""
# Python imports it wherever it starts: the driver and the workers.
SITE = """
import logging, os
logging.basicConfig(level=logging.DEBUG, filename=f"{directory}/python-{{os.getpid()}}.log")
logging.getLogger("kafka").setLevel(logging.DEBUG)
"""
CLIENT = "marked"
CLIENT_SECRET = f"{MARK}clientsecret"
KEY_PASSWORD = f"{MARK}keypassword"


@pytest.fixture(scope="module")
def encrypted_key(secured: Secured) -> str:
    return encrypted(secured.client.key, KEY_PASSWORD)


@pytest.fixture(scope="module")
def written_down(
    secured: Secured, encrypted_key: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A directory with everything that a process with secrets has recorded."""
    outside = tmp_path_factory.mktemp("given")
    here = tmp_path_factory.mktemp("seen")
    flow = Flow(secured.broker, "", "")
    flow.produce(range(4))
    (outside / "log4j2.properties").write_text(LOG4J2.format(file=here / "jvm.log"))
    (outside / "key.pem").write_text(encrypted_key)
    (outside / "sitecustomize.py").write_text(SITE.format(directory=here))
    secured.tokens.clients[CLIENT] = CLIENT_SECRET
    password = {
        **secured.sasl("PLAIN"),
        "sasl.username": MARKED_USER,
        "sasl.password": MARKED_PASSWORD,
        "ssl.certificate.pem": secured.client.chain,
        "ssl.key.pem": secured.client.key,
    }
    certificate = {
        **secured.tls("MUTUAL"),
        "ssl.certificate.pem": secured.client.chain,
        "ssl.key.pem": encrypted_key,
        "ssl.key.password": KEY_PASSWORD,
    }
    with token_endpoint(secured.tokens) as endpoint, stub_registry() as registry:
        registry.add("texts", '"string"')
        away = "127.0.0.1:1"
        user = f"{MARKED_USER}:{MARKED_PASSWORD}@"
        with_user = registry.url.replace("//", f"//{user}")
        oauth = {
            **secured.tls("SASL_SSL"),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.token.endpoint.url": endpoint,
        }
        settings = {
            "log4j2": str(outside / "log4j2.properties"),
            "endpoint": endpoint,
            "source": flow.source,
            "target": flow.target,
            "group_id": flow.group_id,
            "kafka": {"password": password, "certificate": certificate, "token": oauth},
            "registry": {"url": with_user, "timeout": 9},
            "wrong_registries": [
                {"url": f"http://{user}{away}"},
                {"url": f"http://{MARKED_USER}:1/{MARKED_PASSWORD}@{away}"},
                {"url": with_user, "proxy": f"http://{user}{away}"},
            ],
            "wrong": {
                "password": {**password, "sasl.password": f"{MARK}wrong"},
                "secret": {**oauth, "sasl.oauthbearer.client.secret": f"{MARK}wrong"},
                "key": {**certificate, "ssl.key.password": f"{MARK}wrong"},
                "row": password,
            },
        }
        (outside / "settings.json").write_text(json.dumps(settings))
        with (here / "output.txt").open("w") as output:
            subprocess.run(
                [sys.executable, secrets_main.__file__, str(outside / "settings.json"), str(here)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(outside), *sys.path])},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=500,
            )
    return here


def places(directory: Path, secret: str) -> set[str]:
    found = set()
    for file in directory.rglob("*"):
        if file.is_file():
            for number, line in enumerate(file.read_bytes().splitlines(), 1):
                if secret.encode() in line:
                    found.add(f"{file.name}:{number}: {line[:600]!r}")
    return found


@pytest.mark.slow
def test_the_process_has_written_much_down(written_down: Path) -> None:
    output = (written_down / "output.txt").read_text()
    assert "Traceback" not in output, output
    names = {file.name for file in written_down.rglob("*")}
    assert {"jvm.log", "seen-password.txt", "seen-token.txt", "errors.txt"} <= names
    jvm = (written_down / "jvm.log").read_text()
    assert "sasl.jaas.config" in jvm
    assert "DEBUG" in jvm
    python = "".join(file.read_text() for file in written_down.glob("python-*.log"))
    assert "DEBUG:kafka.net.connection" in python
    errors = (written_down / "errors.txt").read_text()
    assert errors.count("Traceback") >= 4
    assert errors.count("RegistryError: schema registry http://127.0.0.1") == 2
    assert "ConfigurationError: schema registry: url must be" in errors
    assert '/schemas/ids/1?subject=texts "HTTP/1.0 200 OK"' in python
    assert "EOS60" in python
    if HIDES_OPTIONS:
        plan = (written_down / "seen-password.txt").read_text()
        assert "kafka.sasl.jaas.config" in plan


QUERIES = ["password", "certificate", "token"]


@pytest.mark.slow
def test_what_is_no_secret_is_found_in_every_place(written_down: Path, secured: Secured) -> None:
    """This is how a secret would appear, if it were there."""
    # Beside a secret, in the same option's text or the same list of options.
    beside = "kafka.security.protocol"
    certificate = secured.client.chain.splitlines()[1]
    for name in QUERIES:
        seen = (written_down / f"seen-{name}.txt").read_text()
        assert beside in seen or not HIDES_OPTIONS, name
        for page in ("API environment", "API sql", "UI SQL", "UI StreamingQuery", "UI environment"):
            text = seen.partition(page)[2]
            assert len(text.partition("\nUI ")[0].partition("\nAPI ")[0]) > 1_000, (name, page)
    for name in QUERIES:
        assert "ClientSettings(" in (written_down / f"seen-{name}.txt").read_text()
    # Plans are there, and what Spark hides; options of sources are not, in Spark 4.2.
    (in_events,) = (
        text
        for file in written_down.glob("events/**/events*")
        if "KafkaScan" in (text := file.read_text())
    )
    assert "physicalPlanDescription" in in_events
    assert "*********(redacted)" in in_events
    assert places(written_down, certificate)
    commands = (written_down / "commands.txt").read_text()
    for line in ("status 0", "abort 0", "verify"):
        assert f"{line}" in commands
    for name in QUERIES:
        assert (written_down / f"checkpoint-{name}" / "offsets" / "0").stat().st_size > 0


@pytest.mark.slow
def test_no_password_or_client_secret_is_there(written_down: Path) -> None:
    assert places(written_down, MARK) == set()
    basic = base64.b64encode(f"{CLIENT}:{CLIENT_SECRET}".encode()).decode()
    assert places(written_down, basic) == set()


@pytest.mark.slow
def test_no_private_key_is_there(written_down: Path, secured: Secured, encrypted_key: str) -> None:
    for key in (secured.client.key, encrypted_key):
        assert places(written_down, key.splitlines()[1]) == set()


@needs_redacted_plans
def test_plans_show_no_key(secured: Secured, spark_eos_session: SparkSession) -> None:
    flow = Flow(secured.broker, "", "")
    settings = {
        **secured.tls("MUTUAL"),
        "ssl.certificate.pem": secured.client.chain,
        "ssl.key.pem": secured.client.key,
    }
    sink = ExactlyOnceSink(**{**flow.options(), "kafka": settings, "checkpoint_location": "c"})
    frame: Any = sink.read(spark_eos_session, subscribe=flow.source)
    plan = frame._jdf.queryExecution().toString()
    assert "kafka.ssl.keystore.key=*********(redacted)" in plan
    assert secured.client.key.splitlines()[1] not in plan


def test_what_is_sent_to_spark_is_in_no_log_of_py4j(
    secured: Secured, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Flow(secured.broker, "", "")
    settings = secured.sasl("PLAIN", password=MARKED_PASSWORD) | {"sasl.username": MARKED_USER}
    sink = ExactlyOnceSink(**{**flow.options(), "kafka": settings, "checkpoint_location": "c"})
    # A job that has run in this process has made py4j's logger quiet.
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "py4j"):
        sink.read(spark_eos_session, subscribe=flow.source)
        spark_eos_session.range(1).schema  # noqa: B018 - it is said to Spark, and logged
    assert "py4j" in {record.name.partition(".")[0] for record in caplog.records}
    assert MARK not in caplog.text


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_what_is_sent_to_brokers_is_in_no_log(
    secured: Secured, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = secured.tokens.token("bob")
    settings = {
        "PLAIN": secured.sasl("PLAIN", password=MARKED_PASSWORD) | {"sasl.username": MARKED_USER},
        "OAUTHBEARER": {
            **secured.tls("SASL_SSL"),
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: token,
        },
    }[mechanism]
    debug = logging.DEBUG
    with (
        caplog.at_level(debug),
        caplog.at_level(debug, "kafka"),
        closing(Connections(ClientSettings(settings))) as connections,
    ):
        connections.brokers(Deadline(60, "test"))
    assert "SaslHandshakeRequest" in caplog.text
    assert MARK not in caplog.text
    assert token[0] not in caplog.text
