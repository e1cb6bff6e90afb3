"""The deliveries as Spark sees them: one table, and how the batches of their runs are made."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pyspark.sql import DataFrame

from spark_eos._batch.plan import Positions
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.checkpoint_marker import DIRECT, MIRRORED, STAGED
from spark_eos._driver.progress_topic import ensure_progress_topic
from spark_eos._driver.start import Start
from spark_eos._kafka.addresses import leads_here
from spark_eos._kafka.offset_metadata import CommittedOffset, is_position, mirrored_positions
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._progress.own import OwnOffsets
from spark_eos._progress.paired import PairedOffsets
from spark_eos._progress.staged import StagedOffsets
from spark_eos._progress.strategy import Batch, StrategyOf
from spark_eos._pyspark_internals import StreamSource, is_connect
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.columns import check_columns, check_payload
from spark_eos._spark.flat_source import can_be_flat, flattened, with_struct
from spark_eos._spark.narrow_plan import check_sources_seen, check_stream
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.staged_copies import StagedCopies
from spark_eos._spark.stream_sources import (
    check_losses_seen,
    check_read_from,
    check_sources,
    check_staged_sources,
    only_read_by_sink,
    only_topic,
    sources_of,
)
from spark_eos.acls import read_topic
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.options import ProgressTopic

Offsets = Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True)
class Batches:
    """Makes a run's batches, whose rows are staged first if there are files."""

    runtime: QueryRuntime
    jobs: BatchJobs
    files: StagedCopies | None = None

    def of(self, frame: DataFrame, batch_id: int) -> Batch:
        """The batch of a frame."""
        log = self.runtime.offset_log
        if self.files is None:
            return Batch(batch_id, functools.partial(self.jobs.run, frame), log)
        files = self.files.of_batch(frame)
        return Batch(batch_id, functools.partial(self.jobs.run_copy, files), log, files)

    def close(self) -> None:
        """Ends the session that reads the files."""
        if self.files is not None:
            self.files.close()


@dataclass(frozen=True)
class SinkQuery:
    """What a sink gives to its runs.

    Attributes:
        selections: What ``sink.read`` has read.
        starting_offsets: Where ``sink.read`` begins for a new group.
        fallback: How else, if the first batch or the checkpoint shows that they can't.
        forced: Whether that is because the stream can't be written by one that costs less.
    """

    settings: WriterSettings
    location: str
    progress_topic: ProgressTopic
    selections: tuple[Mapping[str, str], ...]
    sources: tuple[StreamSource, ...]
    starting_offsets: frozenset[str]
    delivery: "SinkDelivery"
    fallback: "SinkDelivery | None"
    why: str
    forced: bool

    def jobs(self, runtime: QueryRuntime) -> BatchJobs:
        """What runs the Spark jobs of a run."""
        letters = self.settings.dead_letters is not None
        return BatchJobs(self.settings.topic, runtime, dead_letters=letters)


class SinkDelivery(Protocol):
    """All that depends on the delivery in Spark's part of a query.

    Attributes:
        name: As in ``delivery``.
        why: Why a query is written so, if nothing else is wanted.
        progress: What tells where it continues.
    """

    name: str
    why: str
    progress: str

    def unsuited(self, *, other_cluster: bool) -> str | None:
        """Why the source may not be in another cluster, or in the target's; None if it may."""

    def check_stream(
        self, frame: DataFrame, plans: Mapping[str, str], default_topic: str | None
    ) -> None:
        """Refuses a streaming DataFrame that it can't write; ``plans`` as Spark prints them."""

    def check_sources(self, sources: Sequence[StreamSource]) -> None:
        """Refuses sources of the plan that Spark runs."""

    def check_logged(self) -> None:
        """Refuses asynchronous progress tracking, if Spark must repeat batches as they were."""

    def check_losses_seen(self, query: SinkQuery) -> None:
        """Refuses sources whose deleted records nobody would miss."""

    def check_batch(self, frame: DataFrame, default_topic: str | None) -> None:
        """Refuses a run's first batch before anything is noted."""

    def check_clusters(self, start: Start, sources: Sequence[StreamSource]) -> None:
        """Refuses sources in a cluster that it can't commit offsets of."""

    def reads_here(self, start: Start, servers: str) -> bool:
        """Whether a source of the stream is in the target's cluster."""

    def progress_topics(self, start: Start, topic: ProgressTopic) -> set[str]:
        """The topics beside the sources' whose offsets are committed; they exist then."""

    def reached(self, offsets: Offsets) -> Positions:
        """How far the query has come in its sources, by the group's offsets."""

    def quick(self, frame: DataFrame, query: SinkQuery) -> DataFrame | None:
        """The same rows in columns that suit the sink, if there are any."""

    def of_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[StrategyOf, Batches]:
        """What a run needs."""


