"""The keeper: the process, on the driver's host, that holds a data source query's membership.

Spark plans, writes and commits the batches of a Python data source in processes of their own,
none of which lives long. What must outlive them, a `QueryRun` with its members and heartbeats,
lives here. The keeper ends when the query does: with Spark's driver, when a batch has failed or
the query was stopped in one, or when for a while nothing has been planned or written.
"""

import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Final

from spark_eos.batch.batch_report import BatchReport
from spark_eos.batch.plan import BatchPlan, BatchRange, Partitions
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
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
    QueryStoppedError,
    SparkEosError,
    UnsupportedPipelineError,
    WriteError,
)
from spark_eos.host.driver_process import HostProcess
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline

logger = logging.getLogger(__name__)

# Seconds for which tasks may go on after the query was stopped.
_TASKS_OUTLIVE_STOP: Final = 5.0

# How often the keeper looks whether it is still wanted, in seconds.
_PULSE: Final = 1.0
# So often in a row must no transaction be open: between two of them none is.
_QUIET_PULSES: Final = 3
# A process that connects has its request at hand, and one that has asked waits for the answer.
_MESSAGE_SECONDS: Final = 10.0
# One job, and its result; a second one is refused in words of our own.
_ROUNDS: Final = 2


class InFlightBatch:
    """A batch that is planned and whose job Spark runs meanwhile.

    Args:
        run: the query's run.
        batch_id: Spark's number of the batch.
    """

    def __init__(self, run: QueryRun, batch_id: int) -> None:
        self.batch_id = batch_id
        self._run = run
        self._plan: Future[BatchPlan] = Future()
        self._outcome: Future[JobOutcome] = Future()
        self._report: Future[BatchReport] = Future()
        threading.Thread(target=self._process, name=f"batch-{batch_id}", daemon=True).start()

    def _process(self) -> None:
        try:
            self._report.set_result(self._run.process(self.batch_id, self._job))
        except BaseException as error:  # noqa: BLE001 - raised where the report is waited for
            self._report.set_exception(error)

    def _job(
        self,
        settings: WriterSettings,
        batch: BatchRange,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        if only is None:
            self._plan.set_result(batch_plan)
            return self._outcome.result()
        (topic, partition), *_ = only
        raise WriteError(
            f"batch {batch.batch_id} of group {settings.group_id!r}: {len(only)} source partitions "
            f"are not written, the first is {topic}-{partition}: {self._outcome.result().reason}. "
            "A data source can't write them in a further job; start the query again, and it goes "
            "on exactly once"
        )

    def plan(self) -> BatchPlan:
        """Waits for the plan.

        Raises:
            SparkEosError: the batch can't be written.
        """
        either: list[Future[Any]] = [self._plan, self._report]
        wait(either, return_when=FIRST_COMPLETED)
        if not self._plan.done():
            self._report.result()
        return self._plan.result()

    def settle(self, outcome: JobOutcome) -> BatchReport:
        """Ends the batch by what its tasks have reported.

        Raises:
            SparkEosError: it is not written; what was committed of it is committed once.
        """
        self._outcome.set_result(outcome)
        return self._report.result()

    def give_up(self) -> None:
        """Ends the batch without knowing what became of its tasks."""
        if not self._outcome.done():
            self._outcome.set_exception(QueryStoppedError("the query was stopped in a batch"))
        wait([self._report])


class Keeper:
    """One query's run from batch to batch; every request is answered before the next is read.

    A run goes on only from a batch that was committed to the one that follows. In any other case
    a new one fences whatever may still write.

    Args:
        driver: Spark's driver, without which the members leave.

    Attributes:
        leaving: whether members are leaving, which is not to be torn off half-way.
    """

    def __init__(self, driver: HostProcess) -> None:
        self._driver = driver
        self._run: QueryRun | None = None
        self._of: tuple[Plan, str] | None = None
        self._in_flight: InFlightBatch | None = None
        self._last: BatchReport | None = None
        self.leaving = False

    def works(self) -> bool:
        """Whether there are signs that the batch in hand is being written."""
        if self._in_flight is None or self._run is None:
            return False
        try:
            return self._run.writes()
        except SparkEosError as error:
            logger.warning("whether batch %d is written: %s", self._in_flight.batch_id, error)
            return True

    def answer(self, request: object) -> Planned | BatchReport | Ended:
        """Does what is asked.

        Raises:
            SparkEosError: it can't be done, and the run has ended by it.
        """
        if isinstance(request, Plan):
            return self._plan(request)
        if isinstance(request, Commit):
            return self._commit(request)
        if isinstance(request, Abort):
            return Ended()
        raise SparkEosError(f"a keeper is not asked for {type(request).__name__}")

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
            # Spark may ask for a commit more than once.
            return self._last
        if (
            self._run is None
            or self._in_flight is None
            or self._in_flight.batch_id != request.batch_id
        ):
            planned = "none" if self._in_flight is None else self._in_flight.batch_id
            raise WriteError(
                f"batch {request.batch_id} is to be committed, and {planned} is planned: start the "
                "query again, and it goes on exactly once"
            )
        self._run.run_id = request.query_run
        self._last = self._in_flight.settle(request.outcome)
        self._in_flight = None
        return self._last

    def close(self) -> None:
        """Ends the run: its members leave the group, so whoever still writes is refused."""
        self.leaving = True
        run, self._run = self._run, None
        in_hand, self._in_flight = self._in_flight, None
        self._last = None
        try:
            if in_hand is not None:
                in_hand.give_up()
            if run is not None:
                # Spark kills tasks of a stopped query only after spark.python.task.killTimeout.
                run.leave(_TASKS_OUTLIVE_STOP if in_hand is not None else 0.0, aside=True)
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
            "the rows of a source partition to stay in one task in offset order; shuffle in a "
            "query of its own, to a topic in between"
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
    """Answers requests until the keeper is not wanted any more.

    Args:
        listener: a Unix domain socket that listens.
        path: its name, which is gone when this returns.
        keeper: who answers.
        driver: the keeper ends with it.
        idle_seconds: and when so long nobody has asked for anything and nothing is written: Spark
            does not always tell that a query was stopped.
        ending: the keeper ends as well when this is set.
    """
    listener.settimeout(_PULSE)
    until, quiet = time.monotonic() + idle_seconds, 0
    with contextlib.ExitStack() as at_end:
        at_end.callback(keeper.close)
        # Whoever plans next starts a keeper of its own, from here on.
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
    """Answers one request; whether the keeper goes on."""
    try:
        peer = Peer(accepted)
        request = from_plain(peer.receive(Deadline(_MESSAGE_SECONDS, "")))
    except EOFError:
        return True
    except (OSError, PeerError, PlainError) as error:
        logger.warning("a request is not answered: %r", error)
        return True
    except SparkEosError as error:
        return _answered(peer, error)
    answer: Planned | BatchReport | Ended | SparkEosError
    try:
        answer, goes_on = keeper.answer(request), not isinstance(request, Abort)
    except Exception as error:  # noqa: BLE001 - told to who asked
        answer, goes_on = _told(error), False
    if not goes_on:
        # Before the answer: when Spark's process has it, the members have left.
        at_end.close()
    return _answered(peer, answer) and goes_on


def _answered(peer: Peer, answer: Planned | BatchReport | Ended | SparkEosError) -> bool:
    try:
        peer.send(to_plain(answer), Deadline(_MESSAGE_SECONDS, ""))
    except OSError:
        # The query was stopped while it waited.
        return False
    return True


def _told(error: Exception) -> SparkEosError:
    if isinstance(error, SparkEosError):
        return error
    logger.error("the keeper has failed", exc_info=error)
    return SparkEosError(f"{type(error).__name__}: {error}")


def main(path: str, pid: str, started: str, idle_seconds: str) -> None:
    """Runs a keeper; once it can be reached, it prints a line and no more.

    Args:
        path: where to listen.
        pid: process id of Spark's driver.
        started: when that process started.
        idle_seconds: how long to wait for the next batch.
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
        print("ready", flush=True)  # noqa: T201 - to who has started it
        serve(listener, Path(path), keeper, driver, float(idle_seconds), ending)


if __name__ == "__main__":
    main(*sys.argv[1:5])
