"""One run of a query, on the driver: from the first batch after a start to the run's end."""

# Start reading at `Run.write`.

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from spark_eos._batch_report import BatchReport, batch_report
from spark_eos._checks import preflight
from spark_eos._checks.dead_letter_limit import DeadLetterLimit
from spark_eos._checks.open_transactions import OpenTransactions
from spark_eos._checks.replication import warn_of_replication
from spark_eos._checks.retention import RetentionWarning
from spark_eos._checks.start import Start
from spark_eos._exactly_once.delivery import Batch, PlannedBatch, RunDelivery
from spark_eos._exactly_once.members import GroupMembership
from spark_eos._exactly_once.offsets import GroupOffsets
from spark_eos._kafka.transactions import BY_ID
from spark_eos._worker.plan import BatchPlan, Partitions
from spark_eos._worker.task_report import JobOutcome
from spark_eos._worker.transaction_size import FULL
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import (
    FencedByNewerRunError,
    SparkEosError,
    WriteError,
    warn,
)

logger = logging.getLogger(__name__)

# Seconds that renewing the offsets between two heartbeats may take; well below a member's session
# timeout.
_BETWEEN_HEARTBEATS: Final = 5.0


class Run:
    """Writes batches, each exactly once, until one fails or the query stops."""

    def __init__(
        self,
        run_id: str,
        start: Start,
        settings: WriterSettings,
        delivery_of: Callable[[GroupOffsets], RunDelivery],
        *,
        watch: Callable[[], bool],
        begun_before: int | None = None,
    ) -> None:
        self.run_id = run_id
        self.leaving = False
        self._settings = settings
        self._group_id = settings.group_id
        self._start = start
        # The last batch that Spark had begun before the query started; -1 if none, None if unknown.
        self._begun_before = begun_before
        self._membership = GroupMembership(
            start.target,
            settings.group_id,
            group_timeout_ms=settings.limits.group_timeout_ms,
            watch=watch,
            each_heartbeat=self._renew_if_due,
            at_end=self.leave,
        )
        self._transactions = OpenTransactions(start.target, settings)
        self._offsets = GroupOffsets(start.target, settings, self._membership, self._transactions)
        self._delivery = delivery_of(self._offsets)
        # Held while a batch, or a renewal between batches, commits the group's offsets.
        self._committing = threading.Lock()
        # True if the last batch ended well, so that none of its tasks is still committing.
        self._idle = False
        self._sizes = _TransactionSizes()
        self._retention = RetentionWarning(settings.group_id)
        self._version = 0
        self._begun = False
        self._ending = threading.Lock()
        self._sweeping = False

    # One batch --------------------------------------------------------------------------------

    def write(self, batch: Batch) -> BatchReport:
        """Write one micro-batch exactly once."""
        # The group's committed offset moves past a record only in the transaction that holds the
        # record's output. So the run fences every task that might still write, then reads the
        # committed offsets, and then writes rows from these offsets on.
        delivery, offsets, step = self._delivery, self._offsets, batch.clock.step
        with self._committing, step("total"):
            self._idle = False
            # Fence and read the offsets at the run's start, and again whenever the group has
            # changed. From here on, nobody else moves the offsets.
            if self._begun:
                with step("range"):
                    planned = delivery.plan(batch)
            else:
                with step("start"):
                    planned = self._begin(batch)
            self._membership.check()
            offsets.refence_if_changed(planned.partitions)
            # While this run was cut off, another run may have used the group, and left offsets of
            # another delivery or query.
            delivery.check_group(batch)
            if planned.range.ends.keys() - offsets.committed.keys():
                # This run has read the topics before, so these partitions are new in this batch.
                offsets.initialize(delivery.initial_offsets(planned, begun_now=True))
            # Refuse a range that would lose or repeat records; write the checkpoint's marker; stage
            # the rows in files if the delivery is staged.
            planned = delivery.prepare(planned)
            # Write the rows and their offsets in the same transactions, with as many Spark jobs as
            # needed.
            outcomes, plan = self._write_rows(planned)
            # Commit the batch's end, to move past records that produced no rows.
            with step("commit_end"):
                planned = delivery.check_written(planned, outcomes)
                offsets.commit_end(planned.range.ends)
            planned = replace(planned, lost=planned.lost + delivery.on_committed(planned))
            self._idle = True
        return batch_report(
            self._settings,
            batch.checkpoint.query_id(),
            self.run_id,
            self._version,
            planned.range,
            planned.sources,
            outcomes,
            plan,
            batch.clock.milliseconds,
            planned.lost,
            delivery.name,
        )

    def _begin(self, batch: Batch) -> PlannedBatch:
        """Fence all older runs, learn what the offsets mean, and return the planned first batch."""
        delivery, offsets = self._delivery, self._offsets
        delivery.check_checkpoint(batch)
        partitions = delivery.partitions_to_fence(batch)
        topics = offsets.topics(partitions, batch.checkpoint.markers.read().topic_ids)
        # The cluster must support the requests that the run needs, and allow the settings.
        deadline = self._settings.group_deadline()
        self._version = preflight.check_cluster(self._start, self._settings, topics, deadline)
        warn_of_replication(self._start.target, self._settings.target_topics, deadline)
        preflight.warn_of_unknown_limits(self._start, self._settings, deadline)
        # Check ownership before fencing: a mistyped group_id must not stop another query.
        offsets.refresh_metadata()
        delivery.check_group(batch)
        # Fence all older runs, end the transactions that they left open, and read the offsets.
        # Brokers without commits by topic id accept offsets for any topic that has the name, so the
        # run checks the topic's id itself.
        offsets.join(topics, partitions, by_name=self._version < BY_ID)
        # Learn what the offsets mean, and refuse suspect ranges.
        delivery.check_group(batch)
        delivery.learn(batch)
        planned = delivery.plan(batch)
        offsets.restrict_to(planned.partitions)
        offsets.refuse_suspects()
        # Commit an offset for each partition, with a text that names this query as the owner;
        # refuse lost offsets. If no earlier run has begun the batch, none of its rows are written.
        offsets.set_owner(delivery.owner(batch))
        begun_now = self._begun_before is not None and batch.id > self._begun_before
        offsets.initialize(delivery.initial_offsets(planned, begun_now=begun_now))
        self._begun = True
        logger.info(
            "group %s: %d partitions are assigned to this run; TxnOffsetCommit up to v%d",
            self._group_id,
            len(planned.partitions),
            self._version,
        )
        return planned

    def _write_rows(self, planned: PlannedBatch) -> tuple[list[JobOutcome], BatchPlan]:
        """Write the rows; return each attempt's outcome, and the last attempt's plan."""
        delivery, offsets, batch = self._delivery, self._offsets, planned.batch
        limit = DeadLetterLimit(planned.settings, planned.range, planned.before, planned.rows)
        outcomes: list[JobOutcome] = []
        with batch.clock.step("plan"):
            plan = offsets.plan(planned.range)
        if planned.rows == 0:  # a staged batch; None means that the rows were not counted
            return outcomes, plan
        # The partitions for the next attempt to write; None means all of them.
        only: Partitions | None = None
        while True:
            limited = limit.plan(plan, only, outcomes)
            with batch.clock.step("job"):
                sized = replace(planned, size=self._sizes.size)
                outcome = delivery.write_rows(sized, limited, only)
            outcomes.append(outcome)
            offsets.note_committed(outcome)
            _check_outcome(planned, outcomes, only, offsets)
            limit.check(outcomes)
            only = outcome.unwritten
            if only or outcome.retried:
                with batch.clock.step("fence"):
                    # The job is over, so Spark has already repeated or given up on any task attempt
                    # that is still writing. Fence the attempt's member and end its transactions
                    # before reading the offsets and writing rows again.
                    offsets.fence()
            if not only:
                break
            _check_attempts(planned, outcomes, offsets)
            if outcome.too_slow:
                self._sizes.shrink(planned.settings, outcome)
            with batch.clock.step("plan"):
                plan = offsets.plan(planned.range)
        self._sizes.after(outcomes)
        self._retention.after(outcomes)
        limit.log(outcomes)
        return outcomes, plan

    # Between batches --------------------------------------------------------------------------

    def _renew_if_due(self) -> None:
        """Renew the offsets if they might expire; called after each heartbeat."""
        if self._offsets.overdue:
            self._renew()

    def _renew(self) -> None:
        """Renew the offsets unless a batch is in progress; failures are only logged."""
        if not self._committing.acquire(blocking=False):
            return
        try:
            if self._idle and not self._membership.ended:
                self._offsets.renew(self._settings.group_deadline(at_most=_BETWEEN_HEARTBEATS))
                self._delivery.renew()
        except Exception as error:  # noqa: BLE001 - heartbeats must go on
            logger.info("group %s: offsets are not renewed: %s", self._group_id, error)
        finally:
            self._committing.release()

    # The end ----------------------------------------------------------------------------------

    def newer_run(self) -> FencedByNewerRunError | None:
        """Ask the brokers whether a newer run has taken over; return the error if so, else None."""
        return self._membership.newer_run()

    def leave(self, task_kill_grace_s: float = 0.0, *, background: bool = False) -> None:
        """End the run cleanly: its member leaves the group. May be called again."""
        sweeps = False
        self.leaving = True
        try:
            self._delivery.close()
            # This does nothing after a failed batch, whose tasks may still be committing.
            self._renew()
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
        """End the run without leaving the group, so that a newer run can take over its member."""
        self._membership.abandon()
        self._start.close()


