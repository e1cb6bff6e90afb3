"""What a delivery is to Spark's part of a query, and what a sink gives to its runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._batch.plan import Positions
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.progress_topic import ensure_progress_topic
from spark_eos._driver.start import Start
from spark_eos._kafka.cluster import same_cluster
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._progress.delivery import ProgressOf
from spark_eos._pyspark_internals import StreamSource
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.runtime import QueryRuntime
from spark_eos.acls import read_topic
from spark_eos.options import ProgressTopic

Offsets = Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True)
class SinkQuery:
    """What a sink gives to its runs."""

    settings: WriterSettings
    location: str
    progress_topic: ProgressTopic
    selections: tuple[Mapping[str, str], ...]  # what sink.read has read
    sources: tuple[StreamSource, ...]
    starting_offsets: frozenset[str]  # where sink.read begins for a new group
    delivery: "Delivery"
    # If the first batch or the checkpoint shows that it can't be written by `delivery`.
    fallback: "Delivery | None"
    why: str
    forced: bool  # whether the stream can't be written by a delivery that costs less
    source_patterns: frozenset[str] = frozenset()  # of topics that no row may be for


class Delivery(ABC):
    """All that depends on the delivery, but for what its `Progress` does to the group's offsets."""

    name: str
    why: str  # why a query is written so, if nothing else is wanted
    continues_from: str  # what tells where it continues
    in_progress_topic = True  # so its sources may be in any cluster

    @abstractmethod
    def rejection(self, *, other_cluster: bool) -> str | None:
        """Why the source may not be in another cluster, or in the target's; None if it may."""

    @abstractmethod
    def check_stream(self, frame: DataFrame, plans: Mapping[str, str]) -> None:
        """Refuses a stream whose plan it can't write; ``plans`` as Spark prints them."""

    @abstractmethod
    def check_columns(self, schema: T.StructType, default_topic: str | None) -> None:
        """Refuses columns that it can't write, of a stream or of a run's first batch."""

    @abstractmethod
    def check_sources(self, sources: Sequence[StreamSource]) -> None:
        """Refuses sources of the plan that Spark runs."""

    def check_logged(self) -> None:
        """Refuses asynchronous progress tracking, if Spark must repeat batches as they were."""
        return

    def check_losses_seen(self, query: SinkQuery) -> None:
        """Refuses sources whose deleted records nobody would miss."""
        del query

    def check_clusters(self, start: Start, sources: Sequence[StreamSource]) -> None:
        """Refuses sources in a cluster that it can't commit offsets of."""
        del start, sources

    def reads_here(self, start: Start, servers: str) -> bool:
        """Whether a source of the stream is in the target's cluster."""
        # Without a progress topic, it commits the offsets of what it reads there.
        return not self.in_progress_topic or same_cluster(start.target, servers, start.deadline())

    def progress_topics(self, start: Start, topic: ProgressTopic) -> set[str]:
        """The topics beside the sources' whose offsets are committed; they exist then."""
        if not self.in_progress_topic:
            return set()
        ensure_progress_topic(start.target, topic, start.deadline())
        start.remember(read_topic(topic.name))
        return {topic.name}

    @abstractmethod
    def positions(self, offsets: Offsets) -> Positions:
        """How far the query has come in its sources, by the group's offsets."""

    def flattened(self, frame: DataFrame, query: SinkQuery) -> DataFrame | None:
        """The same rows in columns that suit the sink, if there are any."""
        del frame, query
        return None

    @abstractmethod
    def create_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[ProgressOf, BatchJobs]:
        """What a run needs."""
