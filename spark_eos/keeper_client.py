"""How Spark's processes on the driver's host find a query's keeper, start it, and ask it."""

import os
import stat
import subprocess
import sys
import tempfile
from hashlib import sha256
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, Final, TypeVar

import filelock

from spark_eos.batch_report import BatchReport
from spark_eos.deadline import Again, Deadline
from spark_eos.errors import ConfigurationError, SparkEosError, WriteError
from spark_eos.identity import default_directory
from spark_eos.keeper_calls import Abort, Commit, Plan, Planned
from spark_eos.spark_process import HostProcess, spark_driver

_Answer = TypeVar("_Answer")

# The name of a Unix domain socket may have 107 bytes on Linux, and 103 on macOS (unix(7)).
_LONGEST_PATH: Final = 100
_NO_KEEPER: Final = (FileNotFoundError, ConnectionRefusedError)
# It has ended with a request in hand.
_ENDED: Final = (EOFError, ConnectionResetError, BrokenPipeError)
# Kept, or Python would warn of processes that still run.
_started: list[subprocess.Popen[str]] = []


class KeeperClient:
    """Asks the keeper of one query of the driver that this process works for.

    Only this user can reach the keeper: it listens on a Unix domain socket in a directory that is
    the user's own. Settings, secrets among them, travel over that socket alone.

    Args:
        group_id: the query's consumer group.
        checkpoint_location: the query's checkpoint.

    Raises:
        ConfigurationError: there is no directory for the socket.
        SparkEosError: the driver has ended.
    """

    def __init__(self, group_id: str, checkpoint_location: str) -> None:
        self._group_id = group_id
        self._driver = spark_driver()
        text = "\n".join([str(self._driver), group_id, checkpoint_location])
        self._path = _directory() / f"{sha256(text.encode()).hexdigest()[:16]}.sock"

    def plan(self, request: Plan, idle_seconds: float) -> Planned:
        """The plan of the batch that Spark has begun, from a keeper that is started if need be.

        Args:
            request: what to plan.
            idle_seconds: how long a keeper waits for another batch.

        Raises:
            SparkEosError: the batch can't be written.
        """

        def attempt() -> Planned:
            try:
                return self._ask(request, Planned)
            except _NO_KEEPER as error:
                self._start(idle_seconds)
                raise Again("it ends as soon as it is started") from error
            except _ENDED as error:
                raise Again("it ended while it was asked") from error

        deadline = Deadline(request.settings.connect_timeout, "connect_timeout")
        what = f"asking the process that keeps the members of group {self._group_id!r}"
        return deadline.attempts(what)(attempt)

    def commit(self, request: Commit) -> BatchReport:
        """Ends a batch whose tasks have succeeded.

        Raises:
            SparkEosError: it is not written; what was committed of it is committed once.
        """
        try:
            return self._ask(request, BatchReport)
        except (*_NO_KEEPER, *_ENDED) as error:
            raise WriteError(
                f"batch {request.batch_id} of group {self._group_id!r}: the process that keeps the "
                "group's members has ended while the batch was written. Start the query again, "
                "and it goes on exactly once"
            ) from error

    def abort(self) -> None:
        """Lets the members leave, if there is still somebody who keeps them."""
        try:
            self._ask(Abort(), type(None))
        except (*_NO_KEEPER, *_ENDED):
            return

    def _ask(self, request: Plan | Commit | Abort, kind: type[_Answer]) -> _Answer:
        with Client(str(self._path), "AF_UNIX") as connection:
            connection.send(request)
            answer: Any = connection.recv()
        if isinstance(answer, SparkEosError):
            raise answer
        if not isinstance(answer, kind):
            raise SparkEosError(f"a keeper has answered with {type(answer).__name__}")
        return answer

    def _start(self, idle_seconds: float) -> None:
        # Of two that start at a time, the second finds the first one's keeper.
        with filelock.FileLock(self._path.parent / "lock"):
            try:
                Client(str(self._path), "AF_UNIX").close()
            except _NO_KEEPER:
                # What a keeper that was killed has left.
                self._path.unlink(missing_ok=True)
                _started.append(_keeper(self._path, self._driver, idle_seconds, self._group_id))


def _keeper(
    path: Path, driver: HostProcess, idle_seconds: float, group_id: str
) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "spark_eos.keeper",
            str(path),
            str(driver.pid),
            driver.started,
            str(idle_seconds),
            group_id,  # for who looks at the list of processes
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        # Where modules come from, --py-files and a session's artifacts included.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        # It outlives the worker, which is ended by signals to its process group.
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101 - as asked for
    with process.stdout as output:
        output.readline()
    return process


def _directory() -> Path:
    name = Path(default_directory().name, "keepers")
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - checked below
        directory = base / name
        if len(os.fsencode(directory)) + len("/0123456789abcdef.sock") <= _LONGEST_PATH:
            break
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"the directory {directory}, for a socket, can't be made: {error}; TMPDIR names "
            "another place for it"
        ) from error
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    if not private or found.st_uid != os.geteuid():
        raise ConfigurationError(
            f"{directory} must be a directory that only this user can enter: remove it, or let "
            "TMPDIR name another place"
        )
    return directory
