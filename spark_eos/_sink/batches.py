"""Assigns a sink's batches to runs, and ends runs, in the process that runs the batches."""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._batch_report import BatchReport
from spark_eos._checks.start import Start
from spark_eos._delivery.base import Delivery, SinkQuery
from spark_eos._delivery.choice import delivery_of_run
from spark_eos._delivery.renewal import end_renewal, renew_hourly
from spark_eos._exactly_once.batch import Run
from spark_eos._exactly_once.delivery import Batch
from spark_eos._exactly_once.offsets import GroupOffsets
from spark_eos._pyspark_internals import is_connect
from spark_eos._sink.failures import Failures, note_run
from spark_eos._sink.start_checks import StartChecks
from spark_eos._spark.classic import ClassicRuntime
from spark_eos._spark.connect import ConnectRuntime
from spark_eos._spark.failed_job import expressions_judged
from spark_eos._spark.final_steps import NO_STEPS, FinalSteps
from spark_eos._spark.names import with_known_names
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import CheckpointError, SparkEosError, UnsupportedPipelineError
from spark_eos.observability.on_batch import OnBatch, announce, announce_query

logger = logging.getLogger(__name__)


# The sinks of queries that this process has started, by the ids of the queries' runs.
_SINKS_BY_RUN: Final[WeakValueDictionary[str, "SinkBatches"]] = WeakValueDictionary()


def why_failed(query: StreamingQuery) -> SparkEosError | None:
    """Return why Spark has ended a query; None if that is not known."""
    sink = _SINKS_BY_RUN.get(str(query.runId))
    return None if sink is None else sink.why_failed()


class SinkRun:
    """Writes the batches of one run, until one fails or the query stops."""

    def __init__(
        self,
        query: SinkQuery,
        delivery: type[Delivery],
        runtime: QueryRuntime,
        start: Start,
        begun_before: int | None,
        why: str,
        sink: "SinkBatches",
    ) -> None:
        self._runtime = runtime
        self._sink = sink
        self._group_id = query.settings.group_id

        def delivery_of(offsets: GroupOffsets) -> Delivery:
            return delivery.of_run(query, runtime, start, offsets, why)

        self._run = Run(
            runtime.run_id,
            start,
            query.settings,
            delivery_of,
            watch=self._is_active,
            begun_before=begun_before,
        )
        runtime.end_with(self._run)
        self._last_batch = -1
        self.ended = False

    def _is_active(self) -> bool:
        """See `QueryRuntime.active`; logs why the query has ended between two batches."""
        if self._runtime.active():
            return True
        if not self.ended:
            self._sink.log_failure()
        return False

    def holds(self, frame: DataFrame) -> bool:
        return not self.ended and self._runtime.hold(frame)

    def begin(self, batch_id: int) -> None:
        if batch_id <= self._last_batch:
            raise UnsupportedPipelineError(
                f"the sink was called a second time for batch {batch_id}: the first call "
                "commits the batch's offsets, and these rows are not written. Call it once; to "
                "make several rows of one record, use one select with "
                "explode(array(struct(...), struct(...)))"
            )
        self._last_batch = batch_id

    def write(self, frame: DataFrame, batch_id: int, relation: str | None) -> BatchReport:
        """Write one micro-batch; if that fails, the run ends. See `QueryRuntime.batch`."""
        runtime = self._runtime
        try:
            with runtime.batch(relation), self._explained():
                batch = Batch(batch_id, frame, runtime.offset_log)
                with expressions_judged(batch, self._group_id):
                    return self._run.write(batch)
        except BaseException as error:
            # Spark ends the query; the next run takes the member over or joins again.
            stopped = runtime.stopped(error)
            task_grace_s = runtime.task_kill_grace_s if stopped is not None else 0.0
            self.leave(task_grace_s, background=runtime.stop_waits)
            if stopped is not None:
                logger.info("the query was stopped in batch %d", batch_id, exc_info=error)
                raise stopped from None
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise the root cause instead, if another error explains the failure."""
        try:
            yield
        except Exception as error:
            # A CheckpointError may be due to a newer run, which removes this run's staged files.
            # Our other errors name their cause.
            known = isinstance(error, SparkEosError) and not isinstance(error, CheckpointError)
            if known or self._runtime.stopped(error) is not None:
                raise
            why: SparkEosError | None = self._run.newer_run()
            if not isinstance(error, SparkEosError):
                why = why or self._runtime.why_failed(error) or self._sink.why_failed()
            if why is not None:
                raise why from error
            raise

    def abandon(self) -> None:
        """End the run without leaving the group, so that a newer run can take over its member."""
        if not self.ended:
            self.ended = True
            self._run.abandon()

    def leave(self, task_kill_grace_s: float = 0.0, *, background: bool = False) -> None:
        """Make the run's member leave the group, unless the run has ended. See `Run.leave`."""
        if not self.ended:
            self.ended = True
            self._run.leave(task_kill_grace_s, background=background)


