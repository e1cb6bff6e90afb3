"""What a run needs from Spark, and what classic Spark and Spark Connect have in common."""

import atexit
import contextlib
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, Observation, Row, SparkSession

from spark_eos._batch.plan import BatchRange
from spark_eos._driver.checkpoint_marker import Files
from spark_eos._driver.offset_log import OffsetLog
from spark_eos._run.run import Run
from spark_eos.errors import QueryStoppedError

# Consecutive failures to ask Spark whether the query is active, before it counts as ended.
_UNANSWERED: Final = 3


class QueryRuntime(Protocol):
    """One run's runtime: the query, its checkpoint, and Spark's way to run a job.

    Attributes:
        run_id: Spark's id of the query's run; "" if the sink was called outside of one.
        task_kill_grace_s: Seconds that tasks may keep running after the query is stopped. For as
            long, the run ends the transactions that they leave open.
        stop_waits: Whether the caller of ``stop()`` waits for the sink, which must then return
            sooner than that.
        asynchronous: Whether Spark writes the query's logs asynchronously.
    """

    run_id: str
    files: Files
    offset_log: OffsetLog
    task_kill_grace_s: float
    stop_waits: bool
    asynchronous: bool

    def hold(self, frame: DataFrame) -> bool:
        """Whether a batch belongs to this run, not to a later one."""

    def active(self) -> bool:
        """Whether the run is active; called about once a second."""

    def end_with(self, run: Run) -> None:
        """Makes the run end when the process does, at the latest."""

    def batch(self, relation: str | None) -> AbstractContextManager[None]:
        """Surrounds a batch, which may be interrupted only in a job.

        ``relation``: on Spark Connect, the server's id of the micro-batch, if known.
        """

    def check_batch(self, frame: DataFrame, job: DataFrame, batch: BatchRange) -> None:
        """Refuses a job whose rows may have left their source partitions.

        Called before each of a batch's jobs, since their tasks commit.
        """

    def cores(self) -> int:
        """Number of tasks that can run at a time: Spark's default parallelism."""

    def collect(
        self, frame: DataFrame, description: str, *, errors_carried: bool = False
    ) -> list[Row]:
        """Runs a job and returns its rows; raises any error if the query is stopped meanwhile.

        ``errors_carried``: whether the job makes dead letters of the errors in ``source``.
        """

    def tasks(self, job: DataFrame) -> int | None:
        """Number of a job's tasks; None if `collect` can't return a part of their rows."""

    def run_job(
        self, session: SparkSession, action: Callable[[], object], description: str
    ) -> None:
        """Runs a job that returns no rows; raises any error if the query is stopped meanwhile."""

    def observed(self, observation: Observation) -> dict[str, Any]:
        """The metrics of an observation whose job has ended."""

    def rows_of_footers(self, path: str) -> int | None:
        """How many rows a directory's Parquet files have, by their footers."""

    def another_session(self, session: SparkSession) -> SparkSession:
        """A session with settings of its own, which are at first those of a given one."""

    def end_session(self, session: SparkSession) -> None:
        """Ends a session that `another_session` returned."""

    def stopped(self, error: BaseException) -> QueryStoppedError | None:
        """The error to raise if an error is due to the query's stop; None if it is not.

        From then on, tasks run for no longer than ``task_kill_grace_s``.
        """


def activity(spark: SparkSession | None, query_id: str, run_id: str) -> Callable[[], bool]:
    """Makes a function that tells whether the query's run is active; always True if unknown."""
    if spark is None or not query_id:
        return lambda: True

    unanswered = 0

    def active() -> bool:
        nonlocal unanswered
        try:
            query = spark.streams.get(query_id)
        except Exception:  # noqa: BLE001 - however the JVM has ended, so has the query
            unanswered += 1
            return unanswered < _UNANSWERED
        unanswered = 0
        return query is not None and str(query.runId) == run_id

    return active


def leave_at_exit(run: Run) -> None:
    """Makes the run's members leave when the interpreter exits."""
    reference = weakref.ref(run)

    def leave() -> None:
        alive = reference()
        if alive is not None:
            with contextlib.suppress(Exception):
                alive.leave()

    atexit.register(leave)
