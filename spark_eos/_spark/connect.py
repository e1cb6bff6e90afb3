"""Spark Connect: the sink runs in a process beside the server, one per query run."""

import contextlib
import functools
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, Row, SparkSession

from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._exactly_once.batch import Run
from spark_eos._pyspark_internals import (
    connect_plan,
    messages,
    release_connect_session,
    remote_relations,
)
from spark_eos._spark.narrow_plan import check_batch_plan, check_joins, explained, operators
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.signed_errors import ERRORS_CARRIED, tag_of
from spark_eos._spark.spark_files import own_checkpoint
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import QueryStoppedError, UnsupportedPipelineError

logger = logging.getLogger(__name__)

# Seconds between checks that the server is still running.
_ORPHAN_CHECK: Final = 1.0
_SPLITS: Final = re.compile(r"\bsplits=(?:Some\()?(\d+)")


class _Terminated(BaseException):
    """SIGTERM arrived during a job. Connect's client would retry if this were an Exception."""


class ConnectRuntime(QueryRuntime):
    """Spark Connect: without the JVM, only the offset log has a batch's range."""

    stop_waits = False

    def __init__(
        self, location: str, spark: SparkSession, relation: str | None, signature: str
    ) -> None:
        self.files, query = own_checkpoint(spark, location)
        super().__init__(spark, str(query.id), str(query.runId), signature)
        # The session of the last job: only this session can cancel the job's operation.
        self._session = spark
        self._relation = relation
        self._checked_shape = b""
        self.offset_log = OffsetLog(self.files)
        self._tag = tag_of(signature)
        self._cores = 0
        self._run: Run | None = None
        self._ends_on_signal = False
        self._stop_asked = False
        self._in_batch = False
        self._in_job = False

    def hold(self, frame: DataFrame) -> bool:  # noqa: ARG002 - a process has only one run
        return True

    def active(self) -> bool:
        """See `QueryRuntime.active`; does not ask Spark if SIGTERM reports the end."""
        return self._ends_on_signal or super().active()

    def check_batch(self, frame: DataFrame, job: DataFrame, batch: BatchRange) -> None:  # noqa: ARG002
        """See `QueryRuntime.check_batch`; asks the server only if the plan has changed."""
        # Connect does not show how a cached relation was made, so only the batch itself is
        # accepted.
        if self._relation is None or remote_relations(frame) != [self._relation]:
            raise UnsupportedPipelineError(
                "the batch is not written: its rows are not exactly the micro-batch's own, each "
                "read once (as after a union of two selections, checkpoint or localCheckpoint), so "
                "two tasks may hold rows of one source partition. To make several rows from one "
                "record, use one select: explode(array(struct(...), struct(...))). To use a "
                "function of your own, set it with sink.write(...).foreachBatch(function)"
            )
        shape = _shape(frame)
        if shape != self._checked_shape or _reads_by_name(frame):
            _check_remote_batch(frame)
            self._checked_shape = shape

    def cores(self) -> int:
        # Ask once, when the run's first job begins.
        if not self._cores:
            match = _SPLITS.search(explained(self._session.range(1))["Physical"])
            self._cores = int(match[1]) if match else 1
        return self._cores

    # The end of a batch -----------------------------------------------------------------------

    @contextlib.contextmanager
    def batch(self, relation: str | None) -> Iterator[None]:
        """Delay a stop until the next job or the end of the batch."""
        self._relation = relation
        self._in_batch = True
        try:
            yield
            if self._stop_asked:
                raise QueryStoppedError("the query was stopped while a batch was being written")
        finally:
            self._in_batch = False

    def tasks(self, job: DataFrame) -> int | None:  # noqa: ARG002
        # Connect's client refuses a result with fewer rows than the server sent.
        return None

    def collect(
        self, frame: DataFrame, description: str, *, errors_carried: bool = False
    ) -> list[Row]:
        rows: list[Row] = []
        session = frame.sparkSession
        if errors_carried:
            session.addTag(ERRORS_CARRIED)
        try:
            self.run_job(session, lambda: rows.extend(frame.collect()), description)
        finally:
            if errors_carried:
                session.removeTag(ERRORS_CARRIED)
        return rows

    def run_job(
        self,
        session: SparkSession,
        action: Callable[[], object],
        description: str,  # noqa: ARG002 - Connect has no descriptions
    ) -> None:
        self._session = session
        session.addTag(self._tag)
        self._in_job = True
        try:
            if self._stop_asked:
                raise _Terminated
            action()
        finally:
            self._in_job = False
            session.removeTag(self._tag)

    def observed(self, observation: Observation) -> dict[str, Any]:
        # The metrics came with the job's response.
        return observation.get

    def rows_of_footers(self, path: str) -> int | None:  # noqa: ARG002 - Spark reads the files
        return None

    def another_session(self, session: SparkSession) -> SparkSession:
        # newSession would copy no settings and none of the session's artifacts.
        if callable(clone := getattr(session, "cloneSession", None)):
            cloned: SparkSession = clone()
            return cloned
        raise UnsupportedPipelineError(
            "on Spark Connect, delivery='staged' needs PySpark 4.1 or newer, because it clones the "
            "session: upgrade PySpark, use classic Spark, or write a query that needs no staging"
        )

    def end_session(self, session: SparkSession) -> None:
        release_connect_session(session)

    def stopped(self, error: BaseException) -> QueryStoppedError | None:
        if isinstance(error, QueryStoppedError):
            return error
        if not self._stop_asked:
            return None
        with contextlib.suppress(Exception):
            # The job is an operation of the session, not of the query, so it may still be running:
            # it does not necessarily end when Spark's client gives up.
            self._session.interruptTag(self._tag)
        because = "" if isinstance(error, _Terminated) else f": {error!s:.1000}"
        return QueryStoppedError(f"the query was stopped in the middle of a batch{because}")

    # The end of the run -----------------------------------------------------------------------

    def end_with(self, run: Run) -> None:
        """Make the run end on SIGTERM, or when the interpreter or the server ends."""
        self._run = run
        super().end_with(run)
        ended = functools.partial(run.leave, self.task_kill_grace_s)
        self._ends_on_signal = _ProcessEnd(self._stop, ended).ends_on_signal

    def _stop(self) -> bool:
        """End the run on SIGTERM; return True if the process may end now."""
        if self._stop_asked:
            return False
        self._stop_asked = True
        if self._in_job:
            raise _Terminated
        if self._in_batch:
            return False
        if self._run is not None:
            if self._run.leaving:
                # This thread is already leaving and would wait for itself.
                return False
            self._run.leave()
        return True


