"""The attempts of a batch: a Spark job, and further ones for what the last did not write."""

import logging
from collections.abc import Mapping, Sequence

from spark_eos._batch.plan import BatchPlan, Partitions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.dead_letter_limit import DeadLetterLimit
from spark_eos._kafka.offset_metadata import SuspectRange
from spark_eos._progress.progress import Progress
from spark_eos._progress.strategy import Members, Work
from spark_eos.errors import SparkEosError, WriteError, warn

logger = logging.getLogger(__name__)


class TransactionSize:
    """The settings of a run's tasks: smaller transactions after one took too long."""

    def __init__(self, wanted: WriterSettings) -> None:
        self._wanted = wanted
        self.settings = wanted

    def follow(self, wanted: WriterSettings) -> None:
        """Takes over settings that are known only once the run has started."""
        if wanted != self._wanted:
            self._wanted = self.settings = wanted

    def shrink(self) -> None:
        """Makes transactions smaller."""
        self.settings = self.settings.with_smaller_transactions()
        warn(
            logger,
            "EOS54",
            "group %s: transactions took longer than transactions.timeout_ms=%d and are smaller "
            "from now on: at most %d records, %d bytes, %d ms. They grow again with each batch "
            "that finishes in time. If this happens often, raise transactions.timeout_ms",
            self._wanted.group_id,
            self._wanted.transactions.timeout_ms,
            self.settings.transactions.max_records,
            self.settings.transactions.max_bytes,
            self.settings.transactions.max_ms,
        )

    def after(self, outcomes: Sequence[JobOutcome]) -> None:
        """Makes transactions larger again after a batch that finished in time."""
        if outcomes and not any(outcome.too_slow for outcome in outcomes):
            self.settings = self.settings.with_larger_transactions(self._wanted)


class Attempts:
    """Runs Spark jobs until all of a batch's partitions are written, at most ``most``."""

    def __init__(self, progress: Progress, size: TransactionSize, work: Work, most: int) -> None:
        size.follow(work.settings)
        self._progress = progress
        self._size = size
        self._work = work
        self._most = most
        self._limit = DeadLetterLimit(work.settings, work.range, work.before, work.rows)
        self._what = f"batch {work.batch.id} of group {work.settings.group_id!r}"

    def run(self) -> tuple[list[JobOutcome], Members]:
        """Writes the rows; returns each attempt's outcome, and each partition's member."""
        progress, step = self._progress, self._work.batch.clock.step
        outcomes: list[JobOutcome] = []
        only: Partitions | None = None
        members = progress.members()
        # Of a staged batch without rows there is nothing to read.
        while self._work.rows != 0:
            with step("plan"):
                planned = self._limit.plan(progress.plan(self._work), only, outcomes)
            with step("job"):
                outcome = self._job(planned, only)
            outcomes.append(outcome)
            progress.take(outcome)
            self._check(outcomes, only)
            only = outcome.unwritten
            if only or outcome.retried:
                with step("fence"):
                    # The job is over, so whoever still writes is a zombie: it loses its members
                    # and its transaction before anybody reads the offsets or writes again.
                    progress.fence()
                members = progress.members()
            if not only:
                break
            self._prepare_next(outcomes)
        self._size.after(outcomes)
        self._limit.log(outcomes)
        return outcomes, members

    def _job(self, planned: BatchPlan, only: Partitions | None) -> JobOutcome:
        work = self._work
        with work.reading():
            return work.batch.rows(self._size.settings, work.range, planned, only)

    def _check(self, outcomes: Sequence[JobOutcome], only: Partitions | None) -> None:
        """Raises what no further attempt can cure."""
        outcome = outcomes[-1]
        if outcome.failed:
            raise WriteError(f"{self._what}: {outcome.reason}{self._mark(outcome)}")
        if gone := sorted({*(only or ())} - outcome.partitions.keys()):
            raise WriteError(
                f"{self._what}: source {self._progress.name(gone[0])} had rows in attempt "
                f"{len(outcomes) - 1} and has none in attempt {len(outcomes)}, so they are not "
                "written: the query must produce the same rows from the same records every time"
            )
        self._limit.check(outcomes)

    def _prepare_next(self, outcomes: Sequence[JobOutcome]) -> None:
        outcome = outcomes[-1]
        unwritten = outcome.unwritten
        if outcome.too_slow:
            self._size.shrink()
        # Attempts after which more dead letters are divided again end by themselves; so does the
        # first one, in which tasks may have held theirs back.
        counted = sum(
            not (each.over_limit and (each.moved or each is outcomes[0])) for each in outcomes
        )
        if counted >= self._most:
            raise WriteError(
                f"{self._what}: {len(unwritten)} source partitions are not written after "
                f"{len(outcomes)} attempts (limits.max_attempts), the first is "
                f"{self._progress.name(unwritten[0])}: {outcome.reason}"
            )
        logger.info(
            "batch %d of group %s: attempt %d for %d source partitions: %s",
            self._work.batch.id,
            self._work.settings.group_id,
            len(outcomes) + 1,
            len(unwritten),
            outcome.reason,
        )

    def _mark(self, outcome: JobOutcome) -> str:
        """Makes later runs refuse rows that came out of order; returns what to tell the user."""
        if not outcome.misplaced:
            return ""
        command = self._progress.command(outcome.misplaced)
        try:
            marked = self._progress.mark(self._work, outcome.misplaced)
        except SparkEosError as error:
            named = ", ".join(map(self._progress.name, sorted(outcome.misplaced)))
            return (
                f". Rows of {named} from this batch may not be written although later ones are, "
                f"and this could not be noted in the group's offsets: {error.text}. Set those "
                f"offsets yourself before the next start ({command})"
            )
        return told_of(marked, command)


def told_of(suspects: Mapping[str, SuspectRange], command: str) -> str:
    """What to tell the user of ranges that may not be written, by the partition's name.

    Example:
        >>> told_of({}, "")
        ''
        >>> told_of({"in-0": SuspectRange(5, 9)}, "...").split(": ")[1].split(".")[0]
        'in-0 offsets 5 to 8'
    """
    named = "; ".join(f"{name} offsets {s.first} to {s.after - 1}" for name, s in suspects.items())
    return named and (
        f". Some of these may not be written although later ones are: {named}. This is noted in "
        f"the group's offsets, and no query of the group starts until they are set ({command}): "
        "to the first one, to write all of them again, or past the last one, to continue without "
        "them"
    )
