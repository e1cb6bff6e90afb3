"""Measures CPU time and peak memory of the processes involved, by role."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
from peak import peak_mib

# Seconds between two samples of the processes.
_SECONDS = 0.25


@dataclass
class Usage:
    """Resources used by the processes.

    Attributes:
        cpu_seconds: CPU time by role: ``jvm``, ``workers``, ``broker`` and ``driver`` (its Python).
        peak_mib: Peak resident memory of each role's largest process since its start.
    """

    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)
    before: "dict[int, _Found]" = field(default_factory=dict, repr=False)
    broker: int = 0

    def begin(self) -> None:
        """Count CPU time from now on, such as after a query's first batch."""
        self.before = _found(self.broker)


def parts(broker: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the processes involved, each with its role."""
    yield "broker", psutil.Process(broker)
    yield from of_query(psutil.Process())


def of_query(driver: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """Yield a query's processes, each with its role."""
    yield "driver", driver
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if any("SparkSubmit" in part for part in command):
                yield "jvm", process
            elif "pyspark.daemon" in command:
                yield "workers", process


@dataclass(frozen=True)
class _Found:
    role: str
    cpu_seconds: float
    peak_mib: float


def _found(broker: int) -> dict[int, _Found]:
    """Return each process's usage since its start, by process id."""
    found = {}
    for role, process in parts(broker):
        with contextlib.suppress(psutil.Error, OSError):
            times = process.cpu_times()
            found[process.pid] = _Found(role, times.user + times.system, peak_mib(process.pid))
    return found


@contextlib.contextmanager
def used(broker: int) -> Iterator[Usage]:
    """Measure the CPU time of a block, and peak memory at its end.

    Processes are sampled four times a second. Otherwise, the usage of workers that Spark kills with
    a cancelled task would be lost.

    Args:
        broker: Process id of the broker.
    """
    difference = Usage(broker=broker)
    difference.begin()
    latest = difference.before
    ended = threading.Event()

    def look() -> None:
        nonlocal latest
        while not ended.wait(_SECONDS):
            latest = {**latest, **_found(broker)}

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield difference
    finally:
        ended.set()
        looking.join()
    before = difference.before
    for pid, found in {**latest, **_found(broker)}.items():
        spent = found.cpu_seconds - (before[pid].cpu_seconds if pid in before else 0.0)
        difference.cpu_seconds[found.role] = difference.cpu_seconds.get(found.role, 0.0) + spent
        peak = difference.peak_mib.get(found.role, 0.0)
        difference.peak_mib[found.role] = max(peak, found.peak_mib)
