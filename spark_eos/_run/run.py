"""One run of a query, on the driver: from the first batch after its start to its end."""

# `Run.write` is the page to read first: with `spark_eos._progress.offsets`,
# `spark_eos._worker.task` and `spark_eos._worker.transaction` it is the whole guarantee.

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from spark_eos._batch.batch_report import BatchReport, batch_report
from spark_eos._batch.plan import Partitions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver import preflight
from spark_eos._driver.checkpoint_marker import DIRECT, STAGED, Marker
from spark_eos._driver.dead_letter_limit import DeadLetterLimit
from spark_eos._driver.membership import GroupMembership
from spark_eos._driver.open_transactions import OpenTransactions
from spark_eos._driver.replication import warn_of_replication
from spark_eos._driver.start import Start
from spark_eos._kafka.transactions import BY_ID
from spark_eos._progress.checks import log_lags
from spark_eos._progress.delivery import Batch, PlannedBatch, ProgressOf
from spark_eos._progress.missing import Evidence
from spark_eos._progress.offsets import GroupOffsets, Members
from spark_eos._progress.ownership import (
    changed_delivery,
    check_marker,
    deliveries_of,
    may_become_direct,
)
from spark_eos._progress.renewal import IdleRenewal
from spark_eos._run.attempts import TransactionSize, check_attempts, check_outcome
from spark_eos.errors import CheckpointError, ConfigurationError, FencedByNewerRunError

logger = logging.getLogger(__name__)


