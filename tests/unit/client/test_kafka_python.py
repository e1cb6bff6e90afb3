"""Only one file uses kafka-python's internals, and its settings are known."""

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from spark_eos._client.kafka_python import NodeConnections
from spark_eos._client.settings import ClientSettings

ROOT = Path(__file__).parents[3]


def test_the_settings() -> None:
    # kafka-python passes over settings that it does not know.
    servers = {"bootstrap.servers": "localhost:9", "security.protocol": "SASL_SSL"}
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    token = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": str}
    given: set[str] = set()
    for settings in ({**servers, **login}, {**servers, **token}):
        given |= {*ClientSettings(settings).for_kafka_python()}
    known = {*KafkaConnectionManager.DEFAULT_CONFIG, *NetworkSelector.DEFAULT_CONFIG}
    lacking = given - known
    assert not lacking, f"kafka-python has no setting {sorted(lacking)} any more"


def _connection(
    node: int, *, requests: int, paused: frozenset[str] = frozenset(), waited: float = 0.0
) -> Any:
    sent = (0, None, time.monotonic() - waited, 0.0, None)
    return SimpleNamespace(
        node_id=node, connected=True, in_flight_requests=[sent] * requests, paused=paused
    )


def _manager(*connections: Any) -> Any:
    brokers = [SimpleNamespace(node_id=node) for node in (1, 2, 3)]
    return SimpleNamespace(
        cluster=SimpleNamespace(brokers=lambda: brokers),
        _conns={each.node_id: each for each in connections},
        _backoff={},
        _met={each.node_id: time.monotonic() - 10 for each in connections},
    )


def test_a_throttled_broker_is_not_chosen() -> None:
    throttled = _connection(1, requests=0, paused=frozenset({"throttle"}))
    manager = _manager(throttled, *(_connection(node, requests=node) for node in (2, 3)))
    assert NodeConnections.least_loaded_node(manager) == 2
    assert NodeConnections.least_loaded_node(manager, avoided=2) == 3


def test_a_broker_that_owes_an_answer_is_not_chosen() -> None:
    owing = _connection(1, requests=1, waited=5)
    assert NodeConnections.least_loaded_node(_manager(owing, _connection(2, requests=3))) == 2
    # Rather than such a broker, choose one to which there is no connection yet.
    assert NodeConnections.least_loaded_node(_manager(owing)) in {2, 3}


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


# The verifier shares no code with what it judges.
_WITHOUT_ADAPTER = re.compile(r"spark_eos/(_client/kafka_python(_transports)?\.py|verify/\w+\.py)")


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
loop.stop()
"""


def test_a_caller_that_is_interrupted_leaves_a_loop_that_goes_on() -> None:
    # Not measured: interrupted within its own lock, coverage hangs.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    subprocess.run([sys.executable, "-c", _INTERRUPTED], check=True, timeout=120, env=env)
