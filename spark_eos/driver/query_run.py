"""One run of a query, on the driver: its start, and one batch in numbered steps."""

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from spark_eos.batch.batch_report import BatchReport, batch_report
from spark_eos.batch.data_loss import LostRecords, deleted_meanwhile
from spark_eos.batch.offset_gap import check_no_gap
from spark_eos.batch.plan import BatchRange
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.driver import preflight
from spark_eos.driver.checkpoint_note import DIRECT, MIRRORED, STAGED, Note
from spark_eos.driver.committed_offsets import CommittedOffsets
from spark_eos.driver.data_loss_check import DataLossCheck
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.driver.idle_renewal import IdleRenewal
from spark_eos.driver.leftover_transactions import LeftoverTransactions
from spark_eos.driver.membership import GroupMembership
from spark_eos.driver.mirroring import MirroredSource, Mirroring
from spark_eos.driver.offset_commits import OffsetCommits
from spark_eos.driver.offset_log import OffsetLog
from spark_eos.driver.replication import warn_of_replication
from spark_eos.driver.road import check_note, check_offsets
from spark_eos.driver.rounds import BatchRounds, Job
from spark_eos.driver.source_positions import SourcePositions
from spark_eos.driver.staged_sources import StagedSources
from spark_eos.driver.staging import BatchCopies, ProgressPartitions, Staging
from spark_eos.driver.step_clock import StepClock
from spark_eos.errors import OffsetsLostError
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.transactions import BY_ID, MemberIdentity

logger = logging.getLogger(__name__)

