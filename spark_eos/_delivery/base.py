"""The base class of deliveries: which streams a delivery accepts, and what its runs do."""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._checkpoint.marker import DIRECT, STAGED, Marker
from spark_eos._checkpoint.offset_log import CONTINUE_EMPTY
from spark_eos._checks.start import Start
from spark_eos._delivery.gaps import log_lags
from spark_eos._delivery.missing_offsets import Evidence
from spark_eos._delivery.ownership import (
    changed_delivery,
    check_marker,
    deliveries_of,
    may_become_direct,
    nothing_staged,
)
from spark_eos._exactly_once.delivery import Batch, PlannedBatch, RunDelivery
from spark_eos._exactly_once.offsets import GroupOffsets
from spark_eos._kafka.cluster import TopicInfo, same_cluster
from spark_eos._kafka.offset_metadata import Committed
from spark_eos._kafka.progress_topic import COMMIT_PARTITION, ensure_progress_topic
from spark_eos._kafka.stored_text import Owner
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._pyspark_internals import StreamSource
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._spark.final_steps import NO_STEPS, FinalSteps
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._worker.plan import BatchPlan, Partitions
from spark_eos._worker.task_report import JobOutcome
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import read_topic
from spark_eos.errors import CheckpointError, ConfigurationError
from spark_eos.options import ProgressTopic

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SinkQuery:
    """The parts of a sink's query that its runs need."""

    settings: WriterSettings
    location: str
    progress_topic: ProgressTopic
    # The selections of sink.read, and where a new group begins.
    selections: tuple[Mapping[str, str], ...]
    starting_offsets: frozenset[str]
    sources: tuple[StreamSource, ...]
    delivery: "type[Delivery]"
    # Used if the first batch or the checkpoint shows that `delivery` can't write the query.
    fallback: "type[Delivery] | None"
    why: str
    # True if no cheaper delivery can write the stream.
    forced: bool
    # The topics and partitions of each selection when sink.read was called.
    topics_at_read: tuple[Mapping[str, TopicInfo], ...] = ()
    # Patterns of topics to which no row may be written.
    source_patterns: frozenset[str] = frozenset()
    # The steps between the frame that Spark runs and the rows to write.
    final_steps: FinalSteps = NO_STEPS


