"""One run of a query, on the driver: its start, and one batch in numbered steps."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from spark_eos.batch.batch_report import BatchReport, batch_report
from spark_eos.batch.data_loss import LostRecords, deleted_meanwhile
from spark_eos.batch.plan import BatchRange, check_no_gap
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.driver import offset_renewal, preflight
from spark_eos.driver.committed_offsets import CommittedOffsets
from spark_eos.driver.data_loss_check import DataLossCheck
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.driver.leftover_transactions import LeftoverTransactions
from spark_eos.driver.membership import GroupMembership
from spark_eos.driver.offset_commits import OffsetCommits
from spark_eos.driver.offset_log import DIRECT, STAGED, Note, OffsetLog
from spark_eos.driver.replication import warn_of_single_replicas
from spark_eos.driver.rounds import BatchRounds, Job
from spark_eos.driver.staging import BatchCopies, ProgressPartitions, Staging
from spark_eos.driver.step_clock import StepClock
from spark_eos.errors import CheckpointError, OffsetsLostError
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.transactions import BY_ID, MemberIdentity

logger = logging.getLogger(__name__)

Members = Mapping[tuple[str, int], MemberIdentity]

# Seconds for work between two heartbeats, well below a member's session timeout.
_BETWEEN_BEATS: Final = 5.0


class QueryRun:
    """A run: from the first batch after the query starts to the query's end.

    Args:
        run_id: Spark's id of the run, or "" if it is not known.
        wire: Connections; the run closes them when it ends.
        settings: Writer settings.
        offset_log: The query's checkpoint.
        max_members: Maximum number of static group members.
        max_rounds: Maximum number of Spark jobs for one batch.
        group_timeout_ms: Time limit of each call to the group, in milliseconds.
        watch: Returns whether the query is still active; called about once a second.
        prepared_ms: When the query was last known not to be processing a batch, in milliseconds
            since 1970 by the clock of Spark's driver: a batch begun later was begun by this run.
            None if that is not known.
        progress: The progress partitions, for a run on the staged road.

    Attributes:
        run_id: Spark's id of the run, or "".
        leaving: Whether its members are leaving the group right now.
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
        progress: ProgressPartitions | None = None,
    ) -> None:
        self.run_id = run_id
        self.leaving = False
        self._wire = wire
        self._settings = settings
        self._offset_log = offset_log
        self._group_timeout_ms = group_timeout_ms
        self._prepared_ms = prepared_ms
        self._membership = GroupMembership(
            wire,
            settings.group_id,
            max_members=max_members,
            group_timeout_ms=group_timeout_ms,
            watch=watch,
            each_beat=self._renew_if_due,
            at_end=self.leave,
        )
        self._leftovers = LeftoverTransactions(wire, settings, group_timeout_ms)
        self._offsets = CommittedOffsets(
            wire, settings, self._membership, self._leftovers, group_timeout_ms
        )
        self._commits = OffsetCommits(
            wire, settings, self._membership, self._offsets, group_timeout_ms
        )
        self._data_loss = DataLossCheck(wire, settings, group_timeout_ms)
        self._staging = (
            None
            if progress is None
            else Staging(settings.group_id, progress, offset_log, self._offsets, self._commits)
        )
        self._rounds = BatchRounds(
            settings, self._membership, self._offsets, self._commits, self._data_loss, max_rounds
        )
        # Held during a batch: its tasks commit offsets, so the driver must not renew them.
        self._busy = threading.Lock()
        self._finished: BatchRange | None = None
        self._renewed = 0.0
        self._started = False
        self._cluster_version = 0
        self._ending = threading.Lock()
        self._sweeping = False

    def leave(self, tasks_outlive_stop: float = 0.0, *, aside: bool = False) -> None:
        """Ends the run cleanly: its members leave the group. May be called again.

        Args:
            tasks_outlive_stop: How many seconds the tasks of a cancelled Spark job may keep
                running; transactions that they leave open are ended for that long.
            aside: Whether to return without waiting for that; the interpreter waits for it at
                exit.
        """
        sweeps = False
        self.leaving = True
        try:
            # Does nothing after a batch that failed, whose tasks may still be committing.
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
            self._leftovers.end_after_stop(seconds)
        finally:
            self._wire.close()

    def abandon(self) -> None:
        """Ends the run without leaving the group, so that a newer run takes its members over."""
        self._membership.abandon()
        self._wire.close()

    def writes(self) -> bool:
        """Whether a transaction of the query is open now.

        Raises:
            SparkEosError: The brokers don't answer, or don't let the query list transactions.
        """
        return bool(self._leftovers.names())

    # The start --------------------------------------------------------------------------------

    def _start(self, batch: BatchRange) -> None:
        # 1. Check that the cluster supports what is needed, and allows the settings.
        note = self._offset_log.note()
        self._check_road(note)
        topics = self._offsets.source_topics(batch.ends, note.topic_ids)
        deadline = group_deadline(self._group_timeout_ms)
        version = preflight.check_cluster(self._wire, self._settings, topics, deadline)
        self._cluster_version = version
        self._commits.by_name = version < BY_ID
        warn_of_single_replicas(self._wire, self._settings.topic, deadline)
        # 2. Take the members over, or join, until all source partitions are assigned to them.
        self._membership.start(topics, batch.ends)
        # 3. End what older runs left open, and read the committed offsets.
        self._offsets.end_and_read(batch)
        # 4. Tell lost offsets from those of new partitions. From here on none is missing.
        self._offsets.read_known()
        self._offsets.check_doubts(batch)
        self._check_ledger()
        if self._staging:
            self._staging.watch_ledger()
            self._staging.accept_reset(batch)
        began_now = (
            self._prepared_ms is not None
            and self._offset_log.began_ms(batch.batch_id) >= self._prepared_ms
        )
        try:
            self._commits.anchor(batch, note, begun_now=began_now)
        except OffsetsLostError as error:
            if self._staging is None or batch.ends.keys() <= self._offsets.committed.keys():
                raise
            raise self._staging.lost(batch, error) from error
        self._renewed = time.monotonic()
        self._started = True
        logger.info(
            "group %s: %d source partitions are assigned to this run; TxnOffsetCommit up to v%d",
            self._settings.group_id,
            len(batch.ends),
            version,
        )

    def _check_road(self, note: Note) -> None:
        delivery = STAGED if self._staging else DIRECT
        if note.group_id is not None and note.delivery != delivery:
            raise _other_road(note.delivery, delivery)

    def _check_ledger(self) -> None:
        """Refuses to write a staged query directly, whatever became of its checkpoint's note."""
        query = self._offset_log.query_id()
        if self._staging is None and any(
            staged.query == query for staged in self._offsets.known.staged.values()
        ):
            raise _other_road(STAGED, DIRECT)

    # One batch --------------------------------------------------------------------------------

    def process(self, batch_id: int, job: Job, copies: BatchCopies | None = None) -> BatchReport:
        """Writes one micro-batch exactly once.

        Args:
            batch_id: Spark's number of the batch.
            job: Runs the batch's rows through tasks.
            copies: The batch's copies, for a run on the staged road; ``job`` reads them.

        Raises:
            SparkEosError: The batch is not fully written. What was committed of it stays
                committed, and is skipped when the batch is repeated.
        """
        clock = StepClock()
        with self._busy, clock.step("total"):
            self._finished = None
            # 1. Read the batch's range from the checkpoint.
            with clock.step("range"):
                ranges = self._staging or self._offset_log
                batch = ranges.batch_range(batch_id)
            if not self._started:
                with clock.step("start"):
                    self._start(batch)
            self._membership.check()
            # 2. Compare it with what the group has committed, and with what still exists.
            self._offsets.take_over_if_changed(batch)
            if batch.ends.keys() - self._offsets.committed.keys():
                self._commits.anchor(batch, self._offset_log.note(), begun_now=True)
            note = Note(self._settings.group_id, dict(self._membership.topic_ids))
            lost: tuple[LostRecords, ...] = ()
            if self._staging and copies:
                written = self._write_staged(self._staging, batch, note, copies, job, clock)
                outcomes, members = written
            else:
                outcomes, members, lost = self._write_direct(batch, note, job, clock)
            self._finished = batch
        # Last, report.
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
            STAGED if self._staging else DIRECT,
        )

    def _write_direct(
        self, batch: BatchRange, note: Note, job: Job, clock: StepClock
    ) -> tuple[list[JobOutcome], Members, tuple[LostRecords, ...]]:
        check_no_gap(self._settings.group_id, batch, self._offsets.committed)
        self._offset_log.set_note(note)
        with clock.step("range"):
            before = dict(self._offsets.committed)
            lost = self._data_loss.lost(batch, before)
            self._data_loss.warn(batch.batch_id, lost)
        # 3. Plan, run, and for what was not written fence and run again.
        outcomes, members = self._rounds.run(batch, job, clock)
        # 4. Commit the ends of ranges whose last records produced no output.
        with clock.step("settle"):
            if not self._settings.fail_on_data_loss:
                more = deleted_meanwhile(lost, self._data_loss.lost(batch, before))
                self._data_loss.warn(batch.batch_id, more)
                lost += more
            self._settle(batch)
        return outcomes, members, lost

    def _write_staged(
        self,
        staging: Staging,
        batch: BatchRange,
        note: Note,
        copies: BatchCopies,
        job: Job,
        clock: StepClock,
    ) -> tuple[list[JobOutcome], Members]:
        # 3. Run the frame once, stage its rows, and let the ledger name the copy.
        with clock.step("stage"):
            staged = staging.prepare(batch, copies, note)
        # 4. Write the copy, in as many rounds as it takes.
        outcomes: list[JobOutcome] = []
        members: Members = self._membership.identities()
        if staged.rows:
            outcomes, members = self._rounds.run(batch, job, clock)
        staging.check_written(staged, outcomes)
        # 5. Commit the end of the batch in every bucket: only then Spark may finish it.
        with clock.step("settle"):
            self._settle(batch)
            staging.note_partitions()
        return outcomes, members

    def _settle(self, batch: BatchRange) -> None:
        if time.monotonic() - self._renewed >= offset_renewal.SECONDS:
            self._commits.renew_with_next_commit(batch)
            self._renewed = time.monotonic()
        self._commits.settle(batch)

    # Renewal ----------------------------------------------------------------------------------

    def _renew_if_due(self) -> None:
        if self._started and time.monotonic() - self._renewed >= offset_renewal.SECONDS:
            self._renew_between_batches()

    def _renew_between_batches(self) -> None:
        """Commits the last batch's offsets again, since each expires by its own age."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            batch = self._finished
            if batch is None or self._membership.ended:
                return
            deadline = group_deadline(self._group_timeout_ms, at_most=_BETWEEN_BEATS)
            self._commits.renew(batch, deadline)
            self._renewed = time.monotonic()
        except Exception as error:  # noqa: BLE001 - heartbeats must go on
            logger.info("group %s: offsets are not renewed: %s", self._settings.group_id, error)
        finally:
            self._busy.release()


def _other_road(noted: str, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"the query of this checkpoint has written with delivery={noted!r}, and would now write "
        f"with delivery={wanted!r}, whose offsets mean something else: set delivery={noted!r}, or "
        "begin with another checkpoint_location and another group_id"
    )