def _check_outcome(
    planned: PlannedBatch,
    outcomes: Sequence[JobOutcome],
    only: Partitions | None,
    offsets: GroupOffsets,
) -> None:
    """Raise an error if no further attempt can help; ``only`` has the last attempt's partitions."""
    outcome, what = outcomes[-1], _named(planned)
    if outcome.failed:
        raise WriteError(f"{what}: {outcome.reason}{_mark(planned, outcome, offsets)}")
    if gone := sorted({*(only or ())} - outcome.partitions.keys()):
        raise WriteError(
            f"{what}: source {offsets.name(gone[0])} had rows in attempt "
            f"{len(outcomes) - 1} and has none in attempt {len(outcomes)}, so these rows are not "
            "written: the query must produce the same rows from the same records every time. If "
            "the records were deleted or compacted in the meantime, start the query again"
        )


def _check_attempts(
    planned: PlannedBatch, outcomes: Sequence[JobOutcome], offsets: GroupOffsets
) -> None:
    """Raise an error if the batch has no attempts left."""
    outcome = outcomes[-1]
    unwritten = outcome.unwritten
    # Three kinds of attempts don't count, because none of them can repeat forever: attempts that
    # only redistribute the allowed dead letters, a first attempt in which tasks may have deferred
    # dead letters, and attempts whose transactions had grown too large.
    counted = sum(
        not attempt.outgrown
        and not (attempt.over_limit and (attempt.committed_anything or attempt is outcomes[0]))
        for attempt in outcomes
    )
    if counted >= planned.settings.limits.max_attempts:
        raise WriteError(
            f"{_named(planned)}: {len(unwritten)} source partitions are not written after "
            f"{len(outcomes)} attempts (limits.max_attempts); the first is "
            f"{offsets.name(unwritten[0])}: {outcome.reason}"
        )
    logger.info(
        "batch %d of group %s: attempt %d for %d source partitions: %s",
        planned.batch.id,
        planned.settings.group_id,
        len(outcomes) + 1,
        len(unwritten),
        outcome.reason,
    )


