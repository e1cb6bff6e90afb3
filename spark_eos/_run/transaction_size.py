"""How large the transactions of a run's tasks are."""

import logging
from collections.abc import Sequence

from spark_eos._batch.task_report import JobOutcome
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos.errors import warn

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
