"""CPU time and peak memory of the processes involved, by role."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
from peak import peak_mib


@dataclass
class Usage:
    """Resources used by the processes.

    Attributes:
        cpu_seconds: CPU time by role: ``jvm``, ``workers``, ``broker`` and ``driver`` (its Python).
        peak_mib: Peak resident memory, since its start, of the largest process of each role.
    """

    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)


def parts(broker: int) -> Iterator[tuple[str, psutil.Process]]:
    """Yields the processes involved, each with its role."""
    this = psutil.Process()
    yield "driver", this
    yield "broker", psutil.Process(broker)
    for process in this.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if any("SparkSubmit" in part for part in command):
                yield "jvm", process
            elif "pyspark.daemon" in command:
                yield "workers", process


def usage(broker: int) -> Usage:
    """Returns the resources used so far.

    Args:
        broker: Process id of the broker.
    """
    found = Usage()
    for part, process in parts(broker):
        with contextlib.suppress(psutil.Error, OSError):
            times = process.cpu_times()
            # The CPU time of workers that have ended is in their parent, the daemon.
            ended = times.children_user + times.children_system if part == "workers" else 0.0
            seconds = times.user + times.system + ended
            found.cpu_seconds[part] = found.cpu_seconds.get(part, 0.0) + seconds
            found.peak_mib[part] = max(found.peak_mib.get(part, 0.0), peak_mib(process.pid))
    return found


@contextlib.contextmanager
def used(broker: int) -> Iterator[Usage]:
    """Measures the CPU time of a block, and the peaks at its end."""
    before = usage(broker)
    difference = Usage()
    yield difference
    after = usage(broker)
    difference.peak_mib = after.peak_mib
    spent = {
        part: seconds - before.cpu_seconds.get(part, 0.0)
        for part, seconds in after.cpu_seconds.items()
    }
    # Less than before: a daemon of workers has ended, and taken what they had spent with it.
    difference.cpu_seconds = {part: seconds for part, seconds in spent.items() if seconds >= 0}
