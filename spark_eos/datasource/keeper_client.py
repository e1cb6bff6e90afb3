"""How Spark's processes on the driver's host find, start and ask a query's keeper."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, TypeVar

import filelock

from spark_eos.batch.batch_report import BatchReport
from spark_eos.datasource.json_values import PlainError
from spark_eos.datasource.keeper_messages import (
    Abort,
    Commit,
    Ended,
    Plan,
    Planned,
    from_plain,
    to_plain,
)
from spark_eos.datasource.keeper_socket import Peer, PeerError, connected
from spark_eos.errors import ConfigurationError, SparkEosError, WriteError
from spark_eos.host.driver_process import HostProcess, spark_driver
from spark_eos.host.private_paths import default_directory, private_directory
from spark_eos.host.python_module import python_module
from spark_eos.kafka.deadline import Deadline, RetriableError

_Answer = TypeVar("_Answer", Planned, BatchReport, Ended)

# A Unix domain socket's name may have 107 bytes on Linux, and 103 on macOS (unix(7)).
_LONGEST_PATH: Final = 100
_NO_KEEPER: Final = (FileNotFoundError, ConnectionRefusedError)
# The keeper ended while it handled a request.
_ENDED: Final = (EOFError, ConnectionResetError, BrokenPipeError)
# Kept, or Python would warn about processes that are still running.
_started: list[subprocess.Popen[bytes]] = []


class KeeperClient:
    """Asks the keeper of one query, on behalf of the driver that this process works for.

    Only this user can reach the keeper: it listens on a Unix domain socket in the user's own
    directories, and each end checks which user owns the other process. Settings, including
    secrets, travel only over that socket.

    Args:
        group_id: The query's consumer group.
        checkpoint_location: The query's checkpoint.
        answer_within: Seconds to wait for an answer; the keeper itself gives up earlier.

    Raises:
        ConfigurationError: No directory can be used for the socket.
        SparkEosError: The driver has ended.
    """

    def __init__(self, group_id: str, checkpoint_location: str, answer_within: float) -> None:
        self._group_id = group_id
        self._answer_within = answer_within
        self._driver = spark_driver()
        text = "\n".join([str(self._driver), group_id, checkpoint_location])
        self._path = _directory() / f"{sha256(text.encode()).hexdigest()[:16]}.sock"

    def plan(self, request: Plan, idle_seconds: float) -> Planned:
        """Plans the batch that Spark has begun; starts a keeper if none is running.

        Args:
            request: What to plan.
            idle_seconds: How long a new keeper waits for another batch.

        Raises:
            SparkEosError: The batch can't be written.
        """
        deadline = Deadline(request.settings.connect_timeout_ms / 1000, "connect_timeout_ms")

        def attempt() -> Planned:
            try:
                return self._ask(request, Planned)
            except _NO_KEEPER as error:
                self._start(idle_seconds, deadline)
                raise RetriableError("it ends as soon as it starts") from error
            except _ENDED as error:
                raise RetriableError("it ended before it answered") from error

        what = f"asking the process that keeps the members of group {self._group_id!r}"
        return deadline.attempts(what)(attempt)

    def commit(self, request: Commit) -> BatchReport:
        """Ends a batch whose tasks have succeeded.

        Raises:
            SparkEosError: Rows are missing; those that were committed are committed once.
        """
        try:
            return self._ask(request, BatchReport)
        except (*_NO_KEEPER, *_ENDED) as error:
            raise WriteError(
                f"batch {request.batch_id} of group {self._group_id!r}: the process that keeps the "
                "group's members ended while the batch was written. Restart the query; it "
                "continues exactly once"
            ) from error

    def abort(self) -> None:
        """Makes the members leave, if a keeper is still running."""
        try:
            self._ask(Abort(), Ended)
        except (*_NO_KEEPER, *_ENDED):
            return

    def _ask(self, request: Plan | Commit | Abort, kind: type[_Answer]) -> _Answer:
        deadline = Deadline(self._answer_within, "group_timeout_ms")
        with self._connected(deadline) as peer:
            try:
                peer.send(to_plain(request), deadline)
                answer = from_plain(peer.receive(deadline))
            except TimeoutError as error:
                raise deadline.exceeded(
                    f"{peer.name}, which keeps the members of group {self._group_id!r}: an answer",
                    "nothing received",
                ) from error
            except PlainError as error:
                raise SparkEosError(f"{peer.name}: {error}") from None
        if isinstance(answer, SparkEosError):
            raise answer
        if not isinstance(answer, kind):
            raise SparkEosError(f"the keeper answered with an unexpected {type(answer).__name__}")
        return answer

    @contextlib.contextmanager
    def _connected(self, deadline: Deadline) -> Iterator[Peer]:
        with contextlib.ExitStack() as at_end:
            try:
                peer = at_end.enter_context(connected(self._path, deadline))
            except PeerError as error:
                raise SparkEosError(
                    f"the socket {self._path} can't be used: {error}. Remove it, or set TMPDIR to "
                    "another directory"
                ) from error
            except (BlockingIOError, TimeoutError) as error:
                raise deadline.exceeded(f"connecting to {self._path}", error) from error
            yield peer

    def _start(self, idle_seconds: float, deadline: Deadline) -> None:
        # If two processes start one at the same time, the second finds the first one's keeper.
        path = self._path.parent / "lock"
        lock = filelock.FileLock(path, mode=0o600, timeout=deadline.remaining())
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise deadline.exceeded(f"the lock {path}", "another process holds it") from error
        try:
            with self._connected(deadline):
                return
        except _NO_KEEPER:
            # A killed keeper leaves its socket behind.
            self._path.unlink(missing_ok=True)
            process = _keeper(self._path, self._driver, idle_seconds, self._group_id, deadline)
            _started.append(process)
        finally:
            lock.release()


def _keeper(
    path: Path, driver: HostProcess, idle_seconds: float, group_id: str, deadline: Deadline
) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        python_module(
            "spark_eos.datasource.keeper",
            str(path),
            str(driver.pid),
            driver.started,
            str(idle_seconds),
            group_id,  # shown in the list of processes
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # The same modules, including --py-files and a session's artifacts.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        # Outlives the worker: Spark ends workers with signals to their process group.
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with process.stdout as output:
        # Read the whole line: Spark runs Python unbuffered, which writes it in two parts.
        line = b"?"
        while line and not line.endswith(b"\n"):
            if not wait([output.fileno()], deadline.remaining()):
                process.kill()
                process.wait()
                raise deadline.exceeded(
                    f"starting spark_eos.datasource.keeper with {sys.executable}", "no output"
                )
            line = os.read(output.fileno(), 100)
    return process


def _directory() -> Path:
    own = default_directory().name
    for base in (Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108 - checked below
        directory = base / own / "keepers"
        if len(os.fsencode(directory)) + len("/0123456789abcdef.sock") <= _LONGEST_PATH:
            break
    try:
        with (
            private_directory(directory.parent) as outer,
            private_directory(Path(directory.name), outer),
        ):
            return directory
    except OSError as error:
        raise ConfigurationError(
            f"the directory {directory}, for a socket, can't be used: {error}; set TMPDIR to "
            "another directory"
        ) from error
