"""Direct: a source partition's own offset in the group is its progress."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from spark_eos._batch.batch_report import LostRecords
from spark_eos._batch.plan import Partitions, Positions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.checkpoint_marker import DIRECT, Marker
from spark_eos._driver.data_loss_check import DataLossCheck, deleted_meanwhile
from spark_eos._driver.start import Start
from spark_eos._kafka.cluster import by_topic
from spark_eos._kafka.list_offsets import FirstOffsets, end_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._progress.checks import check_no_gap, check_not_cut
from spark_eos._progress.delivery import Batch, PlannedBatch, Progress
from spark_eos._progress.missing import Evidence
from spark_eos._progress.offsets import GroupOffsets
from spark_eos._progress.ownership import check_owner, owners_of, ownership_change
from spark_eos.errors import warn

logger = logging.getLogger(__name__)


class DirectProgress(Progress):
    delivery = DIRECT

    def __init__(
        self,
        settings: WriterSettings,
        start: Start,
        offsets: GroupOffsets,
        progress_topic: str | None = None,
    ) -> None:
        super().__init__(settings, start, offsets)
        self.progress_topic = progress_topic
        self._data_loss = DataLossCheck(start.source, settings)

    def partitions_to_fence(self, batch: Batch) -> Partitions:
        return batch.source.ends.keys()

    def check_owner(self, batch: Batch) -> None:
        offsets, marker = self._offsets, batch.checkpoint.marker()
        check_owner(
            self._group_id,
            offsets.known.owner or self.owner(batch),
            offsets.known,
            offsets.sources,
            self._read(batch),
            self._settings.moved_from,
            begun_with=marker.group_id if marker.topic_ids else None,
        )

    def learn(self, batch: Batch, marker: Marker) -> None:
        """Says so if the query continues from offsets that its checkpoint knows nothing of."""
        offsets, read = self._offsets, self._read(batch)
        begun = not offsets.known.partitions.isdisjoint(read)
        owners = owners_of(offsets.known, read)
        what = ownership_change(
            self.owner(batch),
            owners,
            # A run that was refused the group has left a marker.
            new=begun and batch.id == 0 and (bool(owners) or marker.group_id is None),
        )
        if not what:
            return
        left, done = self._left(batch.source.ends.keys())
        warn(
            logger,
            "EOS66",
            "group %s: %s. The query continues from the group's offsets: up to %s source records "
            "are left to write, and up to %s before them are not written again. To write them all, "
            "use another group_id and another checkpoint_location",
            self._group_id,
            what,
            f"{left:,}",
            f"{done:,}",
        )

    def _left(self, read: Partitions) -> tuple[int, int]:
        """How many offsets of some source partitions are not committed, and how many are."""
        topics = {topic for topic, _ in read}
        connections, deadline = self._start.source, self._settings.group_deadline()
        starts = FirstOffsets(connections).of(read, deadline)
        ends = end_offsets(connections, topics, deadline, needed=read)
        committed = self._of_source(self._offsets.committed)
        left = done = 0
        for partition, start in starts.items():
            at = max(start, committed.get(partition, start))
            done += at - start
            if end := ends[partition]:
                left += max(0, end.last_stable - at)
        return left, done

    def _read(self, batch: Batch) -> set[TopicPartition]:
        """Return the group's partitions of what a batch reads, as far as any stand for it."""
        return set(map(self._offsets.sources.partition, batch.source.ends))

    def plan(self, batch: Batch) -> PlannedBatch:
        return PlannedBatch(batch, batch.source, self._settings)

    def initial(self, planned: PlannedBatch, evidence: Evidence) -> Positions:
        return evidence.initial_offsets(planned.range, self._offsets.committed)

    def prepare(self, planned: PlannedBatch, marker: Marker) -> PlannedBatch:
        offsets, batch = self._offsets, planned.batch
        check_not_cut(self._group_id, planned.range, offsets.sources)
        check_no_gap(self._group_id, planned.range, offsets.committed, offsets.sources)
        batch.checkpoint.set_marker(self._marker(planned, marker))
        with batch.clock.step("range"):
            lost = self._lost(batch, offsets.committed)
            self._data_loss.warn(batch.id, lost)
        return replace(planned, before=offsets.committed, lost=lost)

    def reading(self, planned: PlannedBatch) -> AbstractContextManager[object]:
        batch = planned.batch
        return self._data_loss.explaining(lambda: self._lost(batch, self._offsets.committed))

    def _of_source(self, committed: Positions) -> Positions:
        source = self._offsets.sources.source
        return {source(partition): offset for partition, offset in committed.items()}

    def _lost(self, batch: Batch, committed: Positions) -> tuple[LostRecords, ...]:
        sources = self._offsets.sources
        return self._data_loss.lost(batch.source, self._of_source(committed), sources)

    def _marker(self, planned: PlannedBatch, marker: Marker) -> Marker:
        read = by_topic(planned.batch.source.ends).items()
        return replace(marker, partitions={topic: frozenset(own) for topic, own in read})

    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        del outcomes
        if self._settings.fail_on_data_loss:
            return planned
        more = deleted_meanwhile(planned.lost, self._lost(planned.batch, planned.before))
        self._data_loss.warn(planned.batch.id, more)
        return replace(planned, lost=planned.lost + more)
