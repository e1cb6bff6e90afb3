"""Warns of rows that are older than their topic's retention."""

import logging
from collections import Counter
from collections.abc import Sequence

from spark_eos._client.printable import counted
from spark_eos._worker.task_report import JobOutcome
from spark_eos.errors import warn

logger = logging.getLogger(__name__)


class RetentionWarning:
    """Warns once in a run."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._warned = False

    def after(self, outcomes: Sequence[JobOutcome]) -> None:
        """Warn after the first batch that has written such rows."""
        rows: Counter[str] = Counter()
        for outcome in outcomes:
            rows.update(outcome.counters.past_retention)
        if rows and not self._warned:
            self._warned = True
            warn(
                logger,
                "EOS72",
                "group %s: rows older than retention.ms of their topics, which Kafka soon deletes: "
                "%s. The query's `timestamp` column is the records' time: leave the column out to "
                "write the present time, or raise retention.ms",
                self._group_id,
                ", ".join(f"{counted(number, 'row')} of {topic}" for topic, number in rows.items()),
            )