class Run:
    """Writes batches, each exactly once, until one fails or the query stops."""

    def __init__(
        self,
        run_id: str,
        start: Start,
        settings: WriterSettings,
        progress: ProgressOf,
        *,
        watch: Callable[[], bool],
        prepared_ms: int | None = None,
        asynchronous: bool = False,
        why: str = "",
    ) -> None:
        self.run_id = run_id
        self.leaving = False
        self._settings = settings
        self._group_id = settings.group_id
        self._start = start
        self._prepared_ms = prepared_ms
        self._asynchronous = asynchronous
        self._why = why
        self._membership = GroupMembership(
            start.target,
            settings.group_id,
            max_members=settings.limits.max_members,
            group_timeout_ms=settings.limits.group_timeout_ms,
            watch=watch,
            each_heartbeat=self._renew_if_due,
            at_end=self.leave,
        )
        self._transactions = OpenTransactions(start.target, settings)
        self._offsets = GroupOffsets(start.target, settings, self._membership, self._transactions)
        self._progress = progress(settings, start, self._offsets)
        self._renewal = IdleRenewal(settings, self._membership, self._offsets, self._progress)
        self._size = TransactionSize()
        self._version = 0
        self._begun = False
        self._ending = threading.Lock()
        self._sweeping = False

    # One batch --------------------------------------------------------------------------------

    def write(self, batch: Batch) -> BatchReport:
        """Writes one micro-batch exactly once."""
        # The group's offset moves past a record only in the transaction that holds its output. So
        # all who might still write are fenced before the offsets are read, and rows are written
        # from these offsets on.
        progress, offsets, step = self._progress, self._offsets, batch.clock.step
        with self._renewal.paused(), step("total"):
            # Fence and read, at the run's start and whenever the group has changed since: from
            # here on nobody else moves the offsets.
            if self._begun:
                with step("range"):
                    planned = progress.plan(batch)
            else:
                with step("start"):
                    planned = self._begin(batch)
            self._membership.check()
            offsets.refence_if_changed(planned.partitions)
            # Check: another run may have begun while this one was cut off, and may have left
            # offsets of another delivery or query.
            self._check_group(batch)
            if planned.range.ends.keys() - offsets.committed.keys():
                # This run has read the topics before, so these partitions are new in this batch.
                self._initialize(planned, batch.checkpoint.marker(), begun_now=True)
            # Refuse a range that would lose or repeat records; write the checkpoint's marker;
            # stage the rows in files, if that is the delivery.
            planned = progress.prepare(planned, self._new_marker(planned))
            # Write: rows and their offsets in the same transactions, in as many jobs as it takes.
            outcomes, members = self._write_rows(planned)
            # Commit the end, past the records that have no rows.
            with step("commit_end"):
                planned = progress.check_written(planned, outcomes)
                offsets.commit_end(planned.range.ends)
            planned = replace(planned, lost=planned.lost + progress.on_committed(planned))
        return batch_report(
            self._settings,
            batch.checkpoint.query_id(),
            self.run_id,
            self._version,
            planned.range,
            planned.sources,
            outcomes,
            members,
            batch.clock.milliseconds,
            planned.lost,
            progress.delivery,
        )

    def _begin(self, batch: Batch) -> PlannedBatch:
        """The run's first batch: fences all older runs, and learns what the offsets mean."""
        progress, offsets = self._progress, self._offsets
        marker = batch.checkpoint.marker()
        becomes_direct = may_become_direct(marker, self._group_id, progress.delivery, batch.id)
        if not becomes_direct:
            check_marker(marker, progress.delivery, self._why)
        partitions = progress.partitions_to_fence(batch)
        topics = offsets.topics(partitions, marker.topic_ids)
        # The cluster must support what is needed, and allow the settings.
        deadline = self._settings.group_deadline()
        self._version = preflight.check_cluster(self._start, self._settings, topics, deadline)
        warn_of_replication(self._start.target, self._settings.target_topics, deadline)
        preflight.warn_of_unknown_limits(self._start, self._settings, deadline)
        # Check ownership before fencing: a mistyped group_id must not stop another query.
        offsets.refresh_metadata()
        self._check_group(batch)
        # Fence all older runs, end what they left open, and read the offsets.
        # By name, brokers take them for whichever topic has the name: the run checks its id.
        offsets.join(topics, partitions, by_name=self._version < BY_ID)
        # Learn what they mean, and refuse what is suspect.
        self._check_group(batch)
        if becomes_direct:
            marker = self._without_staged()
        progress.learn(batch, marker)
        planned = progress.plan(batch)
        offsets.restrict_to(planned.partitions)
        offsets.refuse_suspects()
        # Give each partition an offset that is known to be this query's; refuse those lost. Nothing
        # of a batch is written yet that Spark has begun since this run was prepared.
        offsets.set_owner(progress.owner(batch))
        begun_now = (
            self._prepared_ms is not None
            and batch.checkpoint.began_ms(batch.id) >= self._prepared_ms
        )
        self._initialize(planned, marker, begun_now=begun_now)
        self._begun = True
        logger.info(
            "group %s: %d partitions are assigned to this run; TxnOffsetCommit up to v%d",
            self._group_id,
            len(planned.partitions),
            self._version,
        )
        return planned

    def _write_rows(self, planned: PlannedBatch) -> tuple[list[JobOutcome], Members]:
        """Writes the rows; returns each attempt's outcome, and each partition's member."""
        progress, offsets, batch = self._progress, self._offsets, planned.batch
        limit = DeadLetterLimit(planned.settings, planned.range, planned.before, planned.rows)
        outcomes: list[JobOutcome] = []
        # The partitions that a further attempt is to write; None for all of them.
        only: Partitions | None = None
        members = offsets.members()
        # Of a staged batch without rows there is nothing to read; None if they were not counted.
        while planned.rows != 0:
            with batch.clock.step("plan"):
                plan = limit.plan(offsets.plan(planned.range), only, outcomes)
            with batch.clock.step("job"), progress.reading(planned):
                sized = replace(planned, settings=self._size.of(planned.settings))
                outcome = batch.rows(sized, plan, only)
            outcomes.append(outcome)
            offsets.note_committed(outcome)
            check_outcome(planned, outcomes, only, offsets)
            limit.check(outcomes)
            only = outcome.unwritten
            if only or outcome.retried:
                with batch.clock.step("fence"):
                    # The job is over, so a task that still writes is one that Spark has repeated
                    # or given up: it loses its members and its transaction before the offsets are
                    # read, and before anything is written again.
                    offsets.fence()
                members = offsets.members()
            if not only:
                break
            check_attempts(planned, outcomes, offsets)
            if outcome.too_slow:
                self._size.shrink(planned.settings)
        self._size.after(outcomes)
        limit.log(outcomes)
        return outcomes, members

    # Parts of it ------------------------------------------------------------------------------

    def _check_group(self, batch: Batch) -> None:
        known = self._offsets.known
        try:
            self._progress.check_offsets(known, self._why)
            self._progress.check_owner(batch)
        except (CheckpointError, ConfigurationError):
            # The checkpoint begins at the group's offsets by now, unless these are of staged files.
            # With the marker it is refused with another group, and once they are deleted.
            noted, marker = next(iter(deliveries_of(known)), DIRECT), batch.checkpoint.marker()
            if noted != STAGED and batch.id == 0 and marker.group_id is None:
                batch.checkpoint.set_marker(Marker(self._group_id, {}, noted))
            raise

    def _without_staged(self) -> Marker:
        """The marker of a query that was staged and has not written, which is none."""
        delivery = self._progress.delivery
        if not self._offsets.nothing_staged(self._progress.progress_topic):
            raise changed_delivery(STAGED, delivery)
        logger.info(
            "group %s: delivery=%s from now on; it was %s, and no batch has been staged yet",
            self._group_id,
            delivery,
            STAGED,
        )
        return Marker()

    def _initialize(self, planned: PlannedBatch, marker: Marker, *, begun_now: bool) -> None:
        """Gives partitions without an offset their first one; refuses those that had one."""
        offsets, ids = self._offsets, self._membership.topic_ids
        evidence = Evidence(self._group_id, offsets.known, ids, marker, begun_now, offsets.sources)
        initial = self._progress.initial(planned, evidence)
        evidence.warn_of_restored(planned.range, initial)
        self._offsets.initialize(initial)

    def _new_marker(self, planned: PlannedBatch) -> Marker:
        """What the checkpoint is to say of the group before any row is written."""
        held, committed = planned.range, self._offsets.committed
        noted = planned.batch.checkpoint.marker().checkpoint_may_lag
        lags = noted and log_lags(held.starts, committed, held.ends)
        ids = dict(self._membership.topic_ids)
        return Marker(self._group_id, ids, checkpoint_may_lag=self._asynchronous or lags)

    def _renew_if_due(self) -> None:
        self._renewal.renew_if_due()

    # The end ----------------------------------------------------------------------------------

    def newer_run(self) -> FencedByNewerRunError | None:
        """The error of the newer run that has the group by now, if any; asks the brokers."""
        return self._membership.newer_run()

    def leave(self, task_kill_grace_s: float = 0.0, *, background: bool = False) -> None:
        """Ends the run cleanly: its members leave the group. May be called again."""
        sweeps = False
        self.leaving = True
        try:
            # Does nothing after a batch that failed, whose tasks may still be committing.
            self._renewal.renew()
            self._membership.leave()
            with self._ending:
                sweeps = bool(task_kill_grace_s) and not self._sweeping
                self._sweeping = self._sweeping or sweeps
            if sweeps:
                name = f"spark-eos-sweep-{self._group_id}"
                thread = threading.Thread(
                    target=self._sweep, args=(task_kill_grace_s,), name=name, daemon=False
                )
                thread.start()
                if not background:
                    thread.join()
        finally:
            if not self._sweeping:
                self._start.close()
            self.leaving = False

    def _sweep(self, seconds: float) -> None:
        try:
            self._transactions.end_after_stop(seconds)
        finally:
            self._start.close()

    def abandon(self) -> None:
        """Ends the run without leaving the group, so that a newer run takes its members over."""
        self._membership.abandon()
        self._start.close()
