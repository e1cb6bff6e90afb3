"""Own offsets: a source partition's own offset in the group is its progress (direct)."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace

from spark_eos._batch.data_loss import LostRecords, deleted_meanwhile
from spark_eos._batch.plan import BatchRange, Partitions, Positions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._driver.checkpoint_marker import DIRECT, Marker
from spark_eos._driver.data_loss_check import DataLossCheck
from spark_eos._kafka.cluster import by_topic
from spark_eos._kafka.list_offsets import FirstOffsets, end_offsets
from spark_eos._progress.checks import check_no_gap, check_not_cut
from spark_eos._progress.missing import Evidence, initial_offsets
from spark_eos._progress.owners import check_owner, owners_of, what_is_new
from spark_eos._progress.strategy import Batch, Query, Work
from spark_eos.errors import warn

logger = logging.getLogger(__name__)


class OwnOffsets:
    """See `spark_eos._progress.strategy.Strategy`."""

    delivery = DIRECT

    def __init__(self, query: Query, progress_topic: str | None = None) -> None:
        self.progress_topic = progress_topic
        self._query = query
        self._offsets = query.offsets
        self._data_loss = DataLossCheck(query.start.source, query.settings)

    def first(self, batch: Batch) -> Partitions:
        return batch.source.ends.keys()

    def check_owner(self, batch: Batch) -> None:
        state, settings = self._offsets.state, self._query.settings
        group, own, moved_from = settings.group_id, self._query.owner(batch), settings.moved_from
        marker, read = batch.checkpoint.marker(), batch.source.ends.keys()
        begun_with = marker.group_id if marker.topic_ids else None
        check_owner(group, own, state.known, state.pairs, read, moved_from, begun_with=begun_with)

    def learn(self, batch: Batch, marker: Marker) -> None:
        """Says so if the query continues from offsets that its checkpoint knows nothing of."""
        state, read = self._offsets.state, batch.source.ends.keys()
        begun = not state.known.partitions.isdisjoint(map(state.pairs.progress, read))
        owners = owners_of(state.known, state.pairs, read)
        what = what_is_new(
            self._query.owner(batch),
            owners,
            # A run that was refused the group has left a marker.
            new=begun and batch.id == 0 and (bool(owners) or marker.group_id is None),
        )
        if not what:
            return
        left, done = self._left(read)
        warn(
            logger,
            "EOS66",
            "group %s: %s. The query continues from the group's offsets: up to %s source records "
            "are left to write, and up to %s before them are not written again. To write them all, "
            "use another group_id and another checkpoint_location",
            self._query.settings.group_id,
            what,
            f"{left:,}",
            f"{done:,}",
        )

    def _left(self, read: Partitions) -> tuple[int, int]:
        """How many offsets of some source partitions are not committed, and how many are."""
        topics = {topic for topic, _ in read}
        connections, deadline = self._query.start.source, self._query.deadline()
        starts = FirstOffsets(connections).of(read, deadline)
        ends = end_offsets(connections, topics, deadline, needed=read)
        committed = self._committed()
        left = done = 0
        for partition, start in starts.items():
            at = max(start, committed.get(partition, start))
            done += at - start
            if end := ends[partition]:
                left += max(0, end.last_stable - at)
        return left, done

    def work(self, batch: Batch) -> Work:
        return self._work(batch, batch.source)

    def _work(self, batch: Batch, held: BatchRange) -> Work:
        return Work(
            batch,
            batch.source,
            held,
            self._query.settings,
            functools.partial(self._initial, held),
            lambda: self._data_loss.explaining(lambda: self._lost(batch, self._committed())),
        )

    def _initial(self, held: BatchRange, evidence: Evidence) -> Positions:
        return initial_offsets(held, self._offsets.state.committed, evidence)

    def prepare(self, work: Work, marker: Marker) -> Work:
        state, batch = self._offsets.state, work.batch
        group = self._query.settings.group_id
        check_not_cut(group, work.held, state.pairs)
        check_no_gap(group, work.held, state.committed, state.pairs)
        batch.checkpoint.set_marker(self._marker(work, marker))
        with batch.clock.step("range"):
            before = self._committed()
            lost = self._lost(batch, before)
            self._data_loss.warn(batch.id, lost)
        return replace(work, before=before, lost=lost)

    def _committed(self) -> Positions:
        return self._offsets.state.pairs.by_source(self._offsets.state.committed)

    def _lost(self, batch: Batch, committed: Positions) -> tuple[LostRecords, ...]:
        return self._data_loss.lost(batch.source, committed, self._offsets.state.pairs)

    def _marker(self, work: Work, marker: Marker) -> Marker:
        partitions = {topic: frozenset(own) for topic, own in by_topic(work.range.ends).items()}
        return replace(marker, partitions=partitions)

    def check(self, work: Work, outcomes: Sequence[JobOutcome]) -> Work:
        del outcomes
        if self._query.settings.fail_on_data_loss:
            return work
        more = deleted_meanwhile(work.lost, self._lost(work.batch, work.before))
        self._data_loss.warn(work.batch.id, more)
        return replace(work, lost=work.lost + more)
