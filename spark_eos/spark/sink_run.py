"""One run of a sink's query: the group's members, its Spark jobs, and where it takes place."""

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from spark_eos.batch.batch_report import BatchReport
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.settings import ClientSettings
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.driver.mirroring import MirroredSource
from spark_eos.driver.query_run import QueryRun
from spark_eos.driver.staging import ProgressPartitions
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.kafka.cluster import cluster_id
from spark_eos.kafka.connection import Wire
from spark_eos.spark.batch_job import BatchJobs
from spark_eos.spark.classic import ClassicRuntime
from spark_eos.spark.connect import ConnectRuntime, is_connect
from spark_eos.spark.runtime import QueryRuntime
from spark_eos.spark.staged_copies import StagedCopies

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunLimits:
    """Limits of a run that tasks need not know.

    Attributes:
        max_members: Maximum number of group members.
        max_rounds: Maximum number of Spark jobs for one batch.
        group_timeout_ms: Milliseconds allowed for each call to the group.
    """

    max_members: int
    max_rounds: int
    group_timeout_ms: int


@dataclass(frozen=True)
class StagingPlace:
    """Where a run's batches are staged.

    Attributes:
        location: The checkpoint's location, as given to Spark.
        progress: The progress partitions.
        reads: Whether ``sink.read`` reads a topic.
    """

    location: str
    progress: ProgressPartitions
    reads: Callable[[str], bool]


class SinkRun:
    """Writes the batches of one run, until one fails or the query stops.

    Args:
        settings: The writer's settings.
        runtime: Where the run takes place.
        limits: The run's limits.
        prepared_ms: When the query was last known to have no batch in progress, in milliseconds
            since the epoch.
        staging: Where the run's batches are staged; None if they are not.
        source: The cluster that the run mirrors, if it does.

    Attributes:
        ended: Whether the run has left the group or was abandoned.
    """

    def __init__(
        self,
        settings: WriterSettings,
        runtime: QueryRuntime,
        limits: RunLimits,
        prepared_ms: int,
        staging: StagingPlace | None = None,
        source: MirroredSource | None = None,
    ) -> None:
        self._runtime = runtime
        letters = settings.dead_letters
        if letters is not None and staging is not None:
            settings = replace(settings, dead_letters=replace(letters, positions=False))
        elif letters is not None and settings.source_client is not None:
            cluster = _cluster_of(settings.source_client, limits.group_timeout_ms)
            settings = replace(settings, dead_letters=replace(letters, cluster=cluster))
        self._copies = (
            None
            if staging is None
            else StagedCopies(
                runtime,
                staging.location,
                staging.progress.topic,
                settings.topic,
                dead_letters=letters is not None,
            )
        )
        self._jobs = BatchJobs(settings.topic, runtime, dead_letters=letters is not None)
        self._query_run = QueryRun(
            runtime.run_id,
            Wire(settings.client),
            settings,
            runtime.offset_log,
            max_members=limits.max_members,
            max_rounds=limits.max_rounds,
            group_timeout_ms=limits.group_timeout_ms,
            watch=runtime.active,
            prepared_ms=prepared_ms,
            progress=None if staging is None else staging.progress,
            reads=None if staging is None else staging.reads,
            source=source,
            asynchronous=runtime.asynchronous,
        )
        runtime.end_with(self._query_run)
        self._last_batch = -1
        self.ended = False

    def holds(self, frame: DataFrame) -> bool:
        """Whether a batch belongs to this run and the run can still write it."""
        return not self.ended and self._runtime.hold(frame)

    def refuse_repeated(self, batch_id: int) -> None:
        """Refuses a batch that this run has written already.

        Raises:
            UnsupportedPipelineError: It has.
        """
        if batch_id <= self._last_batch:
            raise UnsupportedPipelineError(
                f"the sink was called a second time for batch {batch_id}: the first call has "
                "committed the batch's offsets, and these rows are not written. Call it once; to "
                "make several rows of one record, use one select with "
                "explode(array(struct(...), struct(...)))"
            )

    def write(self, frame: DataFrame, batch_id: int, relation: str | None) -> BatchReport:
        """Writes one micro-batch; if that fails, the run ends.

        Args:
            frame: The micro-batch as the sink received it.
            batch_id: Spark's number of the batch.
            relation: On Spark Connect, the server's id of the micro-batch, if known.

        Raises:
            SparkEosError: The batch is not written.
        """
        runtime = self._runtime
        if isinstance(runtime, ConnectRuntime):
            runtime.batch_relation = relation
        try:
            with runtime.batch():
                if self._copies is None:
                    job = functools.partial(self._jobs.run, frame)
                    report = self._query_run.process(batch_id, job)
                else:
                    copies = self._copies.of_batch(frame)
                    job = functools.partial(self._jobs.run_copy, copies)
                    report = self._query_run.process(batch_id, job, copies)
        except BaseException as error:
            # Spark ends the query; the next run takes the members over or joins again.
            stopped = runtime.stopped(error)
            outliving = runtime.tasks_outlive_stop if stopped is not None else 0.0
            self.leave(outliving, aside=runtime.stop_waits)
            if stopped is not None:
                logger.info("the query was stopped in batch %d", batch_id, exc_info=error)
                raise stopped from None
            raise
        self._last_batch = batch_id
        return report

    def abandon(self) -> None:
        """Ends the run without leaving the group, for a newer run that takes its members over."""
        if not self.ended:
            self.ended = True
            self._query_run.abandon()

    def leave(self, tasks_outlive_stop: float = 0.0, *, aside: bool = False) -> None:
        """Ends the run: its members leave the group. Does nothing if the run has ended.

        Args:
            tasks_outlive_stop: Seconds that tasks of a cancelled job may keep running; the
                transactions that they leave open are ended.
            aside: Whether to end those transactions on a separate thread.
        """
        if not self.ended:
            self.ended = True
            if self._copies is not None:
                self._copies.close()
            self._query_run.leave(tasks_outlive_stop, aside=aside)


def _cluster_of(client: ClientSettings, group_timeout_ms: int) -> str:
    """The id of a cluster, for dead letters of its records."""
    with contextlib.closing(Wire(client)) as wire:
        return cluster_id(wire, group_deadline(group_timeout_ms))


def runtime_of(
    frame: DataFrame, location: str, spark: SparkSession | None, *, staged: bool
) -> QueryRuntime:
    """The runtime of the run that a batch begins.

    Args:
        frame: The run's first batch.
        location: The checkpoint's location, as given to Spark.
        spark: The session that the query was started from.
        staged: Whether the query's batches are staged.

    Raises:
        CheckpointError: The checkpoint is missing, or another query's.
        UnsupportedPipelineError: The query's sources can't be written exactly once.
    """
    if is_connect(frame):
        return ConnectRuntime(location, spark or frame.sparkSession)
    assert spark is not None  # noqa: S101 - the query was started in this process
    return ClassicRuntime(frame, location, spark, staged=staged)
