"""Staged: each offset stands for a file of the batch, and partition 0 says which files count."""

# A batch's rows are first staged in files. Then an offset commit, which the broker accepts from the
# group's current member alone, names them. From then on those files, and no others, are what is
# written for the batch, however often it is repeated.

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from spark_eos._batch.batch_report import LostRecords
from spark_eos._batch.plan import BatchRange, Partitions, Positions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.checkpoint_marker import STAGED, Marker
from spark_eos._driver.offset_log import OffsetLog
from spark_eos._driver.progress_topic import (
    COMMIT_PARTITION,
    ensure_progress_topic,
    first_position,
    progress_range,
)
from spark_eos._driver.start import Start
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.stored_text import StagedBatch
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._progress.delivery import Batch, PlannedBatch, Progress, StagedFiles
from spark_eos._progress.missing import Evidence
from spark_eos._progress.offsets import GroupOffsets
from spark_eos._progress.staged_checks import StagedChecks
from spark_eos._progress.staged_sources import SourcePositions, StagedSources
from spark_eos.errors import OffsetsLostError, warn
from spark_eos.options import ProgressTopic

logger = logging.getLogger(__name__)


class StagedProgress(Progress):
    delivery = STAGED

    def __init__(
        self,
        settings: WriterSettings,
        start: Start,
        offsets: GroupOffsets,
        topic: ProgressTopic,
        read_by_others: Callable[[Collection[str]], set[str]],
    ) -> None:
        super().__init__(settings, start, offsets)
        self._topic = topic
        self._sources = StagedSources(start.source, settings, read_by_others)
        self._positions = SourcePositions(start.target, settings, offsets.requests)
        self._checks = StagedChecks(settings.group_id, topic.name)
        self._commit_partition = TopicPartition(topic.name, COMMIT_PARTITION)
        # Of the progress topic, once the run has begun.
        self._partitions = 0
        # The last batch that the run has begun to write: a later one finds it written.
        self._last = -1
        self.progress_topic = topic.name

    # The start --------------------------------------------------------------------------------

    def partitions_to_fence(self, batch: Batch) -> Partitions:
        connections, deadline = self._start.target, self._settings.group_deadline()
        self._partitions = ensure_progress_topic(connections, self._topic, deadline).partitions
        return self._held(batch).ends.keys()

    def check_offsets(self, known: KnownPartitions, why: str) -> None:
        super().check_offsets(known, why)
        self._checks.check_topic(known, why)

    def check_owner(self, batch: Batch) -> None:
        """Refuses the staged commit of another query, which may be running."""
        last = self._offsets.known.staged.get(self._commit_partition)
        if last is not None and last.query != batch.checkpoint.query_id():
            self._check_belongs(last, batch.id, batch.checkpoint)

    def learn(self, batch: Batch, marker: Marker) -> None:
        """Accepts offsets that an operator has set to 0, all of them: the batch comes as it is."""
        del marker
        self._offsets.expect_staged_commit(self._commit_partition)
        # kafka-consumer-groups.sh sets no other offset in a topic without records.
        held, offsets = self._held(batch).ends.keys(), self._offsets
        if offsets.by_hand >= held and not any(offsets.committed[p] for p in held):
            self._offsets.accept(dict.fromkeys(held, first_position(batch.id)))
            warn(
                logger,
                "EOS63",
                "group %s: the offsets of %s were set by hand, so batch %d is written as it comes",
                self._group_id,
                self._topic.name,
                batch.id,
            )

    # One batch --------------------------------------------------------------------------------

    def plan(self, batch: Batch) -> PlannedBatch:
        held, settings = self._held(batch), self._settings
        if (letters := settings.dead_letters) is not None:
            # A staged row has no position in a source.
            settings = replace(settings, dead_letters=replace(letters, positions=False))
        return PlannedBatch(batch, held, settings)

    def _held(self, batch: Batch) -> BatchRange:
        known = self._used_before(batch)
        return progress_range(self._topic.name, self._partitions, batch.id, known=known)

    def _used_before(self, batch: Batch) -> int:
        """How many progress partitions earlier batches have used; the others are new."""
        if 0 <= self._last < batch.id:
            return self._partitions
        return batch.checkpoint.marker().progress_partitions or self._partitions

    def initial(self, planned: PlannedBatch, evidence: Evidence) -> Positions:
        try:
            return evidence.initial_offsets(planned.range, self._offsets.committed)
        except OffsetsLostError as error:
            raise self._checks.lost(planned.batch.id, error) from error

    def prepare(self, planned: PlannedBatch, marker: Marker) -> PlannedBatch:
        batch = planned.batch
        with batch.clock.step("stage"):
            files, found = _files(batch), self._find(planned.range, batch.checkpoint)
            # Partitions that are new in this batch stay new until its end is committed.
            used = self._used_before(batch)
            batch.checkpoint.set_marker(replace(marker, delivery=STAGED, progress_partitions=used))
            self._last = batch.id
            if found is not None:
                self._open(found, files)
                planned = replace(planned, staged=found, repeated=True)
            else:
                (name, rows), lost = self._sources.running(
                    batch, lambda: files.stage(batch.id, self._partitions - 1)
                )
                staged = self._commit(batch, files, name, rows)
                planned = replace(planned, staged=staged, lost=lost)
        return replace(planned, before=dict(self._offsets.committed))

    def _find(self, held: BatchRange, checkpoint: OffsetLog) -> StagedBatch | None:
        """The batch's staged commit, if an earlier run has made one."""
        offsets, checks = self._offsets, self._checks
        if self._commit_partition in offsets.foreign:
            raise checks.foreign(held.batch_id)
        last = offsets.known.staged.get(self._commit_partition)
        if last is not None:
            self._check_belongs(last, held.batch_id, checkpoint)
        checks.check_positions(last, held, offsets.committed)
        return last if last is not None and last.batch == held.batch_id else None

    def _check_belongs(self, last: StagedBatch, batch_id: int, checkpoint: OffsetLog) -> None:
        owners = self._offsets.known.owners.get(self._topic.name, ())
        self._checks.check_belongs(last, batch_id, checkpoint, owners)

    def _open(self, found: StagedBatch, files: StagedFiles) -> None:
        logger.info(
            "group %s: batch %d is staged already, in %s; its %d rows are written from there",
            self._group_id,
            found.batch,
            found.directory or "no file",
            found.rows,
        )
        if not files.open(found):
            raise self._checks.damaged(found, 0)

    def _commit(self, batch: Batch, files: StagedFiles, name: str, rows: int) -> StagedBatch:
        """Makes new files of the batch those that count, and opens them."""
        staged = StagedBatch(
            query=batch.checkpoint.query_id(),
            batch=batch.id,
            directory=name if rows else None,
            rows=rows,
            files=self._partitions - 1,
            fingerprint=batch.checkpoint.fingerprint(batch.id),
        )
        files.open(staged)
        self._offsets.stage(self._commit_partition, staged)
        # Nobody needs earlier files any more: the group has just accepted these.
        files.remove_old(batch.id)
        return staged

    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        """As many rows were read as were staged."""
        read = rows_read(outcomes)
        if planned.staged is not None and read != planned.staged.rows:
            raise self._checks.damaged(planned.staged, read)
        return planned

    def on_committed(self, planned: PlannedBatch) -> tuple[LostRecords, ...]:
        lost = self._replay(planned) if planned.repeated else ()
        # Only the target's cluster has the group.
        if self._start.source is self._start.target:
            with planned.batch.clock.step("commit_end"):
                self._positions.publish(self._topic.name, self._sources.ranges(planned.batch))
        return lost

    def renew(self) -> None:
        self._positions.renew()

    def _replay(self, planned: PlannedBatch) -> tuple[LostRecords, ...]:
        """Computes the state of a batch staged before, last of all: its source may be gone."""
        batch, found = planned.batch, planned.staged
        with batch.clock.step("stage"):
            rows, lost = self._sources.running(batch, _files(batch).replay, repeated=True)
        if found is not None and not lost and rows != found.rows:
            self._warn_of_other_rows(found, rows)
        return lost

    def _warn_of_other_rows(self, staged: StagedBatch, rows: int) -> None:
        warn(
            logger,
            "EOS61",
            "group %s: batch %d was computed again for the query's state and had %d rows, but "
            "its copy, which is what is written, has %d: the query is not deterministic, or "
            "its source has other records now (a compacted topic?). So state and output may "
            "differ from here on. If they must not, start over with another group_id and "
            "another checkpoint_location; and let sources keep records for longer than a query "
            "may be stopped (min.compaction.lag.ms)",
            self._group_id,
            staged.batch,
            rows,
            staged.rows,
        )


def _files(batch: Batch) -> StagedFiles:
    assert batch.files is not None  # noqa: S101 - the API stages such a query's batches
    return batch.files


def rows_read(outcomes: Sequence[JobOutcome]) -> int:
    """How many rows of the copy the tasks have read and committed, now or in an earlier attempt."""
    last = {p: part for outcome in outcomes for p, part in outcome.partitions.items()}
    return sum(part.rows + part.skipped + part.dead_letters for part in last.values())
