"""One run of a query, on the driver: from the first batch after its start to its end."""

import threading
from collections.abc import Callable

from spark_eos._batch.batch_report import BatchReport, batch_report
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._driver.membership import GroupMembership
from spark_eos._driver.open_transactions import OpenTransactions
from spark_eos._driver.start import Start
from spark_eos._progress.offsets import GroupOffsets
from spark_eos._progress.progress import Progress
from spark_eos._progress.renewal import IdleRenewal
from spark_eos._progress.strategy import Batch, Query, StrategyOf
from spark_eos._run.attempts import Attempts, TransactionSize
from spark_eos.errors import FencedByNewerRunError


class Run:
    """Writes batches, each exactly once, until one fails or the query stops."""

    def __init__(
        self,
        run_id: str,
        start: Start,
        settings: WriterSettings,
        strategy: StrategyOf,
        *,
        watch: Callable[[], bool],
        prepared_ms: int | None = None,
        asynchronous: bool = False,
        why: str = "",
    ) -> None:
        self.run_id = run_id
        self.leaving = False
        self._settings = settings
        limits = settings.limits
        self._max_attempts = limits.max_attempts
        self._start = start
        self._membership = GroupMembership(
            start.target,
            settings.group_id,
            max_members=limits.max_members,
            group_timeout_ms=limits.group_timeout_ms,
            watch=watch,
            each_heartbeat=self._renew_if_due,
            at_end=self.leave,
        )
        self._transactions = OpenTransactions(start.target, settings)
        offsets = GroupOffsets(start.target, settings, self._membership, self._transactions)
        self._renewal = IdleRenewal(settings, self._membership, offsets)
        query = Query(settings, start, offsets)
        self._progress = Progress(
            query,
            strategy(query),
            self._membership,
            prepared_ms,
            asynchronous=asynchronous,
            why=why,
        )
        self._size = TransactionSize(settings)
        self._ending = threading.Lock()
        self._sweeping = False

    def write(self, batch: Batch) -> BatchReport:
        """Writes one micro-batch exactly once."""
        progress = self._progress
        with self._renewal.batch(), batch.clock.step("total"):
            work = progress.recover(batch)
            outcomes, members = Attempts(progress, self._size, work, self._max_attempts).run()
            work = progress.finish(work, outcomes)
        return batch_report(
            self._settings,
            batch.checkpoint.query_id(),
            self.run_id,
            progress.version,
            work.range,
            outcomes,
            members,
            batch.clock.milliseconds,
            work.lost,
            progress.delivery,
        )

    def newer_run(self) -> FencedByNewerRunError | None:
        """The error of the newer run that has the group by now, if any; asks the brokers."""
        return self._membership.newer_run()

    def _renew_if_due(self) -> None:
        self._renewal.renew_if_due()

    # The end ----------------------------------------------------------------------------------

    def leave(self, tasks_outlive_stop: float = 0.0, *, aside: bool = False) -> None:
        """Ends the run cleanly: its members leave the group. May be called again."""
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
                self._start.close()
            self.leaving = False

    def _sweep(self, seconds: float) -> None:
        try:
            self._transactions.end_after_stop(seconds)
        finally:
            self._start.close()

    def abandon(self) -> None:
        """Ends the run without leaving the group, so that a newer run takes its members over."""
        self._membership.abandon()
        self._start.close()
