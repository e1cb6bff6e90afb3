"""The JVM that runs a server, and the guard that cleans up when the server's owner is gone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from spark_eos.testing import guard

_DISMISSAL: Final = 10.0
"""Seconds within which a guard ends by itself."""


class Guard:
    """Kills a server and deletes its directory when this process ends, even by SIGKILL."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(directory), str(os.getpid())],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, pid: int) -> None:
        """Set the server's current process id; ``guard.NOTHING`` means none."""
        # If the guard has been killed, continue without it.
        with contextlib.suppress(BrokenPipeError):
            print(pid, file=self._process.stdin, flush=True)

    def dismiss(self) -> None:
        """End the guard; nothing is left to remove."""
        self.watch(guard.DISMISSED)
        try:
            self._process.communicate(timeout=_DISMISSAL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ServerProcess:
    """A running JVM, in its own session so that Ctrl-C reaches only its owner."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        log: Path,
        guard: Guard,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._guard = guard
        self._paused = False
        with log.open("ab") as output:
            self._jvm = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._guard.watch(self._jvm.pid)
        except BaseException:
            self._jvm.kill()
            self._jvm.wait()
            raise

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._jvm.pid

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the JVM runs."""
        return self._jvm.poll()

    def pause(self) -> None:
        """Freeze the JVM with SIGSTOP; return once all of its threads have stopped."""
        if self._paused:  # the system reports a stop only once
            return
        self._jvm.send_signal(signal.SIGSTOP)
        _pid, status = os.waitpid(self._jvm.pid, os.WUNTRACED)
        self._paused = os.WIFSTOPPED(status)
        if not self._paused:  # the JVM has ended in the meantime
            self._jvm.returncode = os.waitstatus_to_exitcode(status)

    def resume(self) -> None:
        """Resume a paused JVM with SIGCONT."""
        self._jvm.send_signal(signal.SIGCONT)
        self._paused = False

    def stop(self, grace: float) -> None:
        """End the JVM with SIGTERM, and with SIGKILL after `grace` seconds."""
        if self._jvm.poll() is None:
            self._jvm.terminate()
            self._jvm.send_signal(signal.SIGCONT)  # a paused JVM would not receive SIGTERM
            try:
                self._jvm.wait(grace)
            except subprocess.TimeoutExpired:
                self._jvm.kill()
        self._reap()

    def kill(self) -> None:
        """End the JVM with SIGKILL."""
        self._jvm.kill()
        self._reap()

    def _reap(self) -> None:
        self._jvm.wait()
        self._guard.watch(guard.NOTHING)
