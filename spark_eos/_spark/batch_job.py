"""The Spark jobs that write a batch's rows; each task reports what it has written."""

import functools
from collections.abc import Collection, Iterable
from typing import Final

from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos._exactly_once.delivery import PlannedBatch
from spark_eos._exactly_once.task import Arrange, write_task
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._spark.columns import check_columns
from spark_eos._spark.dead_letter_columns import (
    carries_letter,
    check_error_column,
    direct_columns,
)
from spark_eos._spark.failed_job import as_write_error
from spark_eos._spark.final_steps import NO_STEPS, FinalSteps
from spark_eos._spark.flat_source import (
    only_topic_of,
    topic_and_partition,
    with_struct,
    written_columns,
)
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.topic_patterns import topic_is_source
from spark_eos._worker.arrow_columns import writable_batches
from spark_eos._worker.dead_letters import ERROR
from spark_eos._worker.plan import (
    BatchPlan,
    Partitions,
    further_task_count,
    records_of,
    task_count,
    wait_per_record,
)
from spark_eos._worker.task_report import REPORT, JobOutcome, job_outcome
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import WriteError

# How many consumers an executor caches by default (spark.kafka.consumer.cache.capacity).
_CACHED_CONSUMERS: Final = 64


class BatchJobs:
    """The Spark jobs of one run; values that all jobs share are computed once."""

    def __init__(
        self,
        settings: WriterSettings,
        runtime: QueryRuntime,
        source_patterns: Collection[str],  # topics that no row may be written to
        final_steps: FinalSteps = NO_STEPS,
    ) -> None:
        self._runtime = runtime
        self._default_topic = settings.topic
        self._dead_letters = settings.dead_letters is not None
        self._source_patterns = source_patterns
        self._final_steps = final_steps
        self._arrange: Arrange = writable_batches
        self._schema = T.StructType()
        self._columns: list[str] | list[Column] = []
        self._needs_no_select = False
        self._errors_carried = False
        self._most_partitions: int | None = None
        self._report = T.StructType([T.StructField(REPORT, T.StringType())])
        self._attempt = 0
        self._repeated = False
        self._wait_ms: float | None = None

    def _adopt(self, schema: T.StructType) -> None:
        check_columns(self._final_steps.schema(with_struct(schema)), self._default_topic)
        self._schema, self._columns = schema, written_columns(schema)
        self._needs_no_select = self._columns == schema.names
        self._arrange = functools.partial(
            writable_batches, topic=only_topic_of(schema), steps=self._final_steps.functions
        )
        check_error_column(schema, dead_letters=self._dead_letters)
        self._errors_carried = self._dead_letters and carries_letter(schema)
        if self._errors_carried or (self._dead_letters and ERROR in schema.names):
            self._columns = direct_columns(schema)
            self._needs_no_select = False
        if added := topic_is_source(schema.names, self._source_patterns):
            self._columns = [*self._columns, *added]
            self._needs_no_select = False

    def run(
        self, planned: PlannedBatch, batch_plan: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        """Write all rows of a batch, or only the rows of some source partitions."""
        frame: DataFrame = planned.batch.frame
        batch, sources = planned.range, planned.sources
        rows = self._selected(frame)
        records = 0
        partitions = len(batch.ends)
        if only is None:
            parts = batch_plan.partitions.items()
            records = records_of(batch, {p: part.committed for p, part in parts})
            cores = self._runtime.cores()
            tasks = task_count(records, partitions, cores, self._most_partitions, self._wait_ms)
            if tasks < partitions:
                rows = rows.coalesce(tasks)
        else:
            chosen = self._is_one_of(map(sources.source, only))
            rows = rows.where(chosen).coalesce(self._further_tasks(partitions))
        task = write_task(
            planned.settings,
            batch_plan,
            size=planned.size,
            sources=sources,
            discard_producer=only is not None,
            arrange=self._arrange,
        )
        written = rows.mapInArrow(task, self._report)
        self._runtime.check_batch(frame, written, batch)
        try:
            outcome = self._outcome(written, planned, only)
        except PythonException as error:
            known = self._runtime.why_failed(error)
            raise known or as_write_error(error, planned, batch_plan, only) from error
        if only is None:
            waited = outcome.counters.wait_ms
            self._wait_ms = wait_per_record(waited, outcome.tasks, records)
        return outcome

    def _selected(self, frame: DataFrame) -> DataFrame:
        schema = frame.schema
        if schema != self._schema:
            # A user's foreachBatch function may select different columns in each batch.
            self._adopt(schema)
            self._most_partitions = _most_partitions(frame.sparkSession.version)
        # Skip the projection if possible: it takes milliseconds to plan and copies every row.
        return frame if self._needs_no_select else frame.select(*self._columns)

    def _is_one_of(self, partitions: Iterable[TopicPartition]) -> Column:
        chosen = [f"{topic}/{index}" for topic, index in partitions]
        topic, partition = topic_and_partition(self._schema)
        return F.concat_ws("/", topic, partition.cast("string")).isin(chosen)

    def _further_tasks(self, partitions: int) -> int:
        """Return how many tasks a further attempt has: one if Spark repeated tasks in a retry."""
        # Tasks without rows end at once, so with spark.speculation Spark considers the other tasks
        # slow and launches copies. A copy writes nothing and ends first, so Spark kills the task
        # that writes, in every attempt. Spark does not copy a job's only task, unless
        # spark.speculation.task.duration.threshold is set.
        if self._attempt > 1 and self._repeated:
            return 1
        return further_task_count(partitions, self._runtime.cores(), self._most_partitions)

    def _outcome(
        self,
        written: DataFrame,
        planned: PlannedBatch,
        only: Partitions | None,
    ) -> JobOutcome:
        # Only the first attempt writes all rows.
        self._attempt = 1 if only is None else self._attempt + 1
        group_id, batch_id = planned.settings.group_id, planned.batch.id
        name = f"group {group_id}, batch {batch_id}, attempt {self._attempt}"
        reports = self._runtime.collect(
            written, f"spark-eos: {name}", errors_carried=self._errors_carried
        )
        tasks = self._runtime.tasks(written)
        if tasks is not None and len(reports) < tasks:
            raise WriteError(
                f"{name}: {tasks - len(reports)} of {tasks} task reports did not arrive, so it is "
                "unknown which rows were written: the driver's JVM failed to send the reports. The "
                "next start writes the missing rows"
            )
        outcome = job_outcome((report for (report,) in reports), planned.sources)
        self._repeated = outcome.retried
        return outcome


def _most_partitions(spark_version: str) -> int | None:
    """Return the limit on source partitions per task, if there is one."""
    # Before Spark 4.2, a task keeps the records that it has fetched from each of its partitions.
    major, minor = spark_version.split(".")[:2]
    return _CACHED_CONSUMERS if (int(major), int(minor)) < (4, 2) else None
