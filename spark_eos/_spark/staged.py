"""Staged delivery: batches are staged in files first; the progress topic says how far."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_eos._batch.plan import Positions
from spark_eos._driver.checkpoint_marker import STAGED
from spark_eos._kafka.offset_metadata import is_position
from spark_eos._progress.delivery import Batch, ProgressOf
from spark_eos._progress.staged import StagedProgress
from spark_eos._pyspark_internals import StreamSource, is_connect
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.columns import check_payload
from spark_eos._spark.delivery import Batches, Delivery, Offsets, SinkQuery
from spark_eos._spark.narrow_plan import check_sources_seen
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.staged_copies import StagedCopies
from spark_eos._spark.stream_sources import (
    check_losses_seen,
    check_staged_sources,
    only_read_by_sink,
    sources_of,
)
from spark_eos.errors import UnsupportedPipelineError


@dataclass(frozen=True)
class StagedBatches:
    """Batches whose rows are read from the files that they are staged in."""

    runtime: QueryRuntime
    jobs: BatchJobs
    files: StagedCopies

    def of(self, frame: DataFrame, batch_id: int) -> Batch:
        """See `Batches`."""
        files = self.files.of_batch(frame)
        write = functools.partial(self.jobs.run_staged, files)
        return Batch(batch_id, write, self.runtime.offset_log, files)

    def close(self) -> None:
        """Ends the session that reads the files."""
        self.files.close()


class StagedDelivery(Delivery):
    """Batches are staged in files first; the progress topic says which files, and how far."""

    name = STAGED
    why = "it suits any query"
    continues_from = "its checkpoint"

    def rejection(self, *, other_cluster: bool) -> str | None:
        del other_cluster
        return None

    def check_stream(
        self, frame: DataFrame, plans: Mapping[str, str], default_topic: str | None
    ) -> None:
        check_payload(frame.schema, default_topic)
        if not frame.isStreaming:
            raise UnsupportedPipelineError(
                "the DataFrame is not a streaming DataFrame; read it with readStream or sink.read"
            )
        sources = sources_of(frame)
        check_staged_sources(sources)
        if is_connect(frame):
            check_sources_seen(plans["Physical"], sources)

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

    def create_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[ProgressOf, Batches]:
        files = StagedCopies(
            runtime,
            query.location,
            query.progress_topic.name,
            query.settings.topic,
            dead_letters=query.settings.dead_letters is not None,
        )
        reads = only_read_by_sink(query.selections, query.sources)
        progress = functools.partial(StagedProgress, topic=query.progress_topic, reads=reads)
        return progress, StagedBatches(runtime, query.jobs(runtime), files)
