"""Staged delivery: batches are staged in files first; the progress topic says how far."""

import functools
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos._batch.plan import BatchPlan, Partitions, Positions, task_count
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.checkpoint_marker import STAGED
from spark_eos._kafka.offset_metadata import is_position
from spark_eos._progress.delivery import Batch, PlannedBatch, ProgressOf
from spark_eos._progress.staged import StagedProgress
from spark_eos._pyspark_internals import StreamSource, is_connect
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.columns import check_columns
from spark_eos._spark.delivery import Delivery, Offsets, SinkQuery
from spark_eos._spark.narrow_plan import check_sources_seen
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.staged_copies import StagedCopies
from spark_eos._spark.stream_sources import (
    check_losses_seen,
    check_staged_sources,
    read_by_others,
    sources_of,
)
from spark_eos._worker.arrow_columns import FILE_NUMBER
from spark_eos._worker.task import write_task
from spark_eos.errors import UnsupportedPipelineError


class StagedJobs(BatchJobs):
    """Batches whose rows are read from the files that they are staged in."""

    def __init__(self, query: SinkQuery, runtime: QueryRuntime) -> None:
        super().__init__(query.settings, runtime, query.source_patterns)
        self._files = StagedCopies(query, runtime)

    def of(self, frame: DataFrame, batch_id: int) -> Batch:
        files = self._files.of_batch(frame)
        return Batch(batch_id, self._run_staged, self._runtime.offset_log, files)

    def close(self) -> None:
        self._files.close()

    def _run_staged(
        self,
        planned: PlannedBatch,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        rows = self._files.rows
        if only is None:
            files, cores = len(planned.range.ends) - 1, self._runtime.cores()
            rows = rows.coalesce(task_count(self._files.number_of_rows, files, cores, wait_ms=0.0))
        else:
            rows = rows.where(F.col(FILE_NUMBER).isin([index - 1 for _topic, index in only]))
            rows = self._single_task(rows)
        task = write_task(
            planned.settings,
            batch_plan,
            discard_producer=only is not None,
            arrange=self._files.arrange,
        )
        return self._outcome(rows.mapInArrow(task, self._report), planned, only)


class StagedDelivery(Delivery):
    """Batches are staged in files first; the progress topic says which files, and how far."""

    name = STAGED
    why = "it suits any query"
    continues_from = "its checkpoint"

    def rejection(self, *, other_cluster: bool) -> str | None:
        del other_cluster
        return None

    def check_stream(self, frame: DataFrame, plans: Mapping[str, str]) -> None:
        if not frame.isStreaming:
            raise UnsupportedPipelineError(
                "the DataFrame is not a streaming DataFrame; read it with readStream or sink.read"
            )
        sources = sources_of(frame)
        check_staged_sources(sources)
        if is_connect(frame):
            check_sources_seen(plans["Physical"], sources)

    def check_columns(self, schema: T.StructType, default_topic: str | None) -> None:
        check_columns(schema, default_topic, source=False)

    def check_sources(self, sources: Sequence[StreamSource]) -> None:
        check_staged_sources(sources)

    def check_logged(self) -> None:
        raise UnsupportedPipelineError(
            "the query's batches are staged, and Spark must know each of them after a crash: "
            "leave out asynchronous_progress (Spark's asyncProgressTrackingEnabled)"
        )

    def check_losses_seen(self, query: SinkQuery) -> None:
        client = query.settings.source_client or query.settings.client
        check_losses_seen(query.sources, query.selections, client.bootstrap_servers)

    def positions(self, offsets: Offsets) -> Positions:
        return {p: found.offset for p, found in offsets.items() if is_position(found.metadata)}

    def create_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[ProgressOf, BatchJobs]:
        others = functools.partial(read_by_others(query.sources).among, runtime.session)
        progress = functools.partial(
            StagedProgress, topic=query.progress_topic, read_by_others=others
        )
        return progress, StagedJobs(query, runtime)