class SinkBatches:
    """The function for foreachBatch; Spark Connect copies it to the process that runs batches."""

    def __init__(self, settings: WriterSettings, observers: Sequence[OnBatch]) -> None:
        self._settings = settings
        self._observers = observers
        self.start = Start(settings)
        self.failures = Failures()
        # The query as `sink.write` has checked it.
        self.query: SinkQuery | None = None
        self._spark: SparkSession | None = None
        self._started: StreamingQuery | None = None
        self._checks: StartChecks | None = None
        self._turn = threading.Lock()
        self._run: SinkRun | None = None
        # The last batch that was begun before the next run begins; None if unknown, -1 if none.
        self._begun_before: int | None = None
        self._relation: str | None = None
        self._written = -1

    # The query --------------------------------------------------------------------------------

    def prepare(self, query: SinkQuery, spark: SparkSession, begun: int | None) -> None:
        """Set the query that starts next, and the last batch that the checkpoint has begun."""
        self.query, self._spark = query, spark
        self._begun_before = -1 if begun is None else begun

    def begin_start(self) -> Failures:
        """Refuse a second query while one is active; return an empty record of failures."""
        # With the same checkpoint, Spark would take the second query for a new run of the first
        # query, and stop the first.
        query = self._started
        if query is not None and _is_active(query):
            raise UnsupportedPipelineError(
                f"the sink's query {query.id} is active, and a sink serves one query: "
                "stop it first, or give the other query a separate sink, with its own "
                "group_id and checkpoint_location"
            )
        self.failures = Failures()
        self._written = -1
        return self.failures

    def note_started(self, query: SinkQuery, started: StreamingQuery, checks: StartChecks) -> None:
        self._started, self._checks = started, checks
        note_run(str(started.runId), self.failures)
        _SINKS_BY_RUN[str(started.runId)] = self
        announce_query(started, query.settings.group_id, self._observers)
        # Another sink may have read, or none.
        renew_hourly(self._settings)

    def why_failed(self) -> SparkEosError | None:
        """Return why Spark has ended the query, in the process that started it."""
        return None if self._checks is None else self._checks.why_failed()

    def log_failure(self) -> None:
        """Log why the query has failed, if Spark's own error does not say so."""
        if self._started is None or _exception(self._started) is None:
            return
        if (why := self.why_failed()) is not None:
            group = self._settings.group_id
            logger.error("group %s: the query has failed: %s: %s", group, type(why).__name__, why)

    def begin_remotely(self) -> None:
        """Prepare for the query's first batch in its own process on Spark Connect."""
        renew_hourly(self._settings)

    # One batch --------------------------------------------------------------------------------

    def note_relation(self, relation: str) -> None:
        """Note the server's id of the next batch; called before each batch on Spark Connect."""
        self._relation = relation

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.write(frame, batch_id)

    def write(self, frame: DataFrame, batch_id: int, *, final_steps: FinalSteps = NO_STEPS) -> None:
        """Write one batch; ``final_steps`` lead from the frame to the rows."""
        frame = with_known_names(frame)
        # A user's function may call the sink in two threads.
        with self._turn:
            run = self._run
            if run is None or not run.holds(frame):
                run = self._start_run(frame, batch_id, final_steps)
            run.begin(batch_id)
        # Tells a later run of this sink that this batch was already begun.
        self._begun_before = batch_id
        report = run.write(frame, batch_id, self._relation)
        self._written = batch_id
        announce(report, self._observers)

    def check_written(self, batch_id: int) -> None:
        if self._written != batch_id:
            raise UnsupportedPipelineError(
                f"the function for foreachBatch has returned, and batch {batch_id} is not written: "
                "the function has not called the sink, or has caught its error. Call the sink once "
                f"in each batch, even if it is empty; the next start writes batch {batch_id}"
            )

    def _start_run(self, frame: DataFrame, batch_id: int, final_steps: FinalSteps) -> SinkRun:
        query = self.query
        if query is None:
            raise UnsupportedPipelineError(
                "start the query from sink.write(...), which checks its plan; set a function of "
                "your own with sink.write(...).foreachBatch(function). If you did, the function "
                "has found another sink under the name of yours, such as one that a notebook's "
                "cell has created since: start the query again"
            )
        query = replace(query, final_steps=final_steps)
        with self.start as start:
            delivery, why, runtime = self._chosen(query, frame, batch_id, start)
        if self._run is not None:
            self._run.abandon()
            self._run = None
        with contextlib.ExitStack() as if_it_fails:
            start = self.start.handed_over()
            if_it_fails.callback(start.close)
            self._run = SinkRun(query, delivery, runtime, start, self._begun_before, why, self)
            if_it_fails.pop_all()
        return self._run

    def _chosen(
        self, query: SinkQuery, frame: DataFrame, batch_id: int, start: Start
    ) -> tuple[type[Delivery], str, QueryRuntime]:
        """Return the delivery, its reason, and the runtime of a run that begins with this batch."""
        spark, signature = self._spark, self.failures.signature
        runtime: QueryRuntime
        if is_connect(frame):
            session = spark or frame.sparkSession
            runtime = ConnectRuntime(query.location, session, self._relation, signature)
        else:
            assert spark is not None  # noqa: S101 - the query was started in this process
            check_sources = query.delivery.check_sources
            runtime = ClassicRuntime(frame, query.location, spark, check_sources, signature)

        def check_first() -> None:
            runtime.check_batch(frame, frame, runtime.offset_log.batch_range(batch_id))

        marker = runtime.offset_log.markers.read()
        delivery, why = delivery_of_run(query, marker, batch_id, start, check_first)
        if runtime.asynchronous:
            delivery.check_asynchronous_progress()
        # A user's function may have changed the columns or the options since `write`.
        delivery.check_columns(query.final_steps.schema(frame.schema), query.settings.topic)
        delivery.check_losses_seen(query)
        return delivery, why, runtime

    def close(self) -> None:
        """End the run, and close the connections of a start that led to no batch."""
        end_renewal(self._settings)
        self.start.close()
        run, self._run = self._run, None
        if run is not None:
            run.leave()

    def __getstate__(self) -> dict[str, Any]:
        # Spark Connect pickles this object for the process that runs the batches; a run exists only
        # there. A session is pickled by name, and becomes that process's active session.
        state = {**self.__dict__, "_run": None, "_started": None, "_checks": None}
        del state["_turn"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=threading.Lock())


def _exception(query: StreamingQuery) -> Exception | None:
    try:
        return query.exception()
    except Exception:  # noqa: BLE001 - if Spark has ended, so has the query
        return None


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except Exception:  # noqa: BLE001 - if Spark has ended, so has the query
        return False