Members = Mapping[tuple[str, int], MemberIdentity]


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
        reads: Whether ``sink.read`` reads a topic, for a run on the staged road.
        source: The source cluster, for a run on the mirrored road.
        asynchronous: Whether Spark writes the checkpoint's logs asynchronously.

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
        reads: Callable[[str], bool] | None = None,
        source: MirroredSource | None = None,
        asynchronous: bool = False,
    ) -> None:
        self.run_id = run_id
        self.leaving = False
        self._wire = wire
        self._settings = settings
        self._offset_log = offset_log
        self._group_timeout_ms = group_timeout_ms
        self._prepared_ms = prepared_ms
        self._asynchronous = asynchronous
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
        self._mirroring: Mirroring | None = None
        source_client = settings.source_client if source is None else source.client
        self._source_wire = wire if source_client is None else Wire(source_client)
        if source is not None:
            self._mirroring = Mirroring(
                wire,
                self._source_wire,
                settings,
                source.progress_topic,
                offset_log,
                self._offsets,
                group_timeout_ms,
            )
        self._commits = OffsetCommits(
            wire,
            settings,
            self._membership,
            self._offsets,
            group_timeout_ms,
            self._mirroring.first_offsets if self._mirroring else None,
        )
        self._data_loss = DataLossCheck(
            self._source_wire, settings, group_timeout_ms, staged=progress is not None
        )
        self._staging = (
            None
            if progress is None
            else Staging(settings.group_id, progress, offset_log, self._offsets, self._commits)
        )
        self._staged_sources = StagedSources(
            self._source_wire, settings, offset_log, self._data_loss, reads or (lambda _: False)
        )
        # Only the target's cluster has the group.
        self._positions = (
            None
            if progress is None or settings.source_client is not None
            else SourcePositions(wire, settings, self._membership, progress.topic, group_timeout_ms)
        )
        self._rounds = BatchRounds(
            settings, self._membership, self._offsets, self._commits, self._data_loss, max_rounds
        )
        self._renewal = IdleRenewal(
            settings.group_id,
            self._membership,
            self._commits,
            group_timeout_ms,
            self._positions.renew if self._positions else lambda: None,
        )
        self._progress_topic = None if progress is None else progress.topic
        self._delivery = STAGED if self._staging else MIRRORED if self._mirroring else DIRECT
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
            self._renewal.renew()
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
                self._close()
            self.leaving = False

    def _sweep(self, seconds: float) -> None:
        try:
            self._leftovers.end_after_stop(seconds)
        finally:
            self._close()

    def _close(self) -> None:
        self._wire.close()
        self._source_wire.close()

    def abandon(self) -> None:
        """Ends the run without leaving the group, so that a newer run takes its members over."""
        self._membership.abandon()
        self._close()

    # The start --------------------------------------------------------------------------------

    def _start(self, batch_id: int) -> BatchRange:
        # 1. Check that the cluster supports what is needed, and allows the settings.
        note = self._offset_log.note()
        check_note(note, self._delivery)
        mirroring = self._mirroring
        batch = mirroring.everything(batch_id) if mirroring else self._range(batch_id)
        topics = self._offsets.source_topics(batch.ends, note.topic_ids)
        deadline = group_deadline(self._group_timeout_ms)
        version = preflight.check_cluster(self._wire, self._settings, topics, deadline)
        self._cluster_version = version
        self._commits.by_name = version < BY_ID
        warn_of_replication(self._wire, self._settings.target_topics, deadline)
        preflight.warn_of_unknown_limits(self._wire, self._settings, deadline)
        # 2. Take the members over, or join, until all source partitions are assigned to them.
        self._membership.start(topics, batch.ends)
        # 3. End what older runs left open, and read the committed offsets.
        self._offsets.end_and_read(batch)
        # 4. Tell lost offsets from those of new partitions. From here on none is missing.
        self._offsets.read_known()
        self._check_road()
        if mirroring:
            mirroring.learn(note)
            batch = mirroring.batch_range(batch_id)
            self._offsets.narrow(batch)
        self._offsets.check_doubts(batch)
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
        self._renewal.renewed()
        self._started = True
        logger.info(
            "group %s: %d source partitions are assigned to this run; TxnOffsetCommit up to v%d",
            self._settings.group_id,
            len(batch.ends),
            version,
        )
        return batch

    def _behind(self, batch: BatchRange) -> bool:
        """Whether more may be written than the checkpoint's logs say, also when the batch ends."""
        if self._asynchronous:
            return True
        committed = self._offsets.committed
        return self._offset_log.note().behind and any(
            committed[place] > batch.starts.get(place, -1) for place in batch.ends
        )

    def _check_road(self) -> None:
        check_offsets(self._offsets.known, self._delivery, self._progress_topic)

    def _range(self, batch_id: int) -> BatchRange:
        return (self._staging or self._mirroring or self._offset_log).batch_range(batch_id)

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
        with self._renewal.busy, clock.step("total"):
            self._renewal.finished = None
            if not self._started:
                with clock.step("start"):
                    batch = self._start(batch_id)
            else:
                # 1. Read the batch's range from the checkpoint.
                with clock.step("range"):
                    batch = self._range(batch_id)
            self._membership.check()
            # 2. Compare it with what the group has committed, and with what still exists.
            self._offsets.take_over_if_changed(batch)
            # While this run was cut off, another may have begun on another road.
            self._check_road()
            if batch.ends.keys() - self._offsets.committed.keys():
                self._commits.anchor(batch, self._offset_log.note(), begun_now=True)
            ids = dict(self._membership.topic_ids)
            note = Note(self._settings.group_id, ids, behind=self._behind(batch))
            if self._delivery == DIRECT:
                note = replace(note, partitions=_by_topic(batch))
            lost: tuple[LostRecords, ...] = ()
            if self._staging and copies:
                written = self._write_staged(self._staging, batch, note, copies, job, clock)
                outcomes, members, lost = written
            else:
                outcomes, members, lost = self._write_direct(batch, note, job, clock)
            self._renewal.finished = batch
        # Last, report.
        places = self._offsets.places
        return batch_report(
            self._settings,
            self._offset_log.query_id(),
            self.run_id,
            self._cluster_version,
            places.in_source(batch),
            [places.source_outcome(outcome) for outcome in outcomes],
            places.by_source(members),
            clock.milliseconds,
            lost,
            self._delivery,
        )

    def _write_direct(
        self, batch: BatchRange, note: Note, job: Job, clock: StepClock
    ) -> tuple[list[JobOutcome], Members, tuple[LostRecords, ...]]:
        mirroring, places = self._mirroring, self._offsets.places
        check_no_gap(self._settings.group_id, batch, self._offsets.committed, places)
        if mirroring:
            note, job = mirroring.note(note), mirroring.job(job)
        self._offset_log.set_note(note)
        with clock.step("range"):
            before = dict(self._offsets.committed)
            lost = self._data_loss.lost(batch, before, places)
            self._data_loss.warn(batch.batch_id, lost)
        # 3. Plan, run, and for what was not written fence and run again.
        outcomes, members = self._rounds.run(batch, job, clock)
        # 4. Commit the ends of ranges whose last records produced no output.
        with clock.step("settle"):
            if mirroring:
                mirroring.check_source()
            if not self._settings.fail_on_data_loss:
                more = deleted_meanwhile(lost, self._data_loss.lost(batch, before, places))
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
    ) -> tuple[list[JobOutcome], Members, tuple[LostRecords, ...]]:
        # 3. Run the frame once, stage its rows, and let the ledger name the copy.
        sources, lost = self._staged_sources, tuple[LostRecords, ...]()
        with clock.step("stage"):
            found = staging.find(batch, copies, note)
            if found is not None:
                staged = found
            else:
                stage = functools.partial(copies.stage, batch.batch_id, staging.buckets)
                (copy, rows), lost = sources.running(batch.batch_id, stage)
                staged = staging.commit(batch, copies, copy, rows)
        # 4. Write the copy, in as many rounds as it takes.
        outcomes: list[JobOutcome] = []
        members: Members = self._membership.identities()
        if staged.rows:
            outcomes, members = self._rounds.run(batch, job, clock, staged.rows)
        staging.check_written(staged, outcomes)
        # 5. Commit the end of the batch in every bucket: only then Spark may finish it.
        with clock.step("settle"):
            self._settle(batch)
            staging.note_partitions()
        # 6. Of a batch staged before, compute the state, too: the copy needs no source, which may
        #    be gone by now.
        if found is not None:
            with clock.step("stage"):
                rows, lost = sources.running(batch.batch_id, copies.drain, repeated=True)
                if not lost:
                    staging.compare(staged, rows)
        if self._positions is not None:
            with clock.step("settle"):
                self._positions.publish(sources.ranges(batch.batch_id))
        return outcomes, members, lost

    def _renew_if_due(self) -> None:
        self._renewal.renew_if_due()

    def _settle(self, batch: BatchRange) -> None:
        if self._renewal.due:
            self._commits.renew_with_next_commit(batch)
            self._renewal.renewed()
        self._commits.settle(batch)


def _by_topic(batch: BatchRange) -> dict[str, frozenset[int]]:
    """The partitions of each of a batch's topics."""
    found: dict[str, set[int]] = {}
    for topic, index in batch.ends:
        found.setdefault(topic, set()).add(index)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}
