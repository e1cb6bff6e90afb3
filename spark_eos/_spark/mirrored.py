"""Mirrored delivery: as direct, from another cluster."""

import functools

from spark_eos._batch.plan import Positions
from spark_eos._driver.checkpoint_marker import MIRRORED
from spark_eos._kafka.offset_metadata import mirrored_positions
from spark_eos._progress.delivery import ProgressOf
from spark_eos._progress.mirrored import MirroredProgress
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.delivery import Offsets, SinkQuery
from spark_eos._spark.direct import DirectDelivery
from spark_eos._spark.runtime import QueryRuntime


class MirroredDelivery(DirectDelivery):
    """Progress partitions stand for source partitions in another cluster."""

    name = MIRRORED
    why = f"{DirectDelivery.why}, in another cluster"
    in_progress_topic = True

    def rejection(self, *, other_cluster: bool) -> str | None:
        if other_cluster:
            return None
        return (
            "delivery='mirrored' is for a source in another cluster: give its client settings as "
            "source_kafka, or leave delivery out"
        )

    def positions(self, offsets: Offsets) -> Positions:
        return mirrored_positions(offsets)

    def create_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[ProgressOf, BatchJobs]:
        progress = functools.partial(MirroredProgress, topic=query.progress_topic)
        return progress, BatchJobs(query.settings, runtime, query.source_patterns)
