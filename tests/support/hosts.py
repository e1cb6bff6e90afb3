"""Simulated hosts: network namespaces, each with a directory that no other host sees."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from support.killable_process import KillableProcess
from support.queries import until
from support.service import Service

THIS_HOST: Final = "10.77.0.1"
"""The address of the tests' own host, which the others reach."""
_LOOPBACK: Final = "127.0.0.1"
_BRIDGE: Final = "hosts"


def has_network_of_its_own() -> bool:
    """Return True if this process may add hosts: its network has only a loopback interface."""
    return Path("/proc/net/dev").read_text(encoding="ascii").count(":") == 1


class Hosts(Service):
    """Hosts that a bridge connects to this one.

    Each host reaches a broker here that listens on ``127.0.0.1:port`` at the same address, and has
    its own file system below ``directory``.
    """

    def __init__(self, number: int, *, directory: Path, port: int, logs: Path) -> None:
        super().__init__()
        self.addresses = [f"10.77.0.{host}" for host in range(2, 2 + number)]
        self._directory = directory
        self._port = port
        self._logs = logs
        self._namespaces: dict[str, int] = {}  # address to process

    def _begin(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        self._stack.callback(_run, "ip", "link", "delete", _BRIDGE)
        _run("ip", "address", "add", f"{THIS_HOST}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        self._forward((), THIS_HOST, _LOOPBACK)
        for address in self.addresses:
            self._add(address)

    def on(self, address: str) -> Sequence[str]:
        """The prefix of a command that runs on a host; empty for this host."""
        if address == THIS_HOST:
            return ()
        return ("nsenter", "--target", str(self._namespaces[address]), "--net", "--mount")

    def files(self, address: str) -> Path:
        """The directory as a host sees it."""
        return Path(f"/proc/{self._namespaces[address]}/root{self._directory}")

    def processes(self, address: str) -> set[int]:
        """The processes of a host."""
        return set(_in_the_network_of(self._namespaces[address]))

    @contextmanager
    def cut_off(self, address: str) -> Iterator[None]:
        """Drops everything sent to a host or from it until the block ends."""
        _run("ip", "link", "set", _link(address), "down")
        try:
            yield
        finally:
            _run("ip", "link", "set", _link(address), "up")

    def lose(self, address: str) -> None:
        """Ends a host permanently, like a power failure: it sends nothing more."""
        _run("ip", "link", "set", _link(address), "down")
        for pid in self.processes(address):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _add(self, address: str) -> None:
        process = self._start(("unshare", "--net", "--mount", "sleep", "infinity"))
        own = _network(os.getpid())
        until(lambda: _network(process) not in (None, own), lambda: "a namespace")
        self._namespaces[address] = process
        link, on = _link(address), self.on(address)
        peer = ("peer", "name", "eth0", "netns", str(process))
        _run("ip", "link", "add", link, "type", "veth", *peer)
        # The kernel removes a network without processes some time later, and this link with it.
        self._stack.callback(_run, "ip", "link", "delete", link, check=False)
        _run("ip", "link", "set", link, "master", _BRIDGE, "up")
        _run(*on, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _run(*on, "ip", "link", "set", "eth0", "up")
        _run(*on, "ip", "link", "set", "lo", "up")
        _run(*on, "mount", "-t", "tmpfs", "-o", "mode=0700", "own", str(self._directory))
        self._forward(on, _LOOPBACK, THIS_HOST)

    def _forward(self, on: Sequence[str], address: str, target: str) -> None:
        script = Path(__file__).with_name("forward.py")
        self._start((*on, sys.executable, str(script), address, target, str(self._port)))

    def _start(self, command: Sequence[str]) -> int:
        log = self._logs / "hosts.log"
        process = KillableProcess(command, log=log, directory=self._logs, environment={})
        return self._stack.enter_context(process).pid


def _link(address: str) -> str:
    return f"host{address.rpartition('.')[2]}"


def _network(pid: int) -> str | None:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return None


def _in_the_network_of(process: int) -> Iterator[int]:
    network = _network(process)
    for found in Path("/proc").glob("[0-9]*"):
        if network is not None and _network(int(found.name)) == network:
            yield int(found.name)


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True, timeout=30)