class _Narrow:
    """Rows stay in their source partitions, and are written as they come."""

    why = "its rows stay in their source partitions"
    progress = "the group's offsets"

    def check_sources(self, sources: Sequence[StreamSource]) -> None:
        check_sources(sources)

    def check_stream(
        self, frame: DataFrame, plans: Mapping[str, str], default_topic: str | None
    ) -> None:
        # The plan first: what it lacks may be why columns are missing.
        check_stream(frame, plans, lineage_follows=not is_connect(frame))
        check_columns(frame.schema, default_topic)

    def check_clusters(self, start: Start, sources: Sequence[StreamSource]) -> None:
        check_read_from(lambda one: leads_here(start.source, one, start.deadline()), sources)

    def check_logged(self) -> None:
        pass

    def check_losses_seen(self, query: SinkQuery) -> None:
        pass

    def check_batch(self, frame: DataFrame, default_topic: str | None) -> None:
        check_columns(with_struct(frame.schema), default_topic)

    def quick(self, frame: DataFrame, query: SinkQuery) -> DataFrame | None:
        if query.settings.dead_letters is None and can_be_flat(frame.schema):
            return flattened(frame, only_topic(query.sources))
        return None


class _InProgressTopic:
    """Progress is in the progress topic, and sources may be in any cluster."""

    def reads_here(self, start: Start, servers: str) -> bool:
        return leads_here(start.target, servers, start.deadline())

    def progress_topics(self, start: Start, topic: ProgressTopic) -> set[str]:
        ensure_progress_topic(start.target, topic, start.deadline())
        start.know(read_topic(topic.name))
        return {topic.name}


class DirectDelivery(_Narrow):
    """Progress is the offsets of the source partitions."""

    name = DIRECT

    def unsuited(self, *, other_cluster: bool) -> str | None:
        if not other_cluster:
            return None
        return (
            "delivery='direct' commits offsets in the cluster that is read, and source_kafka is "
            "another one: use delivery='mirrored', which refuses what is not narrow just the same"
        )

    def reads_here(self, start: Start, servers: str) -> bool:
        del start, servers
        # It commits the offsets of what it reads in the target's cluster.
        return True

    def progress_topics(self, start: Start, topic: ProgressTopic) -> set[str]:
        del start, topic
        return set()

    def reached(self, offsets: Offsets) -> Positions:
        return {partition: found.offset for partition, found in offsets.items()}

    def of_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[StrategyOf, Batches]:
        strategy = functools.partial(OwnOffsets, progress_topic=query.progress_topic.name)
        return strategy, Batches(runtime, query.jobs(runtime))


class MirroredDelivery(_InProgressTopic, _Narrow):
    """Progress partitions stand for source partitions in another cluster."""

    name = MIRRORED
    why = f"{_Narrow.why}, in another cluster"

    def reached(self, offsets: Offsets) -> Positions:
        return mirrored_positions(offsets)

    def unsuited(self, *, other_cluster: bool) -> str | None:
        if other_cluster:
            return None
        return (
            "delivery='mirrored' is for a source in another cluster: give its client settings as "
            "source_kafka, or leave delivery out"
        )

    def of_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[StrategyOf, Batches]:
        strategy = functools.partial(PairedOffsets, topic=query.progress_topic)
        return strategy, Batches(runtime, query.jobs(runtime))


class StagedDelivery(_InProgressTopic):
    """Batches are staged in files first; the progress topic says which files, and how far."""

    name = STAGED
    why = "it suits any query"
    progress = "its checkpoint"

    def reached(self, offsets: Offsets) -> Positions:
        return {p: found.offset for p, found in offsets.items() if is_position(found.metadata)}

    def check_sources(self, sources: Sequence[StreamSource]) -> None:
        check_staged_sources(sources)

    def unsuited(self, *, other_cluster: bool) -> str | None:
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

    def check_clusters(self, start: Start, sources: Sequence[StreamSource]) -> None:
        pass

    def check_logged(self) -> None:
        raise UnsupportedPipelineError(
            "the query's batches are staged, and Spark must know each of them after a crash: "
            "leave out asynchronous_progress (Spark's asyncProgressTrackingEnabled)"
        )

    def check_losses_seen(self, query: SinkQuery) -> None:
        client = query.settings.source_client or query.settings.client
        check_losses_seen(query.sources, query.selections, client.bootstrap_servers)

    def check_batch(self, frame: DataFrame, default_topic: str | None) -> None:
        pass

    def quick(self, frame: DataFrame, query: SinkQuery) -> DataFrame | None:
        del frame, query
        return None

    def of_run(self, query: SinkQuery, runtime: QueryRuntime) -> tuple[StrategyOf, Batches]:
        files = StagedCopies(
            runtime,
            query.location,
            query.progress_topic.name,
            query.settings.topic,
            dead_letters=query.settings.dead_letters is not None,
        )
        reads = only_read_by_sink(query.selections, query.sources)
        strategy = functools.partial(StagedOffsets, topic=query.progress_topic, reads=reads)
        return strategy, Batches(runtime, query.jobs(runtime), files)


_ALL: Final[tuple[SinkDelivery, ...]] = (DirectDelivery(), MirroredDelivery(), StagedDelivery())
DELIVERIES: Final = {each.name: each for each in _ALL}
"""The deliveries by name, those first that cost least."""
