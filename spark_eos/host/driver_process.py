"""The process of Spark's driver, as one of its Python workers finds it, and whether it lives."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from spark_eos.errors import SparkEosError

_PROC = Path("/proc")
_DEAD = "Z"


@dataclass(frozen=True)
class HostProcess:
    """A process of this host; its number alone may be given to another one later.

    Attributes:
        pid: Its process id.
        started: When it started, in the words of the operating system.
    """

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        found = _look_up(self.pid)
        return found is not None and found.started == self.started


@dataclass(frozen=True)
class _Found:
    parent: int
    started: str
    command: str


def _look_up(pid: int) -> _Found | None:
    """What the operating system says of a process; None if it has ended."""
    if not _PROC.joinpath("self").exists():
        return _ask_ps(pid)
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # proc(5): pid (command) state ppid ..., and as the 22nd field the time of its start.
    command, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return None if fields[0] == _DEAD else _Found(int(fields[1]), fields[19], command)


def _ask_ps(pid: int) -> _Found | None:
    asked = ["ps", "-o", "stat=,ppid=,lstart=,comm=", "-p", str(pid)]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    fields = answer.stdout.split(maxsplit=7)
    if len(fields) < 8 or fields[0].startswith(_DEAD):
        return None
    return _Found(int(fields[1]), " ".join(fields[2:7]), os.path.basename(fields[7]))  # noqa: PTH119


def spark_driver() -> HostProcess:
    """The driver's JVM, or the Connect server's: the nearest ancestor that does not run Python.

    Between it and one of its Python workers lies Spark's worker daemon, unless
    ``spark.python.use.daemon`` is false.

    Raises:
        SparkEosError: It has just ended.
    """
    pid = os.getppid()
    while (found := _look_up(pid)) is not None:
        # In a container the driver may be the topmost process there is.
        if "python" not in found.command.lower() or found.parent < 1:
            return HostProcess(pid, found.started)
        pid = found.parent
    raise SparkEosError(f"the process of Spark's driver can't be found: process {pid} has ended")
