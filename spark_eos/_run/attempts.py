"""What ends a batch after one of its jobs, and how the user is told."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from spark_eos._batch.plan import Partitions
from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._progress.delivery import PlannedBatch
from spark_eos._progress.offsets import GroupOffsets
from spark_eos.errors import SparkEosError, WriteError, warn

logger = logging.getLogger(__name__)


def check_outcome(
    planned: PlannedBatch,
    outcomes: Sequence[JobOutcome],
    only: Partitions | None,
    offsets: GroupOffsets,
) -> None:
    """Raises what no further attempt can cure; ``only``: what the last one was to write."""
    outcome, what = outcomes[-1], _named(planned)
    if outcome.failed:
        raise WriteError(f"{what}: {outcome.reason}{_mark(planned, outcome, offsets)}")
    if gone := sorted({*(only or ())} - outcome.partitions.keys()):
        raise WriteError(
            f"{what}: source {offsets.name(gone[0])} had rows in attempt "
            f"{len(outcomes) - 1} and has none in attempt {len(outcomes)}, so they are not "
            "written: the query must produce the same rows from the same records every time"
        )


def check_attempts(
    planned: PlannedBatch, outcomes: Sequence[JobOutcome], offsets: GroupOffsets
) -> None:
    """Raises if there have been as many attempts as there may be."""
    outcome = outcomes[-1]
    unwritten = outcome.unwritten
    # Attempts after which more dead letters are divided again end by themselves; so does the
    # first one, in which tasks may have deferred theirs.
    counted = sum(
        not (each.over_limit and (each.moved or each is outcomes[0])) for each in outcomes
    )
    if counted >= planned.settings.limits.max_attempts:
        raise WriteError(
            f"{_named(planned)}: {len(unwritten)} source partitions are not written after "
            f"{len(outcomes)} attempts (limits.max_attempts), the first is "
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
    """Makes later runs refuse rows that came out of order; returns what to tell the user."""
    if not outcome.out_of_order:
        return ""
    command = offsets.command(outcome.out_of_order)
    try:
        marked = offsets.mark(planned.range.starts, outcome.out_of_order)
    except SparkEosError as error:
        named = ", ".join(map(offsets.name, sorted(outcome.out_of_order)))
        return (
            f". Rows of {named} from this batch may not be written although later ones are, "
            f"and this could not be noted in the group's offsets: {error.text}. Set those "
            f"offsets yourself before the next start ({command})"
        )
    found = "; ".join(f"{name} offsets {s.first} to {s.after - 1}" for name, s in marked.items())
    return found and (
        f". Some of these may not be written although later ones are: {found}. This is noted in "
        f"the group's offsets, and no query of the group starts until they are set ({command}): "
        "to the first one, to write all of them again, or past the last one, to continue without "
        "them"
    )


# Three divisions bring the default of 100,000 records down to a single row.
_SHRINK: Final = 64
_GROW: Final = 4
_SIZES: Final = ("max_records", "max_bytes", "max_ms")


class TransactionSize:
    """How much smaller a run's transactions are than its settings allow, after some took long."""

    def __init__(self) -> None:
        self._shrunk = 1

    def of(self, settings: WriterSettings) -> WriterSettings:
        """The settings of tasks with transactions of that size."""
        most = settings.transactions
        sizes: dict[str, Any] = {
            name: max(1, getattr(most, name) // self._shrunk) for name in _SIZES
        }
        return replace(settings, transactions=replace(most, **sizes))

    def shrink(self, settings: WriterSettings) -> None:
        """Makes transactions smaller, down to a single row."""
        self._shrunk = min(self._shrunk * _SHRINK, settings.transactions.max_records)
        size = self.of(settings).transactions
        warn(
            logger,
            "EOS54",
            "group %s: transactions took longer than transactions.timeout_ms=%d and are smaller "
            "from now on: at most %d records, %d bytes, %d ms. They grow again with each batch "
            "that finishes in time. If this happens often, raise transactions.timeout_ms",
            settings.group_id,
            size.timeout_ms,
            size.max_records,
            size.max_bytes,
            size.max_ms,
        )

    def after(self, outcomes: Sequence[JobOutcome]) -> None:
        """Makes transactions larger again after a batch that finished in time."""
        if outcomes and not any(outcome.too_slow for outcome in outcomes):
            self._shrunk = max(1, self._shrunk // _GROW)
