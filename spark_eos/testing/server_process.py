"""The JVM that runs a server, and the guard that ends it when its owner is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_eos.testing import guard


class ServerProcess:
    """A running JVM, in its own session so that Ctrl-C reaches only its owner."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
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
            # Kills the JVM and removes its directory if this process dies without doing so, even by
            # SIGKILL.
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(self._jvm.pid), str(directory)],
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
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

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the JVM, if it still runs."""
        self._jvm.send_signal(number)

    def pause(self) -> None:
        """Freeze the JVM with SIGSTOP; return once all of its threads have stopped."""
        self._jvm.send_signal(signal.SIGSTOP)
        _pid, status = os.waitpid(self._jvm.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):  # it has ended in the meantime
            self._jvm.returncode = os.waitstatus_to_exitcode(status)

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
        if self._guard.poll() is None:
            self._guard.communicate(guard.DISMISSED)
