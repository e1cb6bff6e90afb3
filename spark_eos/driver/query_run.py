"""One run of a query, on the driver: its start, and one batch in numbered steps."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from spark_eos.batch import data_loss, plan
from spark_eos.batch.batch_report import BatchReport, batch_report
from spark_eos.batch.data_loss import LostRecords, deleted_meanwhile
from spark_eos.batch.plan import BatchPlan, BatchRange
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.driver import offset_renewal, preflight
from spark_eos.driver.committed_offsets import CommittedOffsets
from spark_eos.driver.membership import GroupMembership
from spark_eos.driver.offset_log import Note, OffsetLog
from spark_eos.driver.replication import warn_of_single_replicas
from spark_eos.errors import RecordsLostError, SparkEosError, WriteError
from spark_eos.kafka import list_offsets
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.transactions import BY_ID, MemberIdentity

logger = logging.getLogger(__name__)

Partitions = Collection[tuple[str, int]]

# Seconds for what is done between heartbeats, well below a member's session.
_BETWEEN_BEATS = 5.0


class Job(Protocol):
    """Runs the batch's rows through tasks."""

    def __call__(
        self,
        settings: WriterSettings,
        batch: BatchRange,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        """Runs a Spark job for all rows, or ``only`` for those of some source partitions."""


class _Clock:
    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            spent = (time.monotonic() - started) * 1000
            self.milliseconds[name] = self.milliseconds.get(name, 0.0) + spent


class QueryRun:
    """A run: from the first batch after a start of the query to its end.

    Args:
        run_id: Spark's id of the run, or "" where it is not known.
        wire: connections, which the run closes at its end.
        settings: the writer's settings.
        offset_log: the query's checkpoint.
        max_members: at most so many group members.
        max_rounds: at most so many jobs for one batch.
        group_timeout_ms: milliseconds that each call to the group may take.
        watch: whether the query is still active; asked about once a second.
        prepared_ms: when the query was last known to have no batch in hand, in milliseconds since
            1970 by the clock of Spark's driver: what was begun later, this run began. None where
            that is not known.

    Attributes:
        leaving: whether its members are leaving just now.
    """

    def __init__(
        self,
        run_id: str,
        wire: Wire,
        settings: WriterSettings,
        offset_log: OffsetLog,
        *,
        max_members: int,
        max_rounds: int,
        group_timeout_ms: int,
        watch: Callable[[], bool],
        prepared_ms: int | None = None,
    ) -> None:
        self.run_id = run_id
        self._wire = wire
        self._settings = settings
        self._writer = settings
        self._offset_log = offset_log
        self._max_rounds = max_rounds
        self._group_timeout_ms = group_timeout_ms
        self._membership = GroupMembership(
            wire,
            settings.group_id,
            max_members=max_members,
            group_timeout_ms=group_timeout_ms,
            watch=watch,
            each_beat=self._renew_if_due,
            at_end=self.leave,
        )
        self._prepared_ms = prepared_ms
        # Held while a batch is in hand: its tasks commit offsets, which nobody else may then do.
        self.leaving = False
        self._busy = threading.Lock()
        self._finished: BatchRange | None = None
        self._renewed = 0.0
        self._leaders: dict[tuple[str, int], int] = {}
        self._offsets = CommittedOffsets(wire, settings, self._membership, group_timeout_ms)
        self._started = False
        self._cluster_version = 0
        self._ending = threading.Lock()
        self._sweeping = False

    def leave(self, tasks_outlive_stop: float = 0.0, *, aside: bool = False) -> None:
        """Ends the run cleanly: its members leave the group. May be called again.

        Args:
            tasks_outlive_stop: seconds for which tasks of a cancelled job may go on: what they
                leave open is ended.
            aside: whether that is done on a thread of its own, which the interpreter's exit waits
                for.
        """
        sweeps = False
        self.leaving = True
        try:
            # After a batch that has failed, tasks may still be committing.
            self._renew_between_batches()
            self._membership.leave()
            with self._ending:
                sweeps = bool(tasks_outlive_stop) and not self._sweeping
                self._sweeping = self._sweeping or sweeps
            if sweeps:
                name = f"spark-eos-sweep-{self._settings.group_id}"
                thread = threading.Thread(
                    target=self._sweep, args=(tasks_outlive_stop,), name=name, daemon=False
                )
                thread.start()
                if not aside:
                    thread.join()
        finally:
            if not self._sweeping:
                self._wire.close()
            self.leaving = False

    def _sweep(self, seconds: float) -> None:
        try:
            self._offsets.end_after_stop(seconds)
        finally:
            self._wire.close()

    def abandon(self) -> None:
        """Ends the run without leaving, for a newer one that takes its members over."""
        self._membership.abandon()
        self._wire.close()

    def writes(self) -> bool:
        """Whether a transaction of the query is open now.

        Raises:
            SparkEosError: the brokers do not say.
        """
        return bool(self._offsets.open_transactions())

    # The start --------------------------------------------------------------------------------

    def _start(self, batch: BatchRange) -> None:
        # 1. Does the cluster speak what is needed, and does it allow the settings?
        note = self._offset_log.note()
        topics = self._offsets.source_topics(batch.ends, note.topic_ids)
        deadline = Deadline(self._group_timeout_ms / 1000, "group_timeout_ms")
        version = preflight.check_cluster(self._wire, self._settings, topics, deadline)
        self._cluster_version = version
        self._offsets.commits_by_name = version < BY_ID
        warn_of_single_replicas(self._wire, self._settings.topic, deadline)
        # 2. and 3. Members taken over or joined, until all source partitions are theirs.
        self._membership.start(topics, batch.ends)
        # 4. and 5.
        self._offsets.end_and_fetch(batch)
        # 6. Offsets that were lost are told from those that never were; none is missing from here.
        self._offsets.learn()
        self._offsets.check_doubts(batch)
        began_now = (
            self._prepared_ms is not None
            and self._offset_log.began_ms(batch.batch_id) >= self._prepared_ms
        )
        self._offsets.anchor(batch, note, begun_now=began_now)
        self._renewed = time.monotonic()
        self._started = True
        logger.info(
            "group %s: %d source partitions are assigned to this run; TxnOffsetCommit up to v%d",
            self._settings.group_id,
            len(batch.ends),
            version,
        )

    # One batch --------------------------------------------------------------------------------

    def process(self, batch_id: int, job: Job) -> BatchReport:
        """Writes one micro-batch exactly once.

        Args:
            batch_id: Spark's number of the batch.
            job: runs its rows through tasks.

        Raises:
            SparkEosError: the batch is not written; what was committed of it is committed once
                and is skipped when the batch is repeated.
        """
        clock = _Clock()
        with self._busy, clock.step("total"):
            self._finished = None
            # 1. The batch's range, from the checkpoint.
            with clock.step("range"):
                batch = self._offset_log.batch_range(batch_id)
            if not self._started:
                with clock.step("start"):
                    self._start(batch)
            self._membership.check()
            # 2. Against what the group has committed.
            self._offsets.adopt_changes(batch)
            if batch.ends.keys() - self._offsets.committed.keys():
                self._offsets.anchor(batch, self._offset_log.note(), begun_now=True)
            plan.check_progress(self._settings.group_id, batch, self._offsets.committed)
            ids = self._membership.topic_ids
            self._offset_log.set_note(Note(self._settings.group_id, dict(ids)))
            with clock.step("range"):
                before = dict(self._offsets.committed)
                lost = self._lost_records(batch, before)
                self._tell_lost(batch_id, lost)
            # 3. to 5. Planned, run and, for what was not written, fenced and run again.
            outcomes, members = self._run_rounds(batch, job, clock)
            # 6. The ends of ranges whose last rows have no output.
            with clock.step("settle"):
                if not self._settings.fail_on_data_loss:
                    more = deleted_meanwhile(lost, self._lost_records(batch, before))
                    self._tell_lost(batch_id, more)
                    lost += more
                if time.monotonic() - self._renewed >= offset_renewal.SECONDS:
                    self._offsets.expect_renewal(batch)
                    self._renewed = time.monotonic()
                self._offsets.settle(batch)
            if not any(outcome.too_slow for outcome in outcomes):
                self._writer = self._writer.with_larger_transactions(self._settings)
            self._finished = batch
        # 7. What became of it.
        return batch_report(
            self._settings,
            self._offset_log.query_id(),
            self.run_id,
            self._cluster_version,
            batch,
            outcomes,
            members,
            clock.milliseconds,
            lost,
        )

    def _lost_records(
        self, batch: BatchRange, committed: plan.Positions
    ) -> tuple[LostRecords, ...]:
        """What was deleted of the batch before it was read.

        Raises:
            RecordsLostError: something was, and the settings do not allow it.
        """
        topics = {
            topic for (topic, index), end in batch.ends.items() if end > committed[topic, index]
        }
        deadline = Deadline(self._group_timeout_ms / 1000, "group_timeout_ms")
        if not {place for place in batch.ends if place[0] in topics} <= self._leaders.keys():
            # Partitions were added.
            self._leaders.clear()
        firsts = list_offsets.start_offsets(self._wire, topics, deadline, self._leaders)
        lost = data_loss.lost_records(batch, committed, firsts)
        if lost and self._settings.fail_on_data_loss:
            commands = "; ".join(
                f"--topic {one.topic}:{one.partition} --to-offset {one.after}" for one in lost
            )
            raise RecordsLostError(
                f"batch {batch.batch_id} of group {self._settings.group_id!r}: records were "
                "deleted (retention, or delete_records) before they were read, and can't be "
                f"written any more: {', '.join(map(str, lost))}. To go on without them, start with "
                "fail_on_data_loss=False, which reports every such gap; or set the group's offsets "
                "while the query is stopped, partition by partition (kafka-consumer-groups.sh "
                f"--reset-offsets --group {self._settings.group_id} --execute with {commands}), "
                "and start with an empty checkpoint_location"
            )
        return lost

    def _tell_lost(self, batch_id: int, lost: Collection[LostRecords]) -> None:
        # At once: of a batch that is repeated the report no longer knows.
        for one in lost:
            logger.warning(
                "group %s, batch %d: %s were deleted before they were read, and are not written"
                if one.certain
                else "group %s, batch %d: %s were deleted while the batch was read: those that it "
                "had not read yet are not written",
                self._settings.group_id,
                batch_id,
                one,
            )

    def _run_rounds(
        self, batch: BatchRange, job: Job, clock: _Clock
    ) -> tuple[list[JobOutcome], dict[tuple[str, int], MemberIdentity]]:
        outcomes: list[JobOutcome] = []
        only: list[tuple[str, int]] | None = None
        while True:
            with clock.step("plan"):
                members = self._membership.identities()
                batch_plan = plan.batch_plan(
                    batch,
                    self._offsets.committed,
                    members,
                    self._membership.topic_ids,
                    self._offsets.known,
                )
            with clock.step("job"):
                outcome = self._run_job(job, batch, batch_plan, only)
            outcomes.append(outcome)
            for partition, part in outcome.partitions.items():
                if part.next_offset is not None:
                    self._offsets.committed[partition] = part.next_offset
            if outcome.failed:
                raise WriteError(
                    f"batch {batch.batch_id} of group {self._settings.group_id!r}: "
                    f"{outcome.reason}{self._mark(batch, outcome)}"
                )
            if gone := sorted({*(only or ())} - outcome.partitions.keys()):
                topic, partition = gone[0]
                raise WriteError(
                    f"batch {batch.batch_id} of group {self._settings.group_id!r}: source "
                    f"{topic}-{partition} had rows in round {len(outcomes) - 1} and has none in "
                    f"round {len(outcomes)}, so they are not written: the query must make the same "
                    "rows of the same records every time"
                )
            only = outcome.unwritten
            if not only and not outcome.deferred:
                return outcomes, members
            with clock.step("fence"):
                # The job is over, so whoever still writes is a zombie: it loses its members and
                # its transaction before anybody reads the offsets or writes again.
                self._offsets.take_over(batch)
            if not only:
                return outcomes, self._membership.identities()
            if outcome.too_slow:
                self._writer = self._writer.with_smaller_transactions()
                logger.warning(
                    "group %s: transactions took longer than transaction_timeout_ms=%d and are "
                    "smaller from here on: %d records, %d bytes, %d ms at most. They grow again "
                    "with each batch that is in time. If this is usual, raise "
                    "transaction_timeout_ms",
                    self._settings.group_id,
                    self._settings.transaction_timeout_ms,
                    self._writer.max_transaction_records,
                    self._writer.max_transaction_bytes,
                    self._writer.max_transaction_ms,
                )
            if len(outcomes) >= self._max_rounds:
                raise WriteError(
                    f"batch {batch.batch_id} of group {self._settings.group_id!r}: "
                    f"{len(only)} source partitions are not written after {len(outcomes)} rounds "
                    f"(rounds), the first is {only[0][0]}-{only[0][1]}: {outcome.reason}"
                )
            logger.info(
                "batch %d of group %s: round %d for %d source partitions: %s",
                batch.batch_id,
                self._settings.group_id,
                len(outcomes) + 1,
                len(only),
                outcome.reason,
            )

    def _run_job(
        self, job: Job, batch: BatchRange, batch_plan: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        try:
            return job(self._writer, batch, batch_plan, only)
        except SparkEosError:
            raise
        except Exception as error:
            # Spark tells of deleted records in thousands of words, and advises to ignore it.
            if self._settings.fail_on_data_loss and "failOnDataLoss" in str(error):
                logger.debug("batch %d", batch.batch_id, exc_info=error)
                self._lost_records(batch, self._offsets.committed)
            raise

    def _mark(self, batch: BatchRange, outcome: JobOutcome) -> str:
        """Sees to it that no later run passes over rows that came out of their order."""
        if not outcome.misplaced:
            return ""
        try:
            doubts = self._offsets.mark(batch, outcome.misplaced)
        except SparkEosError as error:
            places = ", ".join(f"{topic}-{index}" for topic, index in sorted(outcome.misplaced))
            return (
                f". Rows of {places} from this batch may not be written although others after them "
                f"are, and that could not be noted in the group's offsets: {error}. Before the "
                "next start set those offsets yourself (kafka-consumer-groups.sh --reset-offsets)"
            )
        named = "; ".join(
            f"{place} offsets {d.first} to {d.after - 1}" for place, d in doubts.items()
        )
        return named and (
            f". Some of these may not be written although others after them are: {named}. That is "
            "noted in the group's offsets, and no query of the group starts before they are set "
            "(kafka-consumer-groups.sh --reset-offsets): to the first to write all of them "
            "again, or after the last to go on without"
        )

    # Offsets that do not move -----------------------------------------------------------------

    def _renew_if_due(self) -> None:
        if self._started and time.monotonic() - self._renewed >= offset_renewal.SECONDS:
            self._renew_between_batches()

    def _renew_between_batches(self) -> None:
        """Commits idle partitions' offsets once more, since each expires by its own age."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            batch = self._finished
            if batch is None or self._membership.ended:
                return
            deadline = Deadline(
                min(_BETWEEN_BEATS, self._group_timeout_ms / 1000), "group_timeout_ms"
            )
            self._offsets.renew(batch, deadline)
            self._renewed = time.monotonic()
        except Exception as error:  # noqa: BLE001 - heartbeats must go on
            logger.info("group %s: renewing offsets: %s", self._settings.group_id, error)
        finally:
            self._busy.release()
