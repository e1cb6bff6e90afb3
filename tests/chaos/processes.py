"""Finds, signals and ends a query's processes, and reads their output and reports."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from support.killable_process import SessionGuard, session_members

DRIVER_VARIABLE = "SPARK_EOS_CHAOS_DRIVER"
"""Environment variable with the driver's pid, for everything that YARN starts for it."""


def send(pids: list[int], number: signal.Signals) -> None:
    """Sends a signal to each process that still runs."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def children(pid: int) -> list[int]:
    """All descendants of a process, oldest first, and its processes in YARN's containers."""
    parents: dict[int, int] = {}
    in_containers = set()
    mark = f"{DRIVER_VARIABLE}={pid}".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (directory / "stat").read_text(errors="replace")
            parents[int(directory.name)] = int(stat.rpartition(")")[2].split()[1])
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                in_containers.add(int(directory.name))
    found = [pid]
    for candidate in found:
        found += sorted(child for child, parent in parents.items() if parent == candidate)
    return found[1:] + sorted(in_containers - set(found))


def command(pid: int) -> str:
    """A process's command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def jvm_of(driver: int) -> list[int]:
    return [p for p in children(driver) if "SparkSubmit" in command(p)][:1]


def executors_of(driver: int) -> list[int]:
    """JVMs of executors, if they have their own processes."""
    found = {p: command(p) for p in children(driver)}
    # Exclude the shells with which YARN starts them.
    return [
        p
        for p, words in found.items()
        if "CoarseGrainedExecutorBackend" in words and not words.startswith("/bin/bash")
    ]


def holders_of(driver: int) -> list[int]:
    """Processes that hold the group's members instead of the driver: Connect's sinks."""
    return [p for p in children(driver) if "foreach_batch_worker" in command(p)]


def workers_of(driver: int) -> list[int]:
    """Python workers: children of the daemon that Spark forks them from."""
    daemons = [p for p in children(driver) if "pyspark.daemon" in command(p)]
    return [p for p in daemons if any(p in children(d) for d in daemons if d != p)]


class Driver:
    """A driver with its JVM, workers and executors, and its log and reports."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._guard = SessionGuard(process.pid)
        self.pid = process.pid
        self.log = log

    def text(self) -> str:
        """The output so far."""
        return self.log.read_text(errors="replace")

    def reports(self) -> int:
        """The number of reported batches, from a file, since another process may report them."""
        return len(reports_of(self.log.with_suffix(".reports")))

    def queries(self) -> list[float]:
        """The times at which the driver started queries, by the monotonic clock."""
        lines = self.text().splitlines()
        return [float(line.split()[1]) for line in lines if line.startswith("STARTED ")]

    def exit_status(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Sends SIGKILL to the driver, its JVM and their children; returns when all have ended."""
        # Workers first, so that none can end its transaction. Two passes, because the first pass
        # may miss processes that are being forked.
        for _ in range(2):
            driver = [self.pid] if self.exit_status() is None else []
            members = [*reversed(children(self.pid)), *driver, *session_members(self.pid)]
            send(members, signal.SIGKILL)
        self._process.wait(20)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            left = [*children(self.pid), *session_members(self.pid)]
            if not any(map(command, left)):
                break
            send(left, signal.SIGKILL)  # Containers that YARN was about to start.
            time.sleep(0.01)
        self._guard.dismiss()


def add_report(file: Path, report: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps(report) + "\n")


def reports_of(file: Path) -> list[dict[str, Any]]:
    """All complete reports so far."""
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]
