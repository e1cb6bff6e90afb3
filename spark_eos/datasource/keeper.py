"""The keeper: the process, on the driver's host, that keeps a data source query's membership.

Spark plans, writes and commits the batches of a Python data source in short-lived processes. What
must outlive them, a `QueryRun` with its members and heartbeats, lives here. The keeper ends with
Spark's driver, when a batch fails or the query is stopped in one, or when nothing has been planned
or written for a while.
"""

import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

from spark_eos.batch.batch_report import BatchReport
from spark_eos.datasource.in_flight_batch import InFlightBatch
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
from spark_eos.datasource.keeper_socket import Peer, PeerError
from spark_eos.driver.checkpoint_files import ArrowFiles
from spark_eos.driver.offset_log import OffsetLog
from spark_eos.driver.query_run import QueryRun
from spark_eos.errors import (
    CheckpointError,
    SparkEosError,
    UnsupportedPipelineError,
    WriteError,
)
from spark_eos.host.driver_process import HostProcess
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline

logger = logging.getLogger(__name__)

# Seconds that tasks may keep running after the query was stopped.
_TASKS_OUTLIVE_STOP: Final = 5.0

# Seconds between two checks whether the keeper is still needed.
_PULSE: Final = 1.0
# Consecutive pulses without an open transaction before the keeper ends: a task that is writing
# has none between two transactions.
_QUIET_PULSES: Final = 3
# Seconds to read a request or send an answer: the other end sends and reads without delay.
_MESSAGE_SECONDS: Final = 10.0
# Spark runs one job. The second round exists only to fail with an error of our own.
_ROUNDS: Final = 2


class Keeper:
    """One query's run from batch to batch; answers each request before it reads the next.

    A run continues only from a committed batch to the next one. Otherwise a new run begins, which
    fences whatever may still write.

    Args:
        driver: Spark's driver; when it ends, the members leave.

    Attributes:
        leaving: Whether members are leaving, which must not be interrupted.
    """

    def __init__(self, driver: HostProcess) -> None:
        self._driver = driver
        self._run: QueryRun | None = None
        self._of: tuple[Plan, str] | None = None
        self._in_flight: InFlightBatch | None = None
        self._last: BatchReport | None = None
        self.leaving = False

    def works(self) -> bool:
        """Whether the batch in flight shows signs of being written."""
        if self._in_flight is None or self._run is None:
            return False
        try:
            return self._run.writes()
        except SparkEosError as error:
            batch_id = self._in_flight.batch_id
            logger.warning("can't tell whether batch %d is being written: %s", batch_id, error)
            return True

    def answer(self, request: object) -> Planned | BatchReport | Ended:
        """Does what a request asks for.

        Raises:
            SparkEosError: It failed, and the run is over.
        """
        if isinstance(request, Plan):
            return self._plan(request)
        if isinstance(request, Commit):
            return self._commit(request)
        if isinstance(request, Abort):
            return Ended()
        raise SparkEosError(f"a keeper does not handle {type(request).__name__}")

    def _plan(self, request: Plan) -> Planned:
        files = ArrowFiles(request.checkpoint_location)
        offset_log = OffsetLog(files)
        query_id = _query_id(files, offset_log, request.checkpoint_location)
        batch_id = offset_log.latest()
        follows = self._last is not None and self._last.batch_id + 1 == batch_id
        if not (self._in_flight is None and follows and self._of == (request, query_id)):
            self.close()
        if self._run is None:
            self._run = self._new_run(request, offset_log)
            self._of = (request, query_id)
        self._in_flight = InFlightBatch(self._run, batch_id)
        return Planned(batch_id, query_id, self._in_flight.plan())

    def _new_run(self, request: Plan, offset_log: OffsetLog) -> QueryRun:
        return QueryRun(
            "",
            Wire(request.settings.client),
            request.settings,
            offset_log,
            max_members=request.max_members,
            max_rounds=_ROUNDS,
            group_timeout_ms=request.group_timeout_ms,
            watch=lambda: self._driver.alive,
        )

    def _commit(self, request: Commit) -> BatchReport:
        if self._in_flight is None and self._last and self._last.batch_id == request.batch_id:
            # Spark may commit a batch more than once.
            return self._last
        if (
            self._run is None
            or self._in_flight is None
            or self._in_flight.batch_id != request.batch_id
        ):
            planned = "none" if self._in_flight is None else self._in_flight.batch_id
            raise WriteError(
                f"Spark commits batch {request.batch_id}, but the planned batch is {planned}: "
                "restart the query; it continues exactly once"
            )
        self._run.run_id = request.query_run
        self._last = self._in_flight.settle(request.outcome)
        self._in_flight = None
        return self._last

    def close(self) -> None:
        """Ends the run: its members leave the group, so the broker refuses tasks still writing."""
        self.leaving = True
        run, self._run = self._run, None
        in_flight, self._in_flight = self._in_flight, None
        self._last = None
        try:
            if in_flight is not None:
                in_flight.give_up()
            if run is not None:
                # Spark kills tasks of a stopped query only after spark.python.task.killTimeout.
                run.leave(_TASKS_OUTLIVE_STOP if in_flight is not None else 0.0, aside=True)
        finally:
            self.leaving = False


