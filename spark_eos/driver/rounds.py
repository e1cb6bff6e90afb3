"""The rounds of a batch: a Spark job, and further ones for what the last did not write."""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from spark_eos.batch.plan import BatchPlan, BatchRange, Partitions, batch_plan
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.driver.committed_offsets import CommittedOffsets
from spark_eos.driver.data_loss_check import DataLossCheck
from spark_eos.driver.dead_letter_limit import DeadLetterLimit
from spark_eos.driver.membership import GroupMembership
from spark_eos.driver.offset_commits import OffsetCommits
from spark_eos.driver.step_clock import StepClock
from spark_eos.errors import SparkEosError, WriteError
from spark_eos.kafka.transactions import MemberIdentity

logger = logging.getLogger(__name__)


class Job(Protocol):
    """Runs the batch's rows through tasks, as one Spark job."""

    def __call__(
        self,
        settings: WriterSettings,
        batch: BatchRange,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        """Writes all rows, or the rows of some source partitions.

        Args:
            settings: Writer settings for this round.
            batch: The batch's range.
            batch_plan: What to do with each source partition.
            only: The (topic, partition) pairs to write; None for all.
        """


class BatchRounds:
    """Runs Spark jobs until all of a batch's source partitions are written.

    Between two jobs it fences whoever still writes for the first. Transactions that took too long
    are made smaller for the next round, and grow again with later batches.

    Args:
        settings: Writer settings.
        membership: The group's members.
        offsets: The group's committed offsets.
        commits: Marks offsets that may not be written.
        data_loss: Explains jobs that fail because source records were deleted.
        max_rounds: Maximum number of Spark jobs per batch.
    """

    def __init__(
        self,
        settings: WriterSettings,
        membership: GroupMembership,
        offsets: CommittedOffsets,
        commits: OffsetCommits,
        data_loss: DataLossCheck,
        max_rounds: int,
    ) -> None:
        self._settings = settings
        self._job_settings = settings
        self._membership = membership
        self._offsets = offsets
        self._commits = commits
        self._data_loss = data_loss
        self._max_rounds = max_rounds

    def run(
        self, batch: BatchRange, job: Job, clock: StepClock, rows: int | None = None
    ) -> tuple[list[JobOutcome], Mapping[tuple[str, int], MemberIdentity]]:
        """Writes the batch's rows.

        Args:
            batch: The batch's range.
            job: Runs its rows through tasks.
            clock: Times the steps ``plan``, ``job`` and ``fence``.
            rows: Number of rows of a staged batch; None if it is written directly.

        Returns:
            The outcome of each round, and the member that each source partition is assigned to.

        Raises:
            WriteError: Rows can't be written, or not within ``max_rounds`` rounds, or there are
                too many dead letters.
        """
        outcomes: list[JobOutcome] = []
        only: list[tuple[str, int]] | None = None
        limit = DeadLetterLimit(self._settings, batch, self._offsets.committed, rows)
        while True:
            with clock.step("plan"):
                members = self._membership.identities()
                planned: BatchPlan = batch_plan(
                    batch,
                    self._offsets.committed,
                    members,
                    self._membership.topic_ids,
                    self._offsets.known,
                )
                planned = limit.plan(planned, only, outcomes)
            with clock.step("job"):
                outcome = self._run_job(job, batch, planned, only)
            outcomes.append(outcome)
            for partition, part in outcome.partitions.items():
                if part.next_offset is not None:
                    self._offsets.committed[partition] = part.next_offset
            self._check_outcome(batch, outcomes, only)
            limit.check(outcomes)
            only = outcome.unwritten
            if only or outcome.deferred:
                with clock.step("fence"):
                    # The job is over, so whoever still writes is a zombie: it loses its members
                    # and its transaction before anybody reads the offsets or writes again.
                    self._offsets.take_over(batch)
                members = self._membership.identities()
            if not only:
                self._grow_transactions(outcomes)
                limit.log(outcomes)
                return outcomes, members
            self._prepare_next_round(batch, outcomes)

    def _run_job(
        self, job: Job, batch: BatchRange, planned: BatchPlan, only: Partitions | None
    ) -> JobOutcome:
        offsets = self._offsets
        with self._data_loss.explaining(
            lambda: self._data_loss.lost(batch, offsets.committed, offsets.places)
        ):
            return job(self._job_settings, batch, planned, only)

    def _check_outcome(
        self, batch: BatchRange, outcomes: Sequence[JobOutcome], only: Partitions | None
    ) -> None:
        """Raises what no further round can cure."""
        outcome = outcomes[-1]
        if outcome.failed:
            raise WriteError(
                f"batch {batch.batch_id} of group {self._settings.group_id!r}: "
                f"{outcome.reason}{self._mark(batch, outcome)}"
            )
        if gone := sorted({*(only or ())} - outcome.partitions.keys()):
            name = self._offsets.places.name(gone[0])
            raise WriteError(
                f"batch {batch.batch_id} of group {self._settings.group_id!r}: source {name} had "
                f"rows in round {len(outcomes) - 1} and has none in round {len(outcomes)}, so they "
                "are not written: the query must produce the same rows from the same records "
                "every time"
            )

    def _prepare_next_round(self, batch: BatchRange, outcomes: Sequence[JobOutcome]) -> None:
        outcome = outcomes[-1]
        unwritten = outcome.unwritten
        if outcome.too_slow:
            self._shrink_transactions()
        # Rounds after which more dead letters are divided anew end by themselves; so does the first
        # one, in which tasks may have held theirs back.
        counted = sum(
            not (each.over_limit and (each.moved or each is outcomes[0])) for each in outcomes
        )
        if counted >= self._max_rounds:
            raise WriteError(
                f"batch {batch.batch_id} of group {self._settings.group_id!r}: "
                f"{len(unwritten)} source partitions are not written after {len(outcomes)} rounds "
                f"(max_rounds), the first is {self._offsets.places.name(unwritten[0])}: "
                f"{outcome.reason}"
            )
        logger.info(
            "batch %d of group %s: round %d for %d source partitions: %s",
            batch.batch_id,
            self._settings.group_id,
            len(outcomes) + 1,
            len(unwritten),
            outcome.reason,
        )

    def _shrink_transactions(self) -> None:
        self._job_settings = self._job_settings.with_smaller_transactions()
        logger.warning(
            "group %s: transactions took longer than transaction_timeout_ms=%d and are smaller "
            "from now on: at most %d records, %d bytes, %d ms. They grow again with each batch "
            "that finishes in time. If this happens often, raise transaction_timeout_ms",
            self._settings.group_id,
            self._settings.transaction_timeout_ms,
            self._job_settings.max_transaction_records,
            self._job_settings.max_transaction_bytes,
            self._job_settings.max_transaction_ms,
        )

    def _grow_transactions(self, outcomes: Sequence[JobOutcome]) -> None:
        if not any(outcome.too_slow for outcome in outcomes):
            self._job_settings = self._job_settings.with_larger_transactions(self._settings)

    def _mark(self, batch: BatchRange, outcome: JobOutcome) -> str:
        """Makes later runs refuse rows that came out of order; returns what to tell the user."""
        if not outcome.misplaced:
            return ""
        try:
            doubts = self._commits.mark(batch, outcome.misplaced)
        except SparkEosError as error:
            named = ", ".join(map(self._offsets.places.name, sorted(outcome.misplaced)))
            return (
                f". Rows of {named} from this batch may not be written although later ones are, "
                f"and this could not be noted in the group's offsets: {error}. Set those offsets "
                f"yourself before the next start ({self._command(outcome.misplaced)})"
            )
        marked = "; ".join(
            f"{place} offsets {d.first} to {d.after - 1}" for place, d in doubts.items()
        )
        return marked and (
            f". Some of these may not be written although later ones are: {marked}. This is noted "
            "in the group's offsets, and no query of the group starts until they are set "
            f"({self._command(outcome.misplaced)}): to the first one, to write all of them "
            "again, or past the last one, to continue without them"
        )

    def _command(self, places: Partitions) -> str:
        wanted = dict.fromkeys(sorted(places), "N")
        return self._offsets.places.how_to_set(self._settings.group_id, wanted)
