"""One run of a query, on the driver: its start, and one batch in numbered steps."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from spark_eos import calls, plan, preflight
from spark_eos.batch_report import BatchReport, batch_report
from spark_eos.checkpoint import OffsetLog
from spark_eos.coordinator import GroupCoordinator
from spark_eos.deadline import Again, Deadline
from spark_eos.errors import (
    Code,
    KafkaResponseError,
    OffsetsLostError,
    Verdict,
    WriteError,
    code_names,
    verdict,
)
from spark_eos.identity import id_pattern
from spark_eos.offset_calls import commit_offsets, committed_offsets
from spark_eos.plan import BatchPlan, BatchRange, Positions
from spark_eos.report import JobOutcome
from spark_eos.settings import WriterSettings
from spark_eos.topics import TopicCache, source_topics
from spark_eos.transaction_calls import BY_ID, MemberIdentity, end_transaction, open_transactions
from spark_eos.wire import Wire

logger = logging.getLogger(__name__)

Partitions = Collection[tuple[str, int]]
_EPOCH_MOVED = {Code.STALE_MEMBER_EPOCH, Code.FENCED_MEMBER_EPOCH}


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
        most_members: at most so many group members.
        most_rounds: at most so many jobs for one batch.
        group_timeout: seconds that calls to the group may take.
        watch: whether the query is still active; asked about once a second.
    """

    def __init__(
        self,
        run_id: str,
        wire: Wire,
        settings: WriterSettings,
        offset_log: OffsetLog,
        *,
        most_members: int,
        most_rounds: int,
        group_timeout: float,
        watch: Callable[[], bool],
    ) -> None:
        self.run_id = run_id
        self._wire = wire
        self._settings = settings
        self._topics = TopicCache(
            wire, max_block_ms=settings.max_block_ms, max_idle_ms=settings.metadata_max_idle_ms
        )
        self._offset_log = offset_log
        self._most_rounds = most_rounds
        self._group_timeout = group_timeout
        self._coordinator = GroupCoordinator(
            wire,
            settings.group_id,
            most_members=most_members,
            group_timeout=group_timeout,
            watch=watch,
            at_end=self.leave,
        )
        self._committed: Positions = {}
        self._known: set[tuple[str, int]] = set()
        self._started = False
        self._cluster_version = 0
        self._end_in_doubt = False

    def leave(self) -> None:
        """Ends the run cleanly: its members leave the group. May be called again."""
        try:
            self._coordinator.leave()
        finally:
            self._wire.close()

    def abandon(self) -> None:
        """Ends the run without leaving, for a newer one that takes its members over."""
        self._coordinator.abandon()
        self._wire.close()

    def _deadline(self) -> Deadline:
        return Deadline(self._group_timeout, "group_timeout")

    # The start --------------------------------------------------------------------------------

    def _topics_of(self, partitions: Partitions) -> dict[str, calls.TopicInfo]:
        names = {topic for topic, _partition in partitions}
        known = self._coordinator.topic_ids
        return source_topics(self._topics, names, known, self._settings.group_id)

    def _start(self, batch: BatchRange) -> None:
        # 1. Does the cluster speak what is needed, and does it allow the settings?
        topics = self._topics_of(batch.ends)
        version = preflight.check_cluster(self._wire, self._settings, topics, self._deadline())
        self._cluster_version = version
        # 2. and 3. Members taken over or joined, until all source partitions are theirs.
        self._coordinator.start(topics, batch.ends)
        # 4. and 5.
        self._end_and_fetch(batch)
        self._started = True
        logger.info(
            "group %s: %d source partitions are assigned to this run; TxnOffsetCommit up to v%d",
            self._settings.group_id,
            len(batch.ends),
            version,
        )

    def _end_and_fetch(self, batch: BatchRange) -> None:
        """Ends all open transactions of the query, then reads the committed offsets."""
        # Only now that everyone older is fenced do the offsets stand still.
        self._end_open_transactions()
        deadline = self._deadline()

        def attempt() -> Positions:
            try:
                return committed_offsets(
                    self._wire,
                    self._settings.group_id,
                    batch.ends,
                    self._coordinator.topic_ids,
                    deadline,
                    member=self._coordinator.any_member(),
                )
            except KafkaResponseError as error:
                if error.code == Code.UNKNOWN_MEMBER_ID:
                    # Dropped by the broker; if a newer run holds the members, this raises.
                    self._coordinator.take_over_own(self._coordinator.topics, batch.ends)
                elif error.code not in _EPOCH_MOVED:
                    raise
                raise Again(str(error)) from error

        found = deadline.attempts("reading the group's offsets", pause=0.05)(attempt)
        for (topic, partition), before in self._committed.items():
            if (topic, partition) in batch.ends and found.get((topic, partition), -1) < before:
                raise OffsetsLostError(
                    f"group {self._settings.group_id!r} had committed {topic}-{partition} up to "
                    f"{before} and has {found.get((topic, partition), 'no offset')} now: somebody "
                    "has set or deleted the group's offsets under the query"
                )
        self._committed = found
        self._known = set(batch.ends)

    def _end_open_transactions(self) -> None:
        settings, deadline = self._settings, self._deadline()
        pattern = id_pattern(settings.transactional_id_prefix, settings.group_id)
        for transactional_id in open_transactions(self._wire, pattern, deadline):
            logger.info("ending the open transaction of %s", transactional_id)
            end_transaction(self._wire, transactional_id, settings.transaction_timeout_ms, deadline)

    def _take_over(self, batch: BatchRange) -> None:
        self._coordinator.take_over_own(self._topics_of(batch.ends), batch.ends)
        self._end_and_fetch(batch)

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
        with clock.step("total"):
            # 1. The batch's range, from the checkpoint.
            with clock.step("range"):
                batch = self._offset_log.batch_range(batch_id)
            if not self._started:
                with clock.step("start"):
                    self._start(batch)
            self._coordinator.check()
            # 2. Against what the group has committed.
            self._adopt_changes(batch)
            plan.check_progress(self._settings.group_id, batch, self._committed)
            # 3. to 5. Planned, run and, for what was not written, fenced and run again.
            outcomes, members = self._run_rounds(batch, job, clock)
            # 6. The ends of ranges whose last rows have no output.
            with clock.step("settle"):
                self._settle(batch)
        # 7. What became of it.
        return batch_report(
            self._settings,
            self.run_id,
            self._cluster_version,
            batch,
            outcomes,
            members,
            clock.milliseconds,
        )

    def _adopt_changes(self, batch: BatchRange) -> None:
        unassigned = batch.ends.keys() - self._coordinator.identities().keys()
        if not (unassigned or batch.ends.keys() != self._known or self._coordinator.changed):
            return
        before, alone = self._committed, not self._coordinator.session_lost
        self._take_over(batch)
        for (topic, partition), offset in before.items():
            found = self._committed.get((topic, partition), offset)
            # Without a member a newer run may have written them; with all members, none has.
            if alone and found > offset:
                raise OffsetsLostError(
                    f"group {self._settings.group_id!r} had committed {topic}-{partition} up to "
                    f"{offset} and has {found} now: a consumer that is not spark-eos' has used the "
                    f"group under the query, and offsets {offset} to {found - 1} are not written. "
                    f"To write them, set the group's offset back to {offset} while the query is "
                    "stopped (kafka-consumer-groups.sh --reset-offsets); started without that, "
                    "it goes on after them"
                )

    def _run_rounds(
        self, batch: BatchRange, job: Job, clock: _Clock
    ) -> tuple[list[JobOutcome], dict[tuple[str, int], MemberIdentity]]:
        outcomes: list[JobOutcome] = []
        only: list[tuple[str, int]] | None = None
        while True:
            with clock.step("plan"):
                members = self._coordinator.identities()
                batch_plan = plan.batch_plan(
                    batch, self._committed, members, self._coordinator.topic_ids
                )
            with clock.step("job"):
                outcome = job(self._settings, batch, batch_plan, only)
            outcomes.append(outcome)
            for partition, part in outcome.partitions.items():
                if part.next_offset is not None:
                    self._committed[partition] = part.next_offset
            if outcome.failed:
                raise WriteError(
                    f"batch {batch.batch_id} of group {self._settings.group_id!r}: {outcome.reason}"
                )
            only = outcome.unwritten
            if not only and not outcome.deferred:
                return outcomes, members
            with clock.step("fence"):
                # The job is over, so whoever still writes is a zombie: it loses its members and
                # its transaction before anybody reads the offsets or writes again.
                self._take_over(batch)
            if not only:
                return outcomes, self._coordinator.identities()
            if len(outcomes) >= self._most_rounds:
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

    def _settle(self, batch: BatchRange) -> None:
        deadline = self._deadline()

        def attempt() -> None:
            ends = plan.unsettled(batch, self._committed)
            if not ends:
                return
            if self._cluster_version < BY_ID:
                # Such brokers may take the offsets by name, whichever topic bears it by now.
                self._topics_of(ends)
            by_member: dict[MemberIdentity, Positions] = {}
            members = self._coordinator.identities()
            for partition, end in ends.items():
                if partition not in members:
                    self._take_over(batch)
                    raise Again(f"{partition[0]}-{partition[1]} is not assigned")
                by_member.setdefault(members[partition], {})[partition] = end
            for member, offsets in by_member.items():
                self._settle_member(batch, member, offsets)

        deadline.attempts("committing the ends of the batch")(attempt)
        if self._end_in_doubt:
            # Should the request come late, it finds its member gone: it would take back what the
            # next batch commits.
            self._take_over(batch)
            self._end_in_doubt = False

    def _doubt_end(self) -> None:
        self._end_in_doubt = True

    def _settle_member(self, batch: BatchRange, member: MemberIdentity, offsets: Positions) -> None:
        codes = commit_offsets(
            self._wire,
            self._settings.group_id,
            (member.member_id, member.epoch, member.instance_id),
            offsets,
            self._coordinator.topic_ids,
            self._deadline(),
            on_lost=self._doubt_end,
        )
        self._committed.update({p: offsets[p] for p, code in codes.items() if code == Code.NONE})
        refused = {code for code in codes.values() if code}
        if not refused:
            return
        if refused == {Code.UNKNOWN_TOPIC_ID}:
            self._topics_of(offsets)
            raise Again(code_names(refused))
        if verdict(refused) is Verdict.REJECTED:
            self._take_over(batch)
            raise Again(code_names(refused))
        raise KafkaResponseError(
            f"committing the ends of batch {batch.batch_id} of group "
            f"{self._settings.group_id!r}: {code_names(refused)}",
            min(refused),
        )
