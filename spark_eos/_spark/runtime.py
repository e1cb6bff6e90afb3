"""A run's interface to Spark, and the code that classic Spark and Spark Connect share."""

import atexit
import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, Row, SparkSession

from spark_eos._checkpoint.marker import Files
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._exactly_once.batch import Run
from spark_eos._spark.failed_job import executor_fault
from spark_eos._spark.signed_errors import signed_error
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import QueryStoppedError, SparkEosError

# After this many consecutive failures to ask Spark whether the query is active, the query counts as
# ended.
_UNANSWERED: Final = 3


class QueryRuntime(ABC):
    """The runtime of one run: the query, its checkpoint, and how Spark runs a job."""

    # How long tasks may run after a stop; the run then ends the transactions that they left open.
    # Spark cancels tasks, and kills their workers spark.python.task.killTimeout (2 s) later.
    task_kill_grace_s: float = 5.0
    # True if stop() waits for the sink, which must then return before the grace period ends.
    stop_waits: bool
    asynchronous = False  # True if Spark writes the query's logs asynchronously
    files: Files
    offset_log: OffsetLog

    def __init__(self, spark: SparkSession, query_id: str, run_id: str, signature: str) -> None:
        # The session that the query was started in; a batch's session is a clone of it.
        self.session, self._query_id, self.run_id = spark, query_id, run_id
        self._signature = signature
        self._unanswered = 0

    @abstractmethod
    def hold(self, frame: DataFrame) -> bool:
        """Return True if a batch belongs to this run, not to a later one."""

    def active(self) -> bool:
        """Return True if the run is active; called about once a second."""
        try:
            query = self.session.streams.get(self._query_id)
        except Exception:  # noqa: BLE001 - if the JVM has ended, so has the query
            self._unanswered += 1
            return self._unanswered < _UNANSWERED
        self._unanswered = 0
        return query is not None and str(query.runId) == self.run_id

    def end_with(self, run: Run) -> None:
        """Make the run end no later than the process."""
        reference = weakref.ref(run)

        def leave() -> None:
            alive = reference()
            if alive is not None:
                with contextlib.suppress(Exception):
                    alive.leave()

        atexit.register(leave)

    def batch(self, relation: str | None) -> AbstractContextManager[None]:
        """Return a context for a batch, in which a stop may interrupt only Spark jobs.

        ``relation`` is the batch's id on Spark Connect.
        """
        # Spark's stop() interrupts a classic query's jobs, and waits for everything else.
        del relation
        return contextlib.nullcontext()

    @abstractmethod
    def check_batch(self, frame: DataFrame, job: DataFrame, batch: BatchRange) -> None:
        """Refuse, before it starts, a job whose rows may have left their source partitions."""

    @abstractmethod
    def cores(self) -> int:
        """Return the number of tasks that can run at the same time: Spark's default parallelism."""

    @abstractmethod
    def collect(
        self, frame: DataFrame, description: str, *, errors_carried: bool = False
    ) -> list[Row]:
        """Return a job's rows; ``errors_carried``: errors in ``source`` become dead letters."""
        # May raise any error if the query is stopped meanwhile.

    @abstractmethod
    def tasks(self, job: DataFrame) -> int | None:
        """Return a job's number of tasks; None if `collect` can't miss any of their rows."""

    @abstractmethod
    def run_job(
        self, session: SparkSession, action: Callable[[], object], description: str
    ) -> None:
        """Run a job that returns no rows; may raise any error if the query is stopped meanwhile."""

    @abstractmethod
    def observed(self, observation: Observation) -> dict[str, Any]:
        """Return the metrics of an observation whose job has ended."""

    @abstractmethod
    def rows_of_footers(self, path: str) -> int | None:
        """Return the number of rows in Parquet files; None if a job would count them faster."""

    @abstractmethod
    def another_session(self, session: SparkSession) -> SparkSession:
        """Return a session that starts with a copy of the given session's settings."""

    @abstractmethod
    def end_session(self, session: SparkSession) -> None:
        """End a session that `another_session` returned."""

    def why_failed(self, error: Exception) -> SparkEosError | None:
        """Return why a job failed, if known: a task's signed error, or a fault of the executors."""
        text = str(error)
        return signed_error(text, self._signature) or executor_fault(self.session, text)

    @abstractmethod
    def stopped(self, error: BaseException) -> QueryStoppedError | None:
        """Return the error to raise if an error is due to the query's stop, else None."""
        # After a stop, tasks run for at most task_kill_grace_s.
