"""A process that may be killed, with all that it has started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

_TAIL_LINES: Final = 40
_PATIENCE: Final = 10.0
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class KillableProcess:
    """A process in a session of its own, which nothing that it starts leaves.

    A context manager: started by its beginning and killed at its end.

    Args:
        command: The program and its arguments.
        log: File to which all output is appended.
        directory: Its working and temporary directory.
        environment: Variables on top of this process's.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        directory: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._command = command
        self._log = log
        self._directory = directory
        self._environment = {**os.environ, "TMPDIR": str(directory), **environment}
        self._started: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "KillableProcess":
        try:
            with self._log.open("ab") as output, _interrupts_deferred():
                self._started = subprocess.Popen(
                    self._command,
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=self._environment,
                )
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kills it, if it still lives."""
        self.kill()

    def exit_status(self) -> int | None:
        """The exit status, or None while it runs."""
        return None if self._started is None else self._started.poll()

    def kill(self) -> None:
        """SIGKILL for the process and everything it has started; returns when it is dead."""
        process = self._started
        if process is not None and process.poll() is None:
            # The session's id is the process's until it is waited for, so nobody else is hit.
            # Looked through twice: the first pass may miss what is being forked meanwhile.
            for _ in range(2):
                for pid in (process.pid, *session_members(process.pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait(_PATIENCE)

    def log_tail(self) -> str:
        """The last lines of its output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Lets no exception of a signal's handler come between a process's start and our knowing it."""
    received: list[tuple[int, FrameType | None]] = []
    handlers = {
        number: signal.signal(number, lambda *arguments: received.append(arguments))
        for number in _INTERRUPTS
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for received_number, frame in received:
        interrupt = handlers[signal.Signals(received_number)]
        if callable(interrupt):
            interrupt(received_number, frame)


def session_members(session: int) -> Iterator[int]:
    """Process ids of a session; those whose parents have died are among them."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            stat = (directory / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        # After the name in parentheses: state, parent, process group, session.
        if int(stat.rpartition(")")[2].split()[3]) == session:
            yield int(directory.name)
