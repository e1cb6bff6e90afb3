"""A batch's rows through Spark tasks: one job, whose tasks write and report."""

from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos.batch import plan
from spark_eos.batch.plan import BatchPlan, BatchRange, Partitions
from spark_eos.batch.task_report import REPORT_DDL, JobOutcome, job_outcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.spark.columns import check_columns, written
from spark_eos.spark.runtime import QueryRuntime
from spark_eos.worker.task import write_task


class BatchJobs:
    """The jobs of one run. What all batches have in common is found out once.

    Args:
        frame: the first batch.
        default_topic: the sink's, if it has one.
        runtime: where the run takes place.

    Raises:
        UnsupportedPipelineError: a column stands in the way.
    """

    def __init__(self, frame: DataFrame, default_topic: str | None, runtime: QueryRuntime) -> None:
        self._runtime = runtime
        self._default_topic = default_topic
        self._adopt(frame.schema)
        # Parsed here, it need not be for every batch.
        self._report = cast("T.StructType", T.StructType.fromDDL(REPORT_DDL))
        self._round = 0

    def _adopt(self, schema: T.StructType) -> None:
        check_columns(schema, self._default_topic)
        self._schema, self._columns = schema, written(schema)

    def run(
        self,
        frame: DataFrame,
        settings: WriterSettings,
        batch: BatchRange,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        """Writes a batch's rows, or ``only`` those of some source partitions.

        Raises:
            UnsupportedPipelineError: rows have left their source partitions on the way, or a
                column stands in the way.
        """
        schema = frame.schema
        if schema != self._schema:
            # Whoever calls the sink from a function of their own may select other columns.
            self._adopt(schema)
        # A projection costs some milliseconds of planning, and a copy of every row.
        rows = frame if self._columns == schema.names else frame.select(*self._columns)
        if only is not None:
            # A task for each of them: what was too much for one task may be too much again.
            rows = rows.where(_is_one_of(only))
        elif (tasks := plan.task_count(batch, self._runtime.cores())) < len(batch.ends):
            rows = rows.coalesce(tasks)
        task = write_task(settings, batch_plan, discard_producer=only is not None)
        written = rows.mapInArrow(task, self._report)
        self._runtime.check_batch(frame, written, batch)
        # All rows are written by the first round only.
        self._round = 1 if only is None else self._round + 1
        name = f"group {settings.group_id}, batch {batch.batch_id}, round {self._round}"
        reports = self._runtime.collect(written, f"spark-eos: {name}")
        return job_outcome(row.asDict() for row in reports)


def _is_one_of(partitions: Partitions) -> Any:
    chosen = [f"{topic}/{index}" for topic, index in partitions]
    # Not "source.topic", which is another column's name if the frame has that alias.
    source = F.col("source")
    name = F.concat_ws("/", source["topic"], source["partition"].cast("string"))
    return name.isin(chosen)
