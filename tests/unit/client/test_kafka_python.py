"""Each name that `spark_eos._client.kafka_python` uses of kafka-python: a move fails by its name.

The tests look names up in kafka-python itself, so that they also tell all that has moved while
the adapter can't even be imported. `tests/integration/kafka/test_kafka_python_on_brokers.py` has
what each name does, the attributes of objects too, and tests of those who send them what messages
do.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ADAPTER = ROOT / "spark_eos" / "_client" / "kafka_python.py"

# Module, name in it, and the parameters that are given by name or position.
NAMES = [
    ("kafka.cluster", "ClusterMetadata.broker_metadata", "broker_id"),
    ("kafka.cluster", "ClusterMetadata.brokers", ""),
    ("kafka.cluster", "ClusterMetadata.request_update", ""),
    ("kafka.future", "Future.add_errback", "f"),
    ("kafka.net.connection", "KafkaConnection.close_future", None),
    ("kafka.net.connection", "KafkaConnection.init_future", None),
    ("kafka.net.inet", "KafkaNetSocket", "proxy_url"),
    ("kafka.net.inet", "KafkaNetSocket.sock_connect", "net sock sockaddr timeout_at"),
    ("kafka.net.inet", "create_connection", "net host port socket_options proxy_url timeout_at"),
    ("kafka.net.manager", "KafkaConnectionManager", "net configs"),
    ("kafka.net.manager", "KafkaConnectionManager._build_transport", "node timeout_at"),
    ("kafka.net.manager", "KafkaConnectionManager.bootstrap", "timeout_ms"),
    ("kafka.net.manager", "KafkaConnectionManager.bootstrapped", None),
    ("kafka.net.manager", "KafkaConnectionManager.close", ""),
    ("kafka.net.manager", "KafkaConnectionManager.get_connection", "node_id"),
    ("kafka.net.manager", "KafkaConnectionManager.least_loaded_node", ""),
    ("kafka.net.manager", "KafkaConnectionManager.send", "request node_id request_timeout_ms"),
    ("kafka.net.manager", "KafkaConnectionManager.wait_for", "future timeout_ms"),
    ("kafka.net.sasl.oauth", "AbstractTokenProvider", ""),
    ("kafka.net.sasl.oauth", "AbstractTokenProvider.extensions", ""),
    ("kafka.net.sasl.oauth", "AbstractTokenProvider.token", ""),
    ("kafka.net.selector", "NetworkSelector", "configs"),
    ("kafka.net.selector", "NetworkSelector._invoke", "coro args"),
    ("kafka.net.selector", "NetworkSelector.call_soon_threadsafe", ""),
    ("kafka.net.selector", "NetworkSelector.close", ""),
    ("kafka.net.selector", "NetworkSelector.run", "coro args"),
    ("kafka.net.selector", "NetworkSelector.start", ""),
    ("kafka.net.selector", "NetworkSelector.stop", "timeout_ms"),
    ("kafka.net.selector", "NetworkSelector.wait_read", "fileobj timeout_at"),
    ("kafka.net.selector", "NetworkSelector.wait_write", "fileobj timeout_at"),
    ("kafka.net.transport", "KafkaSSLTransport", "net sock host configs"),
    ("kafka.net.transport", "KafkaSSLTransport._sock_recv", ""),
    ("kafka.net.transport", "KafkaSSLTransport.abort", "error"),
    ("kafka.net.transport", "KafkaTCPTransport.handshake", ""),
    ("kafka.net.transport", "KafkaTCPTransport", "net sock host"),
    ("kafka.net.transport", "KafkaTCPTransport._sock_recv", ""),
    ("kafka.protocol.api_message", "ApiMessage", None),
    ("kafka.protocol.consumer", "IsolationLevel.READ_COMMITTED", None),
    ("kafka.protocol.consumer", "IsolationLevel.READ_UNCOMMITTED", None),
    ("kafka.protocol.consumer", "OffsetSpec.EARLIEST", None),
    ("kafka.protocol.consumer", "OffsetSpec.LATEST", None),
    ("kafka.protocol.sasl", "SaslAuthenticateRequest", None),
    ("kafka.protocol.sasl", "SaslAuthenticateResponse", None),
    ("kafka.util", "ensure_valid_topic_name", "topic"),
]


def _found(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        pytest.fail(f"kafka-python has moved {module}, with {name}: {error}")
    for part in name.split("."):
        owner = found
        found = getattr(owner, part, None)
        assert found is not None, f"kafka-python has moved {module}.{name}: no {part}"
    return found


def _accepted(found: Any) -> set[str]:
    return set(inspect.signature(found).parameters)


@pytest.mark.parametrize(
    ("module", "name", "parameters"), NAMES, ids=[f"{module}.{name}" for module, name, _ in NAMES]
)
def test_the_name(module: str, name: str, parameters: str | None) -> None:
    found = _found(module, name)
    if parameters is not None:
        lacking = set(parameters.split()) - _accepted(found)
        assert not lacking, f"kafka-python: {module}.{name} takes no {sorted(lacking)} any more"


def test_the_settings() -> None:
    from spark_eos._client.settings import ClientSettings

    # kafka-python passes over settings that it does not know.
    servers = {"bootstrap.servers": "localhost:9", "security.protocol": "SASL_SSL"}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    token = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": str}
    given: set[str] = set()
    for settings in ({**servers, **login}, {**servers, **token}):
        given |= {*ClientSettings(settings).for_kafka_python()}
    known = {
        *_found("kafka.net.manager", "KafkaConnectionManager").DEFAULT_CONFIG,
        *_found("kafka.net.selector", "NetworkSelector").DEFAULT_CONFIG,
    }
    lacking = given - known
    assert not lacking, f"kafka-python has no setting {sorted(lacking)} any more"


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def test_everything_that_the_adapter_imports_has_a_test() -> None:
    imported = {f"{m}.{n}" for m, n in _imports(ADAPTER) if m.partition(".")[0] == "kafka"}
    tested = {f"{module}.{name.partition('.')[0]}" for module, name, _ in NAMES}
    # Messages are sent to brokers by the tests of who needs them.
    rest = {name for name in imported - tested if not name.endswith("Request")}
    assert rest == {"kafka.errors"}


# The verifier shares no code with what it judges.
_WITHOUT_ADAPTER = re.compile(r"spark_eos/(_client/kafka_python\.py|verify/\w+\.py)")


# What kafka-python itself offers its users; `kafka.admin` is all of that kind.
_PUBLIC = {"errors", "KafkaAdminClient", "TopicPartition", ""}


def test_nothing_else_uses_kafka_python_within() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / "spark_eos").rglob("*.py")
        if not _WITHOUT_ADAPTER.fullmatch(str(path.relative_to(ROOT)))
        for module, name in _imports(path)
        if (module.startswith("kafka.") and module not in {"kafka.errors", "kafka.admin"})
        or (module == "kafka" and name not in _PUBLIC)
    }
    assert not found


_INTERRUPTED = """
import random, signal
from spark_eos._client.kafka_python import EventLoop

async def nothing():
    pass

def interrupt(*_):
    raise KeyboardInterrupt

loop = EventLoop({"client_id": "of a test"})
signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
while interrupted < 5_000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() * 3e-4)
        loop.run(nothing)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
signal.signal(signal.SIGALRM, signal.SIG_IGN)
loop.run(nothing)
loop.selector.stop()
"""


def test_a_caller_that_is_interrupted_leaves_a_loop_that_goes_on() -> None:
    # Not measured: interrupted within its own lock, coverage hangs.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    subprocess.run([sys.executable, "-c", _INTERRUPTED], check=True, timeout=120, env=env)
