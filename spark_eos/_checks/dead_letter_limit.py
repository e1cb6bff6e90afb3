"""Enforces the limit on a batch's dead letters across tasks that don't know of each other."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_eos._client.printable import counted
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchPlan, BatchRange, Partitions
from spark_eos._worker.task_report import OVER_LIMIT, JobOutcome, dead_letters_of
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import WriteError, warn

logger = logging.getLogger(__name__)


class DeadLetterLimit:
    """Applies ``dead_letters.limit`` to one batch."""

    # Each attempt divides the rest of the limit among the source partitions, so that the limit
    # holds for any number of tasks. A task that needs more than its share stops. In the next
    # attempt, its partitions get the shares that other partitions did not use.
    #
    # If all rows of a batch are dead letters with the same error, the deployment is broken, or an
    # outage looks like bad data. So a task that sees only such rows holds its dead letters back. A
    # further attempt writes them if the batch turns out to have other rows.

    def __init__(
        self, settings: WriterSettings, batch: BatchRange, committed: Positions, rows: int | None
    ) -> None:
        self._settings = settings
        self._batch = batch
        starts = {p: batch.starts.get(p, committed.get(p, 0)) for p in batch.ends}
        if rows is None:
            # Count the whole batch: in a repeated batch, the unwritten part may be mostly bad.
            self._total = sum(max(0, end - starts[p]) for p, end in batch.ends.items())
            self._left = {
                p: max(0, end - max(starts[p], committed.get(p, 0)))
                for p, end in batch.ends.items()
            }
        else:
            self._total = rows
            # It is unknown how the rows are spread over the files.
            self._left = dict.fromkeys(batch.ends, 1)
        option = settings.dead_letters
        self._limit = 0 if option is None else option.most(self._total)
        # True if an earlier run has written rows, some of which may have been good.
        self._begun = any(committed.get(p, 0) > start for p, start in starts.items())

    def plan(
        self, planned: BatchPlan, only: Partitions | None, outcomes: Sequence[JobOutcome]
    ) -> BatchPlan:
        """Return the plan with each source partition's share of the remaining limit."""
        if self._settings.dead_letters is None:
            return planned
        left = self._limit - dead_letters_of(outcomes).total
        chosen = set(planned.partitions)
        if only is not None:
            chosen &= set(only)
        # Give the remaining limit to the partitions that need it. Attempts can't go on forever:
        # each one writes more dead letters, finds another partition with dead letters, or exceeds
        # the limit.
        stopped = {
            partition
            for partition, part in (outcomes[-1].partitions.items() if outcomes else ())
            if part.status == OVER_LIMIT and partition in chosen
        }
        wanting = stopped or chosen
        parts = allowances(left, {p: self._left[p] for p in sorted(wanting)})
        errors = {
            error
            for outcome in outcomes
            for error in (*outcome.dead.errors, *outcome.dead_over_limit.errors)
        }
        mixed = len(errors) > 1 or any(outcome.left_out_others for outcome in outcomes)
        defer_dead_letters = not mixed and self._may_be_all_dead(outcomes)
        limited = {
            p: replace(
                plan, max_dead_letters=parts.get(p, 0), defer_dead_letters=defer_dead_letters
            )
            for p, plan in planned.partitions.items()
        }
        return replace(planned, partitions=limited)

    def check(self, outcomes: Sequence[JobOutcome]) -> None:
        """Raise an error if an attempt exceeded the limit, or if all rows are dead letters."""
        option = self._settings.dead_letters
        if option is None or not outcomes:
            return
        last, dead = outcomes[-1], dead_letters_of(outcomes)
        written = dead.total
        dead.include(last.dead_over_limit)
        batch = f"batch {self._batch.batch_id} of group {self._settings.group_id!r}"
        if dead.total > self._limit:
            raise WriteError(
                f"{batch}: at least {dead.total} of {self._total} records are dead letters, and "
                f"dead_letters.limit={option.limit} allows {self._limit} in this batch. "
                f"The first is {next(iter(dead.first.values()))}. Most frequent: "
                f"{dead.most_frequent()}. {written} of them are in the dead-letter topic "
                f"{option.topic!r}; the rest and all rows after them are not written. Fix the "
                "query, or raise dead_letters.limit, and start again: the query continues where it "
                "stopped"
            )
        all_known = not last.unwritten or (last.over_limit and not last.left_out_others)
        if all_known and dead.is_one_error and self._may_be_all_dead(outcomes):
            raise WriteError(
                f"{batch}: all {dead.total} rows of the batch are dead letters with one error: "
                f"{dead.most_frequent()}. The first is {next(iter(dead.first.values()))}. "
                f"{written or 'None'} of them are in the dead-letter topic {option.topic!r}. "
                "Bad data is seldom the cause; usually, a service is down or the query is broken. "
                "Fix that and start again: the query continues where it stopped. If all rows "
                "of a batch should become dead letters, set dead_letters.limit=1.0"
            )

    def _may_be_all_dead(self, outcomes: Sequence[JobOutcome]) -> bool:
        """Return True if all rows known so far are dead letters, and that is not allowed."""
        option = self._settings.dead_letters
        if option is None or option.allows_all or self._begun:
            return False
        reported: Counter[TopicPartition] = Counter()
        for outcome in outcomes:
            for partition, part in outcome.partitions.items():
                # A lost task may have committed other rows without reporting them.
                if part.rows or part.skipped > reported[partition]:
                    return False
                reported[partition] += part.dead_letters
        return True

    def log(self, outcomes: Sequence[JobOutcome]) -> None:
        """Log the batch's dead letters, without any values."""
        option = self._settings.dead_letters
        dead = dead_letters_of(outcomes)
        if option is None or not dead.total:
            return
        kinds = ", ".join(
            f"{number} {reason} (first: {dead.first[reason]})"
            for reason, number in dead.reasons.items()
        )
        warn(
            logger,
            "EOS55",
            "batch %d of group %s: %s in topic %s: %s",
            self._batch.batch_id,
            self._settings.group_id,
            counted(dead.total, "dead letter"),
            option.topic,
            kinds,
        )


def allowances(limit: int, records: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Divide a batch's limit among source partitions, in proportion to their records."""
    total = sum(records.values())
    weights = records if total else dict.fromkeys(records, 1)
    whole = total or len(records)
    shares = {partition: limit * weight // whole for partition, weight in weights.items()}
    left = max(0, limit - sum(shares.values()))
    for partition in sorted(weights, key=weights.__getitem__, reverse=True)[:left]:
        shares[partition] += 1
    return shares
