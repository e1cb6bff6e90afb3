"""How many dead letters a batch may have, divided among tasks that do not know of each other."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from spark_eos.batch.dead_letters import allowances
from spark_eos.batch.plan import BatchPlan, BatchRange, Partitions, Positions
from spark_eos.batch.task_report import OVER_LIMIT, JobOutcome, dead_letters_of
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.errors import WriteError

logger = logging.getLogger(__name__)


class DeadLetterLimit:
    """The limit of one batch: ``max_dead_letters``.

    Each round divides what is left of it among the source partitions, so that never more are
    written, in however many tasks. A task that needs more than its part stops, and its partitions
    get what others have not used in a further round.

    Args:
        settings: Writer settings.
        batch: The batch's range.
        committed: The group's offsets by (topic, partition), before the batch.
        rows: Number of rows of a staged batch; None if the batch is written directly.
    """

    def __init__(
        self, settings: WriterSettings, batch: BatchRange, committed: Positions, rows: int | None
    ) -> None:
        self._settings = settings
        self._batch = batch
        starts = {place: batch.starts.get(place, committed.get(place, 0)) for place in batch.ends}
        if rows is None:
            # The whole batch: of a repeated one, most bad records may be in what is left.
            self._total = sum(max(0, end - starts[place]) for place, end in batch.ends.items())
            self._left = {
                place: max(0, end - max(starts[place], committed.get(place, 0)))
                for place, end in batch.ends.items()
            }
        else:
            self._total = rows
            # How the rows are spread over the buckets is not known.
            self._left = dict.fromkeys(batch.ends, 1)
        letters = settings.dead_letters
        self._limit = 0 if letters is None else letters.limit(self._total)

    def plan(
        self, planned: BatchPlan, only: Partitions | None, outcomes: Sequence[JobOutcome]
    ) -> BatchPlan:
        """The plan with each source partition's part of what is left.

        Args:
            planned: The round's plan.
            only: The source partitions of the round; None for all.
            outcomes: The outcomes of earlier rounds.
        """
        if self._settings.dead_letters is None:
            return planned
        left = self._limit - dead_letters_of(outcomes).total
        chosen = planned.keys() if only is None else planned.keys() & set(only)
        # What is left goes to those that need it: so each round ends with more letters written,
        # another partition that needs them, or more than the limit.
        stopped = {
            place
            for place, part in (outcomes[-1].partitions.items() if outcomes else ())
            if part.status == OVER_LIMIT and place in chosen
        }
        wanting = stopped or chosen
        parts = allowances(left, {place: self._left[place] for place in sorted(wanting)})
        return {
            place: replace(plan, max_dead_letters=parts.get(place, 0))
            for place, plan in planned.items()
        }

    def check(self, outcomes: Sequence[JobOutcome]) -> None:
        """Checks the dead letters after a round.

        Raises:
            WriteError: There are more than the limit; the text has the most frequent errors.
        """
        letters = self._settings.dead_letters
        dead = dead_letters_of(outcomes)
        written = dead.total
        if letters is None or not outcomes:
            return
        dead.include(outcomes[-1].dead_over_limit)
        if dead.total <= self._limit:
            return
        raise WriteError(
            f"batch {self._batch.batch_id} of group {self._settings.group_id!r}: at least "
            f"{dead.total} of {self._total} records are dead letters, and max_dead_letters="
            f"{letters.max_dead_letters} allows {self._limit} in this batch. The first is "
            f"{next(iter(dead.first.values()))}. Most frequent: {dead.most_frequent()}. "
            f"{written} of them are in dead_letter_topic {letters.topic!r}; the rest is not "
            "written, nor what follows it. Mend the query, or raise max_dead_letters, and start "
            "again: the query continues where it stopped"
        )

    def log(self, outcomes: Sequence[JobOutcome]) -> None:
        """Logs the batch's dead letters, without any values."""
        letters = self._settings.dead_letters
        dead = dead_letters_of(outcomes)
        if letters is None or not dead.total:
            return
        kinds = ", ".join(
            f"{number} {reason} (first: {dead.first[reason]})"
            for reason, number in dead.reasons.items()
        )
        logger.warning(
            "batch %d of group %s: %d dead letters in topic %s: %s",
            self._batch.batch_id,
            self._settings.group_id,
            dead.total,
            letters.topic,
            kinds,
        )
