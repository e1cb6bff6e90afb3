"""Warns of rows that are older than their topic's retention."""

import logging
from collections import Counter
from collections.abc import Sequence

from spark_eos._client.printable import counted
from spark_eos._worker.task_report import JobOutcome
from spark_eos.errors import warn

logger = logging.getLogger(__name__)


class RetentionWarning:
    """Warns at most once per run."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._warned = False

    def after(self, outcomes: Sequence[JobOutcome]) -> None:
        """Warn after the first batch with rows that are older than their topic's retention."""
        rows: Counter[str] = Counter()
        for outcome in outcomes:
            rows.update(outcome.counters.past_retention)
        if rows and not self._warned:
            self._warned = True
            warn(
                logger,
                "EOS72",
                "group %s: rows are older than retention.ms of their topics, so Kafka will soon "
                "delete them: %s. The query's `timestamp` column sets the records' time: leave the "
                "column out to use the time of writing, or raise retention.ms",
                self._group_id,
                ", ".join(f"{counted(number, 'row')} of {topic}" for topic, number in rows.items()),
            )
