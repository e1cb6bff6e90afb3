"""Finding and signalling the processes of a query."""

import contextlib
import os
import signal
from pathlib import Path


def send(pids: list[int], number: signal.Signals) -> None:
    """A signal for each that still lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def children(pid: int) -> list[int]:
    """All descendants of a process, the oldest first."""
    parents: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (directory / "stat").read_text(errors="replace")
            parents[int(directory.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for candidate in found:
        found += sorted(child for child, parent in parents.items() if parent == candidate)
    return found[1:]


def command(pid: int) -> str:
    """A process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def jvm_of(driver: int) -> list[int]:
    return [p for p in children(driver) if "SparkSubmit" in command(p)][:1]


def executors_of(driver: int) -> list[int]:
    """JVMs of executors, where they have processes of their own."""
    return [p for p in children(driver) if "CoarseGrainedExecutorBackend" in command(p)]


def holders_of(driver: int) -> list[int]:
    """Processes that hold the group's members instead of the driver: Connect's sinks."""
    return [p for p in children(driver) if "foreach_batch_worker" in command(p)]


def workers_of(driver: int) -> list[int]:
    """Python workers: children of the daemon that Spark forks them from."""
    daemons = [p for p in children(driver) if "pyspark.daemon" in command(p)]
    return [p for p in daemons if any(p in children(d) for d in daemons if d != p)]
