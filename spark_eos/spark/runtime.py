"""What a run needs of the place it runs in, so that the core is one for every kind of Spark."""

from contextlib import AbstractContextManager
from typing import Protocol

from pyspark.sql import DataFrame, Row

from spark_eos.batch.plan import BatchRange
from spark_eos.driver.offset_log import OffsetLog
from spark_eos.driver.query_run import QueryRun
from spark_eos.errors import QueryStoppedError


class QueryRuntime(Protocol):
    """One run's runtime: the query, its checkpoint, and Spark's way to run a job.

    Attributes:
        run_id: Spark's id of the query's run; "" if the sink was called outside of one.
        offset_log: the query's checkpoint.
        tasks_outlive_stop: seconds for which tasks may go on when the query is stopped, and for
            which the run therefore ends the transactions that they leave open.
        stop_waits: whether who stops the query waits for the sink, which must not take so long.
    """

    run_id: str
    offset_log: OffsetLog
    tasks_outlive_stop: float
    stop_waits: bool

    def hold(self, frame: DataFrame) -> bool:
        """Whether a batch belongs to this run, not to a later one."""

    def active(self) -> bool:
        """Whether the run goes on; asked about once a second."""

    def end_with(self, run: QueryRun) -> None:
        """Lets the run end, at the latest, when the process does."""

    def batch(self) -> AbstractContextManager[None]:
        """Surrounds a batch, which is not to be torn elsewhere than in a job.

        Raises:
            QueryStoppedError: at its end, if the query was stopped meanwhile.
        """

    def check_batch(self, frame: DataFrame, job: DataFrame, batch: BatchRange) -> None:
        """Refuses a job in which rows may have left their source partitions on the way.

        Called before each of a batch's jobs, in which tasks commit.

        Args:
            frame: the micro-batch as the sink was given it.
            job: what is to run.
            batch: the batch's range.

        Raises:
            UnsupportedPipelineError: as said.
        """

    def cores(self) -> int:
        """Tasks that can run at a time, Spark's default parallelism."""

    def collect(self, frame: DataFrame, description: str) -> list[Row]:
        """Runs a job and returns its rows; ends early, with any error, if the query is stopped.

        Args:
            frame: the rows.
            description: what Spark's web interface is to say of the job, where that can be told.
        """

    def stopped(self, error: BaseException) -> QueryStoppedError | None:
        """What to raise in place of an error if it comes of the query's being stopped.

        No task goes on by then for longer than ``tasks_outlive_stop``.
        """
