"""Brokers that all processes of a test run share; each starts when a test first needs it.

The process that distributes the tests starts the brokers. It outlives the processes that run
tests, and the brokers end with it, however it ends.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, NoReturn

import pytest

from spark_eos.testing import EmbeddedKafka, KafkaNode
from spark_eos.testing.broker_admin import admin_client
from spark_eos.testing.broker_properties import Ports

_Known = tuple[Ports, int, Path]
"""What other processes need to know about a broker: its ports, process id and log."""
_Find = Callable[[str], _Known]
_FIND = pytest.StashKey[_Find]()
_ADDRESS = "shared_brokers"
# A whole run leaves some 7,000 partitions behind, which would fill the default heap of 256 MB.
_HEAP = "1g"


class SharedKafka(EmbeddedKafka):
    """A broker for the whole test run. Tests that stop or pause a broker start their own."""

    def __init__(self, ports: Ports, pid: int, log: Path) -> None:
        super().__init__()
        (own,) = self.nodes
        self.nodes = (_SharedNode(own, ports, pid, log),)
        self._admin = admin_client(self.direct_servers)


class _SharedNode(KafkaNode):
    def __init__(self, like: KafkaNode, ports: Ports, pid: int, log: Path) -> None:
        super().__init__(like.id, like.jar_set, like._settings)
        self.settle((ports,))
        self._pid = pid
        self._log = log

    @property
    def pid(self) -> int:
        """Process id of the JVM, a child of another process."""
        return self._pid

    @property
    def is_running(self) -> bool:
        """The broker runs until the test run ends."""
        return True

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _directory(self) -> Path:
        return self._log.parent

    def _disconnect(self) -> NoReturn:
        raise RuntimeError("other processes use this broker: a test that ends one starts its own")

    def _running(self) -> NoReturn:
        self._disconnect()


class _Starter:
    """Starts brokers for this process, and for processes that ask through a socket."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[str, EmbeddedKafka] = {}
        self._listener: Listener | None = None
        self._closing = False

    def find(self, name: str) -> _Known:
        if name not in self._started:
            self._started[name] = self._stack.enter_context(EmbeddedKafka(heap=_HEAP))
        broker = self._started[name]
        (node,) = broker.nodes
        return node.ports, node.pid, node._directory() / "server.log"

    def address(self) -> str:
        if self._listener is None:
            self._listener = Listener(family="AF_UNIX")
            serving = threading.Thread(target=self._serve, args=[self._listener], name="brokers")
            serving.start()
            self._stack.callback(self._stop_serving, serving, str(self._listener.address))
        return str(self._listener.address)

    def _stop_serving(self, serving: threading.Thread, address: str) -> None:
        self._closing = True
        Client(address, family="AF_UNIX").close()
        serving.join()

    def _serve(self, listener: Listener) -> None:
        with listener:
            while not self._closing:
                # A process may be interrupted before it has its answer.
                with suppress(EOFError, OSError), listener.accept() as caller:
                    caller.send(self._answer(caller.recv()))

    def _answer(self, name: str) -> _Known | Exception:
        try:
            return self.find(name)
        except Exception as error:  # noqa: BLE001 - raised in the process that asked
            return error

    def close(self) -> None:
        self._stack.close()


def _ask(address: str, name: str) -> Any:
    with Client(address, family="AF_UNIX") as connection:
        connection.send(name)
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def shared_kafka(config: pytest.Config, name: str) -> SharedKafka:
    """The broker of this name, for the process with this configuration."""
    return SharedKafka(*config.stash[_FIND](name))


class SharedBrokersPlugin:
    """Pytest hooks that connect the processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._starter = _Starter()
        worker = getattr(config, "workerinput", None)
        config.stash[_FIND] = (
            self._starter.find if worker is None else lambda name: _ask(worker[_ADDRESS], name)
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Gives a new process the address of the starter."""
        node.workerinput[_ADDRESS] = self._starter.address()

    def pytest_unconfigure(self) -> None:
        """Ends the brokers when no test is running any more."""
        self._starter.close()


def add_threads(report: pytest.TestReport, broker: EmbeddedKafka) -> None:
    """Adds a thread dump of the broker to a test's report, or says that the broker is gone."""
    before = len(broker.log())
    try:
        os.kill(broker.pid, signal.SIGQUIT)
    except ProcessLookupError:
        found = "it has ended"
    else:
        # If the JVM can't write the dump within a second, that is informative enough.
        time.sleep(1)
        found = broker.log()[before:]
    report.sections.append(("Threads of the embedded Kafka", found))
