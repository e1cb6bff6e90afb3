"""One run of a sink's query: which batches belong to it, and how it ends."""

import functools
import logging

from pyspark.sql import DataFrame, SparkSession

from spark_eos._batch.batch_report import BatchReport
from spark_eos._driver.start import Start
from spark_eos._pyspark_internals import is_connect
from spark_eos._run.run import Run
from spark_eos._spark.classic import ClassicRuntime
from spark_eos._spark.columns import check_columns
from spark_eos._spark.connect import ConnectRuntime
from spark_eos._spark.deliveries import delivery_of_run, may_change
from spark_eos._spark.delivery import Delivery, SinkQuery
from spark_eos._spark.failed_job import as_own_error
from spark_eos._spark.flat_source import with_struct
from spark_eos._spark.runtime import QueryRuntime
from spark_eos.errors import CheckpointError, SparkEosError, UnsupportedPipelineError

logger = logging.getLogger(__name__)


class SinkRun:
    """Writes the batches of one run, until one fails or the query stops."""

    def __init__(
        self,
        query: SinkQuery,
        delivery: Delivery,
        runtime: QueryRuntime,
        start: Start,
        prepared_ms: int,
        why: str,
    ) -> None:
        self._runtime = runtime
        progress, self._batches = delivery.create_run(query, runtime)
        self._run = Run(
            runtime.run_id,
            start,
            query.settings,
            progress,
            watch=runtime.active,
            prepared_ms=prepared_ms,
            asynchronous=runtime.asynchronous,
            why=why,
        )
        runtime.end_with(self._run)
        self._last_batch = -1
        self.ended = False

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
        """Writes one micro-batch; if that fails, the run ends. See `QueryRuntime.batch`."""
        runtime = self._runtime
        try:
            with runtime.batch(relation):
                report = self._write(frame, batch_id)
        except BaseException as error:
            # Spark ends the query; the next run takes the members over or joins again.
            stopped = runtime.stopped(error)
            outliving = runtime.task_kill_grace_s if stopped is not None else 0.0
            self.leave(outliving, background=runtime.stop_waits)
            if stopped is not None:
                logger.info("the query was stopped in batch %d", batch_id, exc_info=error)
                raise stopped from None
            raise
        return report

    def _write(self, frame: DataFrame, batch_id: int) -> BatchReport:
        try:
            return self._run.write(self._batches.of(frame, batch_id))
        except Exception as error:
            # A newer run removes what this one has staged. Other errors know their cause.
            known = isinstance(error, SparkEosError) and not isinstance(error, CheckpointError)
            if known or self._runtime.stopped(error) is not None:
                raise
            if (why := self._run.newer_run() or as_own_error(error)) is not None:
                raise why from error
            raise

    def abandon(self) -> None:
        """Ends the run without leaving the group, for a newer run that takes its members over."""
        if not self.ended:
            self.ended = True
            self._run.abandon()

    def leave(self, task_kill_grace_s: float = 0.0, *, background: bool = False) -> None:
        """Ends the run, unless it has ended: its members leave the group. See `Run.leave`."""
        if not self.ended:
            self.ended = True
            self._batches.close()
            self._run.leave(task_kill_grace_s, background=background)


def begin_run(
    query: SinkQuery,
    frame: DataFrame,
    batch_id: int,
    spark: SparkSession | None,
    relation: str | None,
    start: Start,
) -> tuple[Delivery, str, QueryRuntime]:
    """The delivery, why not another, and the runtime of the run that a batch begins."""
    runtime: QueryRuntime
    if is_connect(frame):
        runtime = ConnectRuntime(query.location, spark or frame.sparkSession, relation)
    else:
        assert spark is not None  # noqa: S101 - the query was started in this process
        runtime = ClassicRuntime(frame, query.location, spark, query.delivery.check_sources)

    def check_first() -> None:
        check_columns(with_struct(frame.schema), query.settings.topic)
        runtime.check_batch(frame, frame, runtime.offset_log.batch_range(batch_id))

    marker = runtime.offset_log.marker()
    changes = functools.partial(may_change, query, marker, batch_id, start)
    delivery, why = delivery_of_run(query, marker, check_first, changes)
    if runtime.asynchronous:
        delivery.check_logged()
    # A function of the user's own may have changed either since `write`.
    delivery.check_batch(frame, query.settings.topic)
    delivery.check_losses_seen(query)
    return delivery, why, runtime