def _query_id(files: ArrowFiles, offset_log: OffsetLog, location: str) -> str:
    if files.read("metadata") is None:
        raise CheckpointError(
            f"there is no streaming checkpoint at checkpoint_location {location!r} as Python sees "
            "it on the driver's host. Spark looks for a path without a scheme on its default file "
            "system: give the full URI, such as hdfs://namenode/checkpoints/orders or file:///..."
        )
    if files.names("state"):
        raise UnsupportedPipelineError(
            "the query keeps state (its checkpoint has a directory `state`). Exactly-once needs "
            "the rows of a source partition to stay in one task in offset order. Write it with "
            "ExactlyOnceSink, which stages its batches; or shuffle in a separate query, to an "
            "intermediate topic"
        )
    return offset_log.query_id()


def serve(
    listener: socket.socket,
    path: Path,
    keeper: Keeper,
    driver: HostProcess,
    idle_seconds: float,
    ending: threading.Event,
) -> None:
    """Answers requests until the keeper is no longer needed.

    Args:
        listener: A listening Unix domain socket.
        path: The socket's name, removed before this returns.
        keeper: Answers the requests.
        driver: Spark's driver; the keeper ends with it.
        idle_seconds: Seconds without a request, and without rows being written, after which the
            keeper ends: Spark does not always report that a query was stopped.
        ending: The keeper also ends when this is set.
    """
    listener.settimeout(_PULSE)
    until, quiet = time.monotonic() + idle_seconds, 0
    with contextlib.ExitStack() as at_end:
        at_end.callback(keeper.close)
        # From here on, the next process that plans starts a new keeper.
        at_end.callback(listener.close)
        at_end.callback(path.unlink, missing_ok=True)
        while driver.alive and quiet < _QUIET_PULSES and not ending.is_set():
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                if time.monotonic() < until:
                    continue
                if not keeper.works():
                    quiet += 1
                    continue
            else:
                with accepted:
                    if not _serve_one(accepted, keeper, at_end):
                        return
            until, quiet = time.monotonic() + idle_seconds, 0


def _serve_one(accepted: socket.socket, keeper: Keeper, at_end: contextlib.ExitStack) -> bool:
    """Answers one request; returns whether the keeper continues."""
    try:
        peer = Peer(accepted)
        request = from_plain(peer.receive(Deadline(_MESSAGE_SECONDS, "")))
    except EOFError:
        return True
    except (OSError, PeerError, PlainError) as error:
        logger.warning("ignoring an invalid request: %r", error)
        return True
    except SparkEosError as error:
        return _answered(peer, error)
    answer: Planned | BatchReport | Ended | SparkEosError
    try:
        answer, goes_on = keeper.answer(request), not isinstance(request, Abort)
    except Exception as error:  # noqa: BLE001 - sent as the answer
        answer, goes_on = _as_answer(error), False
    if not goes_on:
        # Before the answer, so that the members have left when Spark's process receives it.
        at_end.close()
    return _answered(peer, answer) and goes_on


def _answered(peer: Peer, answer: Planned | BatchReport | Ended | SparkEosError) -> bool:
    try:
        peer.send(to_plain(answer), Deadline(_MESSAGE_SECONDS, ""))
    except OSError:
        # The query was stopped while its process waited.
        return False
    return True


def _as_answer(error: Exception) -> SparkEosError:
    if isinstance(error, SparkEosError):
        return error
    logger.error("the keeper has failed", exc_info=error)
    return SparkEosError(f"{type(error).__name__}: {error}")


def main(path: str, pid: str, started: str, idle_seconds: str) -> None:
    """Runs a keeper, which prints one line as soon as it listens.

    Args:
        path: Where to listen.
        pid: Process id of Spark's driver.
        started: When that process started.
        idle_seconds: How long to wait for the next batch.
    """
    driver = HostProcess(int(pid), started)
    keeper = Keeper(driver)
    ending = threading.Event()

    def terminate(*_: object) -> None:
        again = ending.is_set()
        ending.set()
        if again or not keeper.leaving:
            sys.exit(0)

    signal.signal(signal.SIGTERM, terminate)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)  # noqa: T201 - read by the process that starts a keeper
        serve(listener, Path(path), keeper, driver, float(idle_seconds), ending)


if __name__ == "__main__":
    main(*sys.argv[1:5])
