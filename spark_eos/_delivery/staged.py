"""Staged delivery: each offset stands for a file of the batch; partition 0 names the files."""

# A batch's rows are first staged in files. Then an offset commit names the files; the broker
# accepts it only from the group's current member. From then on, exactly the rows in these files
# are written for the batch, however often the batch is repeated.

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from spark_eos._batch_report import LostRecords
from spark_eos._checkpoint.marker import STAGED, Marker
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._checks.start import Start
from spark_eos._delivery.base import Delivery, RunParts, SinkQuery
from spark_eos._delivery.staged_checks import StagedChecks
from spark_eos._delivery.staged_files import ParquetFiles, StagedJobs
from spark_eos._delivery.staged_sources import SourcePositions, StagedSources
from spark_eos._exactly_once.delivery import Batch, PlannedBatch
from spark_eos._exactly_once.offsets import GroupOffsets
from spark_eos._kafka.offset_metadata import Committed, is_position
from spark_eos._kafka.progress_topic import (
    COMMIT_PARTITION,
    ensure_progress_topic,
    first_position,
)
from spark_eos._kafka.stored_text import StagedBatch
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._pyspark_internals import StreamSource, is_connect
from spark_eos._spark.columns import check_columns
from spark_eos._spark.narrow_plan import NOT_A_STREAM, check_sources_seen
from spark_eos._spark.runtime import QueryRuntime
from spark_eos._spark.stream_sources import (
    check_losses_seen,
    check_staged_sources,
    not_only_ours,
    sources_of,
)
from spark_eos._worker.plan import BatchRange, Partitions
from spark_eos._worker.task_report import JobOutcome
from spark_eos.errors import OffsetsLostError, UnsupportedPipelineError, warn

logger = logging.getLogger(__name__)


class StagedFiles(Protocol):
    """The files of staged batches."""

    def take(self, frame: Any) -> None:
        """Set the frame of a batch, for `stage` or `replay` to run."""

    def stage(self, batch_id: int, files: int) -> tuple[str, int]:
        """Write the batch's rows to at most ``files`` files; return their name and row count."""

    def replay(self) -> int:
        """Run the batch only to update the query's state; return its number of rows."""

    def open(self, copy: StagedBatch) -> bool:
        """Read the batch's rows from these files from now on; return True if the files exist."""

    def list_copies(self) -> None:
        """Note which files earlier runs have left; called before these runs are fenced."""

    def remove_abandoned(self, batch_id: int, committed: str | None) -> None:
        """Remove the files that earlier runs have made for a batch, except committed files."""

    def remove_old(self, batch_id: int) -> None:
        """Remove the files of earlier batches."""

    def close(self) -> None:
        """Close the resources that were opened to read the files."""