def _named(planned: PlannedBatch) -> str:
    return f"batch {planned.batch.id} of group {planned.settings.group_id!r}"


def _mark(planned: PlannedBatch, outcome: JobOutcome, offsets: GroupOffsets) -> str:
    """Mark ranges whose rows came out of order, so that later runs refuse them; return advice."""
    if not outcome.out_of_order:
        return ""
    command = offsets.command(outcome.out_of_order)
    try:
        marked = offsets.mark(planned.range.starts, outcome.out_of_order)
    except SparkEosError as error:
        named = ", ".join(map(offsets.name, sorted(outcome.out_of_order)))
        return (
            f". Rows of {named} from this batch may be missing although later rows are written, "
            f"and this could not be noted in the group's offsets: {error.text}. Set the offsets "
            f"of {named} yourself before the next start ({command})"
        )
    ranges = "; ".join(f"{name} offsets {s.first} to {s.after - 1}" for name, s in marked.items())
    return ranges and (
        f". Some of these rows may be missing although later rows are written: {ranges}. This is "
        "noted in the group's offsets, and no query of the group starts until you set the offset "
        f"({command}): to the first offset of the range, to write all its rows again, or past the "
        "last offset, to continue without the missing rows"
    )


class _TransactionSizes:
    """Makes a run's transactions smaller after some took too long, and gradually larger again."""

    def __init__(self) -> None:
        self.size = FULL

    def shrink(self, settings: WriterSettings, outcome: JobOutcome) -> None:
        """Make transactions smaller, down to a single row."""
        most = settings.transactions
        self.size = self.size.shrunk(most, outgrown=outcome.outgrown)
        limits = self.size.limits(most)
        warn(
            logger,
            "EOS54",
            "group %s: transactions took longer than transactions.timeout_ms=%d and are smaller "
            "from now on: at most %d records, %d bytes, %d ms. They grow again once they "
            "finish well within that time. If this happens often, raise transactions.timeout_ms",
            settings.group_id,
            limits.timeout_ms,
            limits.max_records,
            limits.max_bytes,
            limits.max_ms,
        )

    def after(self, outcomes: Sequence[JobOutcome]) -> None:
        """Make transactions larger again after a batch that finished in time."""
        if outcomes and not any(outcome.too_slow for outcome in outcomes):
            self.size = self.size.after_batch()
