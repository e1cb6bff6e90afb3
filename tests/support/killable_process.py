"""A process that can be killed together with everything that it started."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
_TAIL_LINES: Final = 40
_PATIENCE: Final = 10.0
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_DISMISSED: Final = b"."


class SessionGuard:
    """Kills a session once this process is gone, however it ends, unless it was dismissed."""

    def __init__(self, session: int) -> None:
        # When this process ends, the operating system closes the pipe.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(session)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Stops watching the process; may be called again."""
        if self._process.returncode is None:
            self._process.communicate(_DISMISSED)


class KillableProcess:
    """A process in its own session, which its children never leave; a context manager.

    All output is appended to the log. The directory is the process's working and temporary
    directory. Environment variables are added to those of this process.
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
        self._guard: SessionGuard | None = None

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
                self._guard = SessionGuard(self._started.pid)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._started is not None
        return self._started.pid

    def exit_status(self) -> int | None:
        """Returns the exit status, or None while the process runs."""
        return None if self._started is None else self._started.poll()

    def kill(self) -> None:
        """Sends SIGKILL to the process and everything it has started; waits until it is dead."""
        process = self._started
        if process is not None and process.poll() is None:
            # Until wait() returns, the process's id, which is also the session's, can't be reused.
            kill_session(process.pid)
            process.wait(_PATIENCE)
        if self._guard is not None:
            self._guard.dismiss()

    def log_tail(self) -> str:
        """Returns the last lines of the output."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defers signal handlers, so that no exception can lose a process that has just started."""
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _frame: received.append(number))
        for number in _INTERRUPTS
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for interrupt in received:
        signal.raise_signal(interrupt)


def kill_session(session: int) -> None:
    """Sends SIGKILL to all processes of a session."""
    # Two passes, because the first may miss processes being forked at the same time.
    for _ in range(2):
        for pid in session_members(session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def session_members(session: int) -> Iterator[int]:
    """Yields the process ids of a session, including orphans."""
    for pid in _process_ids():
        # Skip a process that has ended, or belongs to another user on systems that refuse access.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session:
                yield pid


def _process_ids() -> list[int]:
    """All processes of the host."""
    if _PROCESSES.is_dir():
        return [int(directory.name) for directory in _PROCESSES.glob("[0-9]*")]
    # On systems other than Linux, use ps, which POSIX requires.
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid="],  # noqa: S607 - as the shell finds it
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(pid) for pid in listed.stdout.split()]


if __name__ == "__main__" and os.read(0, 1) != _DISMISSED:
    kill_session(int(sys.argv[1]))
