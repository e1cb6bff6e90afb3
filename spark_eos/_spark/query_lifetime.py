"""When a run ends: with its query, with the JVM, or with the driver's process."""

import atexit
import contextlib
import weakref
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from spark_eos._run.run import Run

# Consecutive failures to ask Spark whether the query is active, before it counts as ended.
_UNANSWERED: Final = 3


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
