"""Direct delivery: rows stay in their source partitions, and are written as they come."""

import functools
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._batch.plan import Positions
from spark_eos._driver.checkpoint_marker import DIRECT
from spark_eos._driver.start import Start
from spark_eos._kafka.cluster import same_cluster
from spark_eos._progress.delivery import ProgressOf
from spark_eos._progress.direct import DirectProgress
from spark_eos._pyspark_internals import StreamSource, is_connect
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.columns import check_columns
from spark_eos._spark.delivery import Delivery, Offsets, SinkQuery
from spark_eos._spark.flat_source import can_be_flat, flattened, with_struct
from spark_eos._spark.narrow_plan import check_stream
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.stream_sources import check_read_from, check_sources, only_topic


class DirectDelivery(Delivery):
    """Progress is the offsets of the source partitions."""

    name = DIRECT
    why = "its rows stay in their source partitions"
    continues_from = "the group's offsets"
    in_progress_topic = False

    def rejection(self, *, other_cluster: bool) -> str | None:
        if not other_cluster:
            return None
        return (
            "delivery='direct' commits offsets in the cluster that is read, and source_kafka is "
            "another one: use delivery='mirrored', which refuses what is not narrow just the same"
        )

    def check_stream(self, frame: DataFrame, plans: Mapping[str, str]) -> None:
        check_stream(frame, plans, lineage_follows=not is_connect(frame))

    def check_columns(self, schema: T.StructType, default_topic: str | None) -> None:
        check_columns(with_struct(schema), default_topic)

    def check_sources(self, sources: Sequence[StreamSource]) -> None:
        check_sources(sources)

    def check_clusters(self, start: Start, sources: Sequence[StreamSource]) -> None:
        check_read_from(lambda one: same_cluster(start.source, one, start.deadline()), sources)

    def positions(self, offsets: Offsets) -> Positions:
        return {partition: found.offset for partition, found in offsets.items()}

    def flattened(self, frame: DataFrame, query: SinkQuery) -> DataFrame | None:
        if query.settings.dead_letters is None and can_be_flat(frame.schema):
            return flattened(frame, only_topic(query.sources))
        return None

    def create_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[ProgressOf, BatchJobs]:
        progress = functools.partial(DirectProgress, progress_topic=query.progress_topic.name)
        return progress, BatchJobs(query.settings, runtime, query.source_patterns)
