"""A data source's batch while Spark runs its job in separate processes."""

import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any

from spark_eos.batch.batch_report import BatchReport
from spark_eos.batch.plan import BatchPlan, BatchRange, Partitions
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.driver.query_run import QueryRun
from spark_eos.errors import QueryStoppedError, WriteError


class InFlightBatch:
    """A planned batch whose job Spark runs.

    `QueryRun.process` runs on a separate thread, where it waits for the job's outcome.

    Args:
        run: The query's run.
        batch_id: Spark's number of the batch.

    Attributes:
        batch_id: Spark's number of the batch.
    """

    def __init__(self, run: QueryRun, batch_id: int) -> None:
        self.batch_id = batch_id
        self._run = run
        self._plan: Future[BatchPlan] = Future()
        self._outcome: Future[JobOutcome] = Future()
        self._report: Future[BatchReport] = Future()
        threading.Thread(target=self._process, name=f"batch-{batch_id}", daemon=True).start()

    def _process(self) -> None:
        try:
            self._report.set_result(self._run.process(self.batch_id, self._job))
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits for the report
            self._report.set_exception(error)

    def _job(
        self,
        settings: WriterSettings,
        batch: BatchRange,
        batch_plan: BatchPlan,
        only: Partitions | None,
    ) -> JobOutcome:
        if only is None:
            # There is no further round that could give one partition what others have not used, or
            # write what a task has held back.
            most = sum(plan.max_dead_letters for plan in batch_plan.values())
            self._plan.set_result(
                {
                    place: replace(plan, max_dead_letters=most, holds_back=False)
                    for place, plan in batch_plan.items()
                }
            )
            return self._outcome.result()
        (topic, partition), *_ = only
        raise WriteError(
            f"batch {batch.batch_id} of group {settings.group_id!r}: {len(only)} source partitions "
            f"are not written, the first is {topic}-{partition}: {self._outcome.result().reason}. "
            "A data source can't write them in a second job. Restart the query; it continues "
            "exactly once"
        )

    def plan(self) -> BatchPlan:
        """Waits for the plan.

        Raises:
            SparkEosError: The batch can't be written.
        """
        either: list[Future[Any]] = [self._plan, self._report]
        wait(either, return_when=FIRST_COMPLETED)
        if not self._plan.done():
            self._report.result()
        return self._plan.result()

    def settle(self, outcome: JobOutcome) -> BatchReport:
        """Ends the batch with what its tasks reported.

        Raises:
            SparkEosError: Rows are missing; those that were committed are committed once.
        """
        self._outcome.set_result(outcome)
        return self._report.result()

    def give_up(self) -> None:
        """Ends the batch without an outcome of its tasks."""
        if not self._outcome.done():
            self._outcome.set_exception(QueryStoppedError("the query was stopped in a batch"))
        wait([self._report])