def _check_remote_batch(frame: DataFrame) -> None:
    """Refuse a micro-batch of Spark Connect whose plan can't be written exactly once."""
    plans = explained(frame)
    reads = check_batch_plan(operators(plans["Physical"]))
    if reads != 1:
        raise UnsupportedPipelineError(
            f"the batch is not written: its plan reads the micro-batch {reads} times (as a union "
            "of two selections of it does), or reads other rows as well, so two tasks may hold "
            "rows of one source partition. To make several rows from one record, use one select, "
            "explode(array(struct(...), struct(...))), on the batch itself, not on a view or in SQL"
        )
    check_joins(plans["Optimized Logical"], "LogicalRDD")


def _shape(frame: Any) -> bytes:
    """Return a fingerprint of a Connect DataFrame's plan; equal plans have equal fingerprints."""
    relation = connect_plan(frame)
    for part in messages(relation, "Relation"):
        part.common.Clear()
    for part in messages(relation, "CachedRemoteRelation"):
        part.relation_id = ""
    text = relation.SerializeToString(deterministic=True)
    return bytes(text)


def _reads_by_name(frame: Any) -> bool:
    """Return True if a frame reads a name that may stand for other data in the next batch."""
    relation = connect_plan(frame)
    return any(True for name in ("Read", "SQL") for _ in messages(relation, name))


class _ProcessEnd:
    """Ends a query's process on SIGTERM, which stops the query, or when the server ends."""

    # The process runs only the query's foreachBatch function, so it may set a signal handler. When
    # the query ends, the server only sends SIGTERM, which by itself neither unwinds the process
    # nor cancels its job. A server that dies leaves the process behind.

    def __init__(self, stop: Callable[[], bool], orphaned: Callable[[], None]) -> None:
        self._stop = stop
        self._orphaned = orphaned
        self._server = os.getppid()
        self._previous: Any = None
        # The server's foreach_batch_worker calls the sink in the main thread.
        self.ends_on_signal = threading.current_thread() is threading.main_thread()
        if self.ends_on_signal:
            self._previous = signal.signal(signal.SIGTERM, self._terminated)
        threading.Thread(
            target=self._end_with_server, name="spark-eos-orphan-check", daemon=True
        ).start()

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if not self._stop():
            return
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _end_with_server(self) -> None:
        while os.getppid() == self._server:
            time.sleep(_ORPHAN_CHECK)
        logger.error("the Spark Connect server has ended; ending the query's run")
        try:
            self._orphaned()
        finally:
            # On a normal exit, Connect's client would try for minutes to reach the server.
            os._exit(1)