class StagedDelivery(Delivery):
    """Stages batches in files; the progress topic records which files count, and their progress."""

    name = STAGED
    why = "it suits any query"
    continues_from = "its checkpoint"
    without_checkpoint = "start over with another group_id and another checkpoint_location"

    @classmethod
    def rejection(cls, *, other_cluster: bool) -> str | None:
        del other_cluster
        return None

    @classmethod
    def check_stream(cls, frame: DataFrame, plans: Mapping[str, str]) -> None:
        if not frame.isStreaming:
            raise UnsupportedPipelineError(NOT_A_STREAM)
        sources = sources_of(frame)
        check_staged_sources(sources)
        if is_connect(frame):
            check_sources_seen(plans["Physical"], sources)

    @classmethod
    def check_columns(cls, schema: T.StructType, default_topic: str | None) -> None:
        check_columns(schema, default_topic, source=False)

    @classmethod
    def check_sources(cls, sources: Sequence[StreamSource]) -> None:
        check_staged_sources(sources)

    @classmethod
    def check_asynchronous_progress(cls) -> None:
        raise UnsupportedPipelineError(
            "the query's batches are staged, so Spark's checkpoint must have every one of them "
            "after a crash: leave out asynchronous_progress (Spark's asyncProgressTrackingEnabled)"
        )

    @classmethod
    def check_losses_seen(cls, query: SinkQuery) -> None:
        client = query.settings.source_client or query.settings.client
        check_losses_seen(query.sources, query.selections, client.bootstrap_servers)

    @classmethod
    def positions(cls, offsets: Committed) -> Positions:
        return {
            p: committed.offset
            for p, committed in offsets.items()
            if is_position(committed.metadata)
        }

    @classmethod
    def of_run(
        cls, query: SinkQuery, runtime: QueryRuntime, start: Start, offsets: GroupOffsets, why: str
    ) -> Delivery:
        files = ParquetFiles(query, runtime)
        others = functools.partial(not_only_ours, query.sources, runtime.session)
        jobs = StagedJobs(query, runtime, files)
        parts = RunParts(query.settings, start, offsets, jobs, query.progress_topic, why=why)
        return cls(parts, files, others)

    def __init__(
        self,
        parts: RunParts,
        files: StagedFiles,
        read_by_others: Callable[[Collection[str]], set[str]],
    ) -> None:
        super().__init__(parts)
        settings, start, topic = parts.settings, parts.start, parts.topic.name
        self._files = files
        self._sources = StagedSources(start.source, settings, topic, read_by_others)
        self._positions = SourcePositions(start.target, settings, parts.offsets.requests)
        self._checks = StagedChecks(settings.group, topic)
        self._commit_partition = TopicPartition(topic, COMMIT_PARTITION)
        # Number of the progress topic's partitions, once the run has begun.
        self._partitions = 0
        # The last batch that the run has begun to write; finished if a later batch has begun.
        self._last = -1

    # The start --------------------------------------------------------------------------------

    def partitions_to_fence(self, batch: Batch) -> Partitions:
        self._files.list_copies()
        connections, deadline = self._start.target, self._settings.group_deadline()
        self._partitions = ensure_progress_topic(connections, self._topic, deadline).partitions
        return self._progress_range(batch).ends.keys()

    def _check_offsets(self) -> None:
        super()._check_offsets()
        self._checks.check_topic(self._offsets.known, self._why)

    def _check_owner(self, batch: Batch) -> None:
        """Refuse the staged commit of another query, which may be running."""
        last = self._offsets.known.staged.get(self._commit_partition)
        if last is not None and last.query != batch.checkpoint.query_id():
            self._check_belongs(last, batch.id, batch.checkpoint)

    def learn(self, batch: Batch) -> None:
        """If an operator has set all offsets to 0, accept this: write the batch as it is now."""
        self._offsets.expect_staged_commit(self._commit_partition)
        # In a topic without records, kafka-consumer-groups.sh can set only offset 0.
        partitions, offsets = self._progress_range(batch).ends.keys(), self._offsets
        are_set = offsets.set_by_operator >= partitions
        if are_set and not any(offsets.committed[p] for p in partitions):
            self._offsets.accept(dict.fromkeys(partitions, first_position(batch.id)))
            warn(
                logger,
                "EOS63",
                "group %s: offsets of %s were set manually, so batch %d is written as it is now",
                self._group_id,
                self._topic.name,
                batch.id,
            )

    # One batch --------------------------------------------------------------------------------

    def plan(self, batch: Batch) -> PlannedBatch:
        settings = self._settings
        if (letters := settings.dead_letters) is not None:
            # A staged row has no position in a source.
            settings = replace(settings, dead_letters=replace(letters, positions=False))
        return PlannedBatch(batch, self._progress_range(batch), settings)

    def _progress_range(self, batch: Batch) -> BatchRange:
        # The range spans all progress partitions, from this batch to the next.
        start, end = first_position(batch.id), first_position(batch.id + 1)
        known = min(self._used_before(batch), self._partitions)
        names = [TopicPartition(self._topic.name, index) for index in range(self._partitions)]
        return BatchRange(batch.id, dict.fromkeys(names[:known], start), dict.fromkeys(names, end))

    def _used_before(self, batch: Batch) -> int:
        """Return how many progress partitions earlier batches have used; the others are new."""
        if 0 <= self._last < batch.id:
            return self._partitions
        return batch.checkpoint.markers.read().progress_partitions or self._partitions

    def initial_offsets(self, planned: PlannedBatch, *, begun_now: bool) -> Positions:
        try:
            return super().initial_offsets(planned, begun_now=begun_now)
        except OffsetsLostError as error:
            raise self._checks.lost(planned.batch.id, error) from error

    def prepare(self, planned: PlannedBatch) -> PlannedBatch:
        batch, files = planned.batch, self._files
        with batch.clock.step("stage"):
            files.take(batch.frame)
            of_batch = self._find(planned.range, batch.checkpoint)
            if self._last < 0:
                # The earlier runs are fenced. Without this, runs that die while they stage a batch
                # would fill the disk.
                files.remove_abandoned(batch.id, of_batch and of_batch.directory)
            batch.checkpoint.markers.write(self._new_marker(planned))
            self._last = batch.id
            if of_batch is not None:
                written = self._is_written(planned.range)
                if not written:
                    self._open(of_batch)
                planned = replace(planned, staged=of_batch, repeated=True, written=written)
            else:
                (name, rows), lost = self._sources.running(
                    batch, lambda: files.stage(batch.id, self._partitions - 1)
                )
                staged = self._commit(batch, name, rows)
                planned = replace(planned, staged=staged, lost=lost)
        return replace(planned, before=dict(self._offsets.committed))

    def _is_written(self, batch: BatchRange) -> bool:
        """Return True if the whole batch's end is committed, so that its files are not needed."""
        return all(self._offsets.committed[p] >= end for p, end in batch.ends.items())

    def _new_marker(self, planned: PlannedBatch) -> Marker:
        # Partitions that are new in this batch stay new until its end is committed.
        used = self._used_before(planned.batch)
        marker = super()._new_marker(planned)
        return replace(marker, progress_partitions=used)

    def _find(self, batch: BatchRange, checkpoint: OffsetLog) -> StagedBatch | None:
        """Return the batch's staged commit, if an earlier run has made one."""
        offsets, checks = self._offsets, self._checks
        if self._commit_partition in offsets.set_by_others:
            raise checks.foreign(batch.batch_id)
        last = offsets.known.staged.get(self._commit_partition)
        if last is not None:
            self._check_belongs(last, batch.batch_id, checkpoint)
        checks.check_positions(last, batch, offsets.committed)
        return last if last is not None and last.batch == batch.batch_id else None

    def _check_belongs(self, last: StagedBatch, batch_id: int, checkpoint: OffsetLog) -> None:
        owners = self._offsets.known.owners.get(self._topic.name, ())
        self._checks.check_belongs(last, batch_id, checkpoint, owners)

    def _open(self, staged: StagedBatch) -> None:
        logger.info(
            "group %s: batch %d is staged already, in %s; its %d rows are written from there",
            self._group_id,
            staged.batch,
            staged.directory or "no file",
            staged.rows,
        )
        if not self._files.open(staged):
            raise self._checks.damaged(staged, 0)

    def _commit(self, batch: Batch, name: str, rows: int) -> StagedBatch:
        """Commit new files as the ones that count for the batch, and open them."""
        staged = StagedBatch(
            query=batch.checkpoint.query_id(),
            batch=batch.id,
            directory=name if rows else None,
            rows=rows,
            files=self._partitions - 1,
            fingerprint=batch.checkpoint.fingerprint(batch.id),
        )
        if not self._files.open(staged):
            raise self._checks.removed(staged)
        self._offsets.stage(self._commit_partition, staged)
        # Nobody needs earlier files any more: the group has just accepted the new ones.
        self._files.remove_old(batch.id)
        return staged

    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        """Check that as many rows were read as were staged."""
        read = rows_read(outcomes)
        if planned.staged is not None and not planned.written and read != planned.staged.rows:
            raise self._checks.damaged(planned.staged, read)
        return planned

    def on_committed(self, planned: PlannedBatch) -> tuple[LostRecords, ...]:
        lost = self._replay(planned) if planned.repeated else ()
        # The group exists only in the target's cluster.
        if self._start.source is self._start.target:
            with planned.batch.clock.step("commit_end"):
                self._positions.publish(self._topic.name, self._sources.ranges(planned.batch))
        return lost

    def renew(self) -> None:
        self._positions.renew()

    def close(self) -> None:
        self._files.close()

    def _replay(self, planned: PlannedBatch) -> tuple[LostRecords, ...]:
        """Run a repeated batch to update the query's state; return lost records.

        This is the last step of the batch, because its source records may be deleted by now.
        """
        batch, staged = planned.batch, planned.staged
        with batch.clock.step("stage"):
            rows, lost = self._sources.running(batch, self._files.replay, repeated=True)
        if staged is not None and not lost and rows != staged.rows:
            self._warn_of_other_rows(staged, rows)
        return lost

    def _warn_of_other_rows(self, staged: StagedBatch, rows: int) -> None:
        warn(
            logger,
            "EOS61",
            "group %s: batch %d was computed again for the query's state and had %d rows, but "
            "its copy, from which it is written, has %d: the query is not deterministic, or "
            "its source now has other records (a compacted topic?). So state and output may "
            "differ from here on. If they must not differ, start over with another group_id and "
            "another checkpoint_location, and let sources keep records for longer than a query "
            "may be stopped (min.compaction.lag.ms)",
            self._group_id,
            staged.batch,
            rows,
            staged.rows,
        )


def rows_read(outcomes: Sequence[JobOutcome]) -> int:
    """Return how many rows of the copy were read and committed, in this or an earlier attempt."""
    last = {p: part for outcome in outcomes for p, part in outcome.partitions.items()}
    return sum(part.rows + part.skipped + part.dead_letters for part in last.values())