class Jobs(Protocol):
    """Writes a batch's rows with Spark jobs."""

    def run(
        self, planned: PlannedBatch, batch_plan: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        """Write all rows, or only the rows of some partitions."""


@dataclass(frozen=True)
class RunParts:
    """The parts of a run that its delivery uses; the run owns the offsets."""

    settings: WriterSettings
    start: Start
    offsets: GroupOffsets
    jobs: Jobs
    topic: ProgressTopic
    # The reason why no cheaper delivery can write the query.
    why: str = ""
    # True if Spark tracks the query's progress asynchronously.
    asynchronous: bool = False


class Delivery(RunDelivery):
    """One delivery: class methods check a stream; an instance belongs to one run."""

    # The reason to report for choosing this delivery, and what a query continues from.
    why: ClassVar[str]
    continues_from: ClassVar[str]
    # How a query continues after its checkpoint is lost.
    without_checkpoint: ClassVar[str] = CONTINUE_EMPTY
    # True if progress partitions stand for the sources, which may then be in any cluster.
    uses_progress_topic: ClassVar[bool] = True

    # A stream, before its run -----------------------------------------------------------------

    @classmethod
    @abstractmethod
    def rejection(cls, *, other_cluster: bool) -> str | None:
        """Return why this delivery can't read from the source's cluster, else None."""

    @classmethod
    @abstractmethod
    def check_stream(cls, frame: DataFrame, plans: Mapping[str, str]) -> None:
        """Refuse a stream whose plan can't be written; ``plans`` are Spark's printed plans."""

    @classmethod
    @abstractmethod
    def check_columns(cls, schema: T.StructType, default_topic: str | None) -> None:
        """Refuse columns of a stream, or of a run's first batch, that can't be written."""

    @classmethod
    @abstractmethod
    def check_sources(cls, sources: Sequence[StreamSource]) -> None:
        """Refuse sources that this delivery can't read, in the plan that Spark runs."""

    @classmethod
    def check_asynchronous_progress(cls) -> None:
        """Refuse asynchronous progress tracking if Spark must repeat batches unchanged."""
        return

    @classmethod
    def check_losses_seen(cls, query: SinkQuery) -> None:
        """Refuse sources whose deleted records would go unnoticed."""
        del query

    @classmethod
    def check_clusters(cls, start: Start, sources: Sequence[StreamSource]) -> None:
        """Refuse sources in a cluster whose offsets can't be committed."""
        del start, sources

    @classmethod
    def reads_here(cls, start: Start, servers: str) -> bool:
        """Return True if a source of the stream is in the target's cluster."""
        # Without a progress topic, a query commits the offsets of sources in the target's cluster.
        return not cls.uses_progress_topic or same_cluster(start.target, servers, start.deadline())

    @classmethod
    def create_progress_topic(cls, start: Start, topic: ProgressTopic) -> None:
        """Create the topic for the progress, if the delivery uses one and it does not exist."""
        if cls.uses_progress_topic:
            ensure_progress_topic(start.target, topic, start.deadline())
            start.remember(read_topic(topic.name))

    @classmethod
    @abstractmethod
    def positions(cls, offsets: Committed) -> Positions:
        """Return the query's positions in its sources, according to the group's offsets."""

    @classmethod
    def flattened(cls, frame: DataFrame, query: SinkQuery) -> DataFrame | None:
        """Return the frame with columns that the sink handles faster, or None if not possible."""
        del frame, query
        return None

    @classmethod
    def of_run(
        cls, query: SinkQuery, runtime: QueryRuntime, start: Start, offsets: GroupOffsets, why: str
    ) -> "Delivery":
        """Return a run's delivery; ``why`` says why no cheaper delivery can write the query."""
        jobs = BatchJobs(query.settings, runtime, query.source_patterns, query.final_steps)
        return cls(
            RunParts(
                query.settings,
                start,
                offsets,
                jobs,
                query.progress_topic,
                why=why,
                asynchronous=runtime.asynchronous,
            )
        )

    # A run, in the order of its calls ---------------------------------------------------------

    def __init__(self, parts: RunParts) -> None:
        self._settings = parts.settings
        self._group_id = parts.settings.group_id
        self._start = parts.start
        self._offsets = parts.offsets
        self._jobs = parts.jobs
        self._topic = parts.topic
        self._why = parts.why
        self._asynchronous = parts.asynchronous

    def check_checkpoint(self, batch: Batch) -> None:
        check_marker(self._marker(batch), self.name, self._why)

    def _marker(self, batch: Batch) -> Marker:
        """Return the checkpoint's marker; an empty one if a staged query may become direct."""
        marker = batch.checkpoint.markers.read()
        return Marker() if self._becomes_direct(marker, batch) else marker

    def _becomes_direct(self, marker: Marker, batch: Batch) -> bool:
        return may_become_direct(marker, self._group_id, self.name, batch.id)

    def check_group(self, batch: Batch) -> None:
        try:
            self._check_offsets()
            self._check_owner(batch)
        except (CheckpointError, ConfigurationError):
            # Spark logged batch 0 from this group's offsets, unless the offsets are those of staged
            # files. The marker prevents the checkpoint from being used with another group, or after
            # the group's offsets are deleted.
            noted = next(iter(deliveries_of(self._offsets.known)), DIRECT)
            marker = batch.checkpoint.markers.read()
            if noted != STAGED and batch.id == 0 and marker.group_id is None:
                batch.checkpoint.markers.write(Marker(self._group_id, {}, noted))
            raise

    def _check_offsets(self) -> None:
        # Check the offsets even if the checkpoint is new. Otherwise a query with a new checkpoint
        # would start over and write everything again.
        for noted in deliveries_of(self._offsets.known):
            if noted != self.name:
                raise changed_delivery(noted, self.name, self._why)

    def _check_owner(self, batch: Batch) -> None:
        """Refuse offsets of another query, unless this one may continue from them."""
        del batch

    def learn(self, batch: Batch) -> None:
        if self._becomes_direct(batch.checkpoint.markers.read(), batch):
            self._check_nothing_staged()

    def _check_nothing_staged(self) -> None:
        """Check that a staged query has written nothing, so that it may become direct."""
        deadline, topic = self._settings.group_deadline(), self._topic.name
        committed = self._offsets.requests.all(deadline)
        commit_partition = TopicPartition(topic, COMMIT_PARTITION)
        committed |= self._offsets.requests.fetch({commit_partition}, deadline, wait=True)
        if not nothing_staged(committed, topic):
            raise changed_delivery(STAGED, self.name)
        logger.info(
            "group %s: delivery=%s from now on; it was %s, and no batch has been staged yet",
            self._group_id,
            self.name,
            STAGED,
        )

    def owner(self, batch: Batch) -> Owner:
        return Owner.of(batch.checkpoint.query_id(), self._settings.topic)

    def initial_offsets(self, planned: PlannedBatch, *, begun_now: bool) -> Positions:
        offsets, marker = self._offsets, self._marker(planned.batch)
        evidence = Evidence(
            self._settings.group,
            offsets.known,
            offsets.topic_ids,
            marker,
            begun_now,
            offsets.sources,
        )
        initial = evidence.initial_offsets(planned.range, offsets.committed)
        evidence.warn_of_restored(planned.range, initial)
        return initial

    def _new_marker(self, planned: PlannedBatch) -> Marker:
        """Return the marker that the checkpoint gets before any row is written."""
        offsets, ends = self._offsets, planned.range.ends
        noted = planned.batch.checkpoint.markers.read().checkpoint_may_lag
        lags = noted and log_lags(planned.range.starts, offsets.committed, ends)
        return Marker(
            self._group_id,
            offsets.topic_ids,
            delivery=self.name,
            checkpoint_may_lag=self._asynchronous or lags,
        )

    def write_rows(
        self, planned: PlannedBatch, plan: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        return self._jobs.run(planned, plan, only)
