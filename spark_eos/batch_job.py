"""A batch's rows through Spark tasks: one job, whose tasks write and report."""

from typing import Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos import plan
from spark_eos.columns import check_columns, writable
from spark_eos.pipeline import check_batch
from spark_eos.plan import BatchPlan, BatchRange
from spark_eos.report import REPORT_DDL, JobOutcome, job_outcome
from spark_eos.run import Partitions
from spark_eos.settings import WriterSettings
from spark_eos.task import write_task


class BatchJobs:
    """The jobs of one run. What all batches have in common is found out once.

    Args:
        frame: the first batch.
        default_topic: the sink's, if it has one.

    Raises:
        UnsupportedPipelineError: a column stands in the way.
    """

    def __init__(self, frame: DataFrame, default_topic: str | None) -> None:
        schema = frame.schema
        check_columns(schema, default_topic)
        self._columns = writable(schema)
        # Parsed here, it need not be for every batch.
        self._report = cast("T.StructType", T.StructType.fromDDL(REPORT_DDL))
        self._cores = frame.sparkSession.sparkContext.defaultParallelism
        self._checked = False

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
            UnsupportedPipelineError: rows have left their source partitions on the way.
        """
        if not self._checked:
            check_batch(frame, len(batch.ends))
            self._checked = True
        rows = frame.select(*self._columns)
        if only is not None:
            rows = rows.where(_is_one_of(only))
        tasks = plan.task_count(batch, self._cores)
        if tasks < len(batch.ends):
            rows = rows.coalesce(tasks)
        task = write_task(settings, batch_plan, afresh=only is not None)
        written = rows.mapInArrow(task, self._report)
        return job_outcome(row.asDict() for row in written.collect())


def _is_one_of(partitions: Partitions) -> Any:
    chosen = [f"{topic}/{index}" for topic, index in partitions]
    name = F.concat_ws("/", F.col("source_topic"), F.col("source_partition").cast("string"))
    return name.isin(chosen)
