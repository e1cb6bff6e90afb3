"""A query's progress: recovered before a batch, planned, taken from tasks, and finished."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from spark_eos._batch.plan import BatchPlan, Partitions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._driver import offset_renewal, preflight
from spark_eos._driver.changed_delivery import (
    changed_delivery,
    check_marker,
    check_offsets,
    delivery_of,
    may_become_direct,
)
from spark_eos._driver.checkpoint_marker import STAGED, Marker
from spark_eos._driver.membership import GroupMembership
from spark_eos._driver.replication import warn_of_replication
from spark_eos._kafka.offset_metadata import SuspectRange
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import BY_ID
from spark_eos._progress import checks
from spark_eos._progress.missing import Evidence
from spark_eos._progress.strategy import Batch, Members, Query, Strategy, Work
from spark_eos.errors import CheckpointError, ConfigurationError, warn

logger = logging.getLogger(__name__)


class Progress:
    """Keeps the order: fence, end open transactions, read, check, write, commit the end.

    Tasks see partitions by the names of `Work.range`; only here they are translated to the group's.
    """

    def __init__(
        self,
        query: Query,
        strategy: Strategy,
        membership: GroupMembership,
        prepared_ms: int | None,
        *,
        asynchronous: bool,
        why: str,
    ) -> None:
        self._query = query
        self._offsets = query.offsets
        self._strategy = strategy
        self._membership = membership
        self._prepared_ms = prepared_ms
        self._asynchronous = asynchronous
        self._why = why
        self._started = False
        self._group_id = query.settings.group_id
        self.delivery = strategy.delivery
        self.version = 0

    # Recover ----------------------------------------------------------------------------------

    def recover(self, batch: Batch) -> Work:
        """The batch, once its rows may be written: nobody else moves the offsets any more."""
        if self._started:
            with batch.clock.step("range"):
                work = self._strategy.work(batch)
        else:
            with batch.clock.step("start"):
                work = self._start(batch)
        self._membership.check()
        self._offsets.keep_up(work.held.ends)
        # While this run was cut off, another may have begun, and left other offsets.
        self._check_group(batch)
        marker = batch.checkpoint.marker()
        if work.held.ends.keys() - self._offsets.state.committed.keys():
            self._initialize(work, marker, begun_now=True)
        ids = dict(self._membership.topic_ids)
        lags = self._asynchronous or (marker.log_may_lag and self._log_lags(work))
        return self._strategy.prepare(work, Marker(self._group_id, ids, log_may_lag=lags))

    def _start(self, batch: Batch) -> Work:
        # 1. Check that the cluster supports what is needed, and allows the settings.
        query, offsets, strategy = self._query, self._offsets, self._strategy
        marker = batch.checkpoint.marker()
        was_staged = may_become_direct(marker, self._group_id, self.delivery, batch.id)
        if not was_staged:
            check_marker(marker, self.delivery, self._why)
        partitions = strategy.first(batch)
        topics = offsets.topics(partitions, marker.topic_ids)
        start, deadline = query.start, query.deadline()
        self.version = preflight.check_cluster(start, query.settings, topics, deadline)
        warn_of_replication(start.target, query.settings.target_topics, deadline)
        preflight.warn_of_unknown_limits(start, query.settings, deadline)
        # A group that is used by mistake may be that of a running query, which is to go on.
        offsets.look()
        self._check_group(batch)
        # 2. Fence all older runs, end what they left open, and read the offsets.
        offsets.join(topics, partitions, by_name=self.version < BY_ID)
        # 3. Learn what they mean, and refuse what is suspect or was lost.
        self._check_group(batch)
        if was_staged:
            marker = self._without_staged()
        strategy.learn(batch, marker)
        work = strategy.work(batch)
        offsets.narrow(work.held.ends)
        offsets.refuse_suspects()
        begun_now = self._prepared_ms is not None and batch.began_ms >= self._prepared_ms
        # 4. From here on no partition is without an offset, and all are this query's.
        offsets.claim(query.owner(batch))
        self._initialize(work, marker, begun_now=begun_now)
        self._started = True
        logger.info(
            "group %s: %d source partitions are assigned to this run; TxnOffsetCommit up to v%d",
            self._group_id,
            len(work.held.ends),
            self.version,
        )
        return work

    def _without_staged(self) -> Marker:
        """The marker of a query that was staged and has not written, which is none."""
        if not self._offsets.nothing_staged(self._strategy.progress_topic):
            raise changed_delivery(STAGED, self.delivery)
        logger.info(
            "group %s: delivery=%s from now on; it was %s, and no batch has been staged yet",
            self._group_id,
            self.delivery,
            STAGED,
        )
        return Marker()

    def _initialize(self, work: Work, marker: Marker, *, begun_now: bool) -> None:
        state, ids = self._offsets.state, self._membership.topic_ids
        evidence = Evidence(self._group_id, state.known, ids, marker, begun_now, state.pairs)
        initial = work.initial(evidence)
        # Where a partition begins, there is nothing to restore.
        restored = {p for p, offset in initial.items() if offset and p in work.held.starts}
        for partition in sorted(restored) if work.batch.id else ():
            warn(
                logger,
                "EOS51",
                "group %s: the offset of %s was lost (expired or deleted) and is restored from "
                "the checkpoint: %d. If the query may be stopped for this long, raise the "
                "brokers' offsets.retention.minutes",
                self._group_id,
                state.pairs.name(partition),
                initial[partition],
            )
        self._offsets.initialize(initial)

    def _check_group(self, batch: Batch) -> None:
        known = self._offsets.state.known
        try:
            check_offsets(known, self.delivery, self._strategy.progress_topic, self._why)
            self._strategy.check_owner(batch)
        except (CheckpointError, ConfigurationError):
            # The checkpoint begins at the group's offsets by now, unless these are of staged files.
            # With the marker it is refused with another group, and once they are deleted.
            noted, marker = delivery_of(known), batch.checkpoint.marker()
            if noted != STAGED and batch.id == 0 and marker.group_id is None:
                batch.checkpoint.set_marker(Marker(self._group_id, {}, noted))
            raise

    def _log_lags(self, work: Work) -> bool:
        committed = self._offsets.state.committed
        return checks.log_lags(work.held.starts, committed, work.held.ends)

    # Plan and take ----------------------------------------------------------------------------

    def plan(self, work: Work) -> BatchPlan:
        """What tasks are to do with each partition that they see."""
        planned = self._offsets.state.pairs.task_plan(self._offsets.plan(work.held))
        return {p: part for p, part in planned.items() if p in work.range.ends}

    def members(self) -> Members:
        """The member that each partition is assigned to, by the partitions that tasks see."""
        return self._offsets.state.pairs.by_source(self._membership.identities())

    def take(self, outcome: JobOutcome) -> None:
        """Takes note of what tasks have committed."""
        found = outcome.partitions.items()
        moved = {p: o.next_offset for p, o in found if o.next_offset is not None}
        self._offsets.written(self._offsets.state.pairs.by_progress(moved))

    def fence(self) -> None:
        """Fences whoever may still write, then reads the offsets."""
        self._offsets.fence()

    def mark(self, work: Work, partitions: Partitions) -> dict[str, SuspectRange]:
        """Marks what may not be written of partitions whose rows were out of order, by name."""
        pairs = self._offsets.state.pairs
        found = self._offsets.mark(work.held.starts, {pairs.progress(p) for p in partitions})
        return {pairs.name(partition): found[partition] for partition in sorted(found)}

    # Finish -----------------------------------------------------------------------------------

    def finish(self, work: Work, outcomes: Sequence[JobOutcome]) -> Work:
        """Commits the batch's end, all of whose rows are written."""
        with work.batch.clock.step("commit_end"):
            work = self._strategy.check(work, outcomes)
            if self._offsets.older_than(offset_renewal.SECONDS):
                self._offsets.commit_all(work.held.ends)
            else:
                self._offsets.commit(work.held.ends)
        return replace(work, lost=work.lost + work.after_end())

    # Words ------------------------------------------------------------------------------------

    def name(self, partition: TopicPartition) -> str:
        """How to call a partition that tasks see."""
        pairs = self._offsets.state.pairs
        return pairs.name(pairs.progress(partition))

    def command(self, partitions: Partitions) -> str:
        """How an operator sets the offsets of partitions that tasks see."""
        pairs = self._offsets.state.pairs
        return checks.command(self._group_id, pairs, [pairs.progress(p) for p in partitions])
