"""Runs queries until they end or a signal stops them, in programs that do nothing else."""

import atexit
import contextlib
import functools
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._client.argument_types import typed
from spark_eos._pyspark_internals import set_spark_log_level
from spark_eos._sink.batches import why_failed
from spark_eos._sink.failures import failure_of
from spark_eos._spark.failed_query import cause_of
from spark_eos.errors import QueryFailedError

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# Maximum delay before a signal is noticed while the query runs.
_POLL_SECONDS: Final = 1
# How long a call to Spark waits at a prompt; Spark refuses 0.
_LEAST_SECONDS: Final = 0.001
# Time for a batch to end by itself before it is interrupted.
_BATCH_SECONDS: Final = 5
_PAUSE_SECONDS: Final = 0.02
_SAID: Final = "Interrupted: the query has stopped; its next start continues from there."


@typed
def run(query: StreamingQuery, *others: StreamingQuery) -> None:
    """Wait in a script until its queries end; Ctrl-C or SIGTERM stops them cleanly.

    A query stops after the current batch, or in the middle of it if that takes longer than 5 s.
    If a query fails, the other queries stop in the same way. A second signal ends the script at
    once. The script's own signal handlers stay in place. At a prompt, in a notebook and outside
    the main thread, no signals are handled. When the function returns or raises, signal handlers
    and log levels are restored. While Python exits, Spark logs only errors, so that the end of the
    output shows the cause.

    Args:
        query: A query that has started.
        others: Further queries of the script.

    Raises:
        QueryFailedError: A query has failed; the text is the cause, without Spark's plan.
        SystemExit: A signal has stopped the queries, as a line on stderr says; the status is
            128 + the signal's number.

    Examples:
        ::

            query = sink.write(orders.select("source", "key", "value")).start()
            spark_eos.run(query)
    """
    if hasattr(sys, "ps1") or threading.current_thread() is not threading.main_thread():
        wait([query, *others], StopSignals(), at_prompt=hasattr(sys, "ps1"))
        return
    # py4j would log the exception that `wait` raises, with a stack trace.
    with StopSignals() as signals, _py4j_quiet():
        signals.waiting = True
        _quiet_exit()
        wait([query, *others], signals)
    if signals.status is not None:
        sys.stderr.write(f"{_SAID}\n")
        raise SystemExit(signals.status)


def _ended(query: StreamingQuery, seconds: Any) -> bool | None:
    """Wait for a query to end; raise a failure as `QueryFailedError` with its cause."""
    try:
        return query.awaitTermination(seconds)
    except StreamingQueryException as error:
        text = str(error)
        failed = failure_of(str(query.runId), text) or QueryFailedError(cause_of(text))
        if failed.entry == QueryFailedError.entry and (why := why_failed(query)) is not None:
            failed = QueryFailedError(f"{type(why).__name__}: {why.text}", why.entry)
        raise failed from None


@functools.cache
def _quiet_exit() -> None:
    """Make Spark log only errors once Python exits, since spark-submit's JVM outlives it."""
    atexit.register(_set_level_of_spark, "ERROR")


# Only for programs that do nothing but run queries. All handlers are restored at the end.
class StopSignals:
    """Handles SIGINT and SIGTERM: stores the first, or ends the program; the second ends it."""

    def __init__(self) -> None:
        self.status: int | None = None  # the program's exit status, after a signal
        # Whether to keep the first signal instead of raising. While a query runs, an exception
        # could interrupt a call to the JVM, and the next call, which stops the query, would read
        # the answer to the interrupted call.
        self.waiting = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers; also replaces the handler that Spark installs when it starts."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # Leave the program's own handlers in place.
            if _is_default(handler):
                self._before.setdefault(number, handler)
                signal.signal(number, self._received)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        for handled in self._before:
            signal.signal(handled, signal.SIG_DFL)
        self.status = 128 + number
        if not self.waiting:
            raise SystemExit(self.status)


def _is_default(handler: Any) -> bool:
    """Return True for Python's handler, and for Spark's, which cancels jobs and fails the batch."""
    return handler in {signal.default_int_handler, signal.SIG_DFL} or (
        callable(handler) and getattr(handler, "__module__", "").startswith("pyspark.")
    )


def wait(
    queries: Sequence[StreamingQuery], signals: StopSignals, *, at_prompt: bool = False
) -> None:
    """Wait until all queries end; stop them after a signal or a failure, and raise the failure.

    Raises:
        QueryFailedError: A query has failed.
    """
    running = [*queries]
    try:
        # A signal during a call to the JVM is noticed when the call returns.
        while signals.status is None and running:
            seconds: Any = _POLL_SECONDS / len(running)
            if at_prompt:
                # Ctrl-C raises an exception here. If it interrupted a call to the JVM, the next
                # call would read the answer to the interrupted one.
                time.sleep(_POLL_SECONDS)
                seconds = _LEAST_SECONDS
            running = [query for query in running if not _ended(query, seconds)]
    except (QueryFailedError, PySparkException, Py4JError, ConnectionError):
        _stop(running)
        if signals.status is None:
            raise
    else:
        _stop(running)


def _stop(queries: Sequence[StreamingQuery]) -> None:
    """Stop queries, after the current batch if it ends soon."""
    if queries:
        end = time.monotonic() + _BATCH_SECONDS
        with _spark_quiet():
            for query in queries:
                _stop_between_batches(query, end)


def _stop_between_batches(query: StreamingQuery, end: float) -> None:
    try:
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
            time.sleep(_PAUSE_SECONDS)
        query.stop()
    except (PySparkException, Py4JError, ConnectionError) as error:
        # Ctrl-C may have reached the JVM too, and ended it together with the query.
        logger.debug("stopping the query: %s", error)


@contextlib.contextmanager
def _spark_quiet() -> Iterator[None]:
    """Suppress the stack traces that Spark and py4j log for a batch interrupted by a stop."""
    with _py4j_quiet(), _OF_SPARK.lowered("ERROR"):
        yield


def _py4j_quiet() -> AbstractContextManager[None]:
    return _OF_PY4J.lowered(logging.CRITICAL)


def _set_level_of_spark(level: str) -> str:
    try:
        return set_spark_log_level(level)
    except (Py4JError, ConnectionError):
        return ""


def _set_level_of_py4j(level: int) -> int:
    py4j = logging.getLogger("py4j")
    before = py4j.level
    py4j.setLevel(level)
    return before


class _Level:
    """A log level; several threads may lower it at once, and the last one restores it."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self._change = change  # sets a level, and returns the previous one; "" if unknown
        self._lock = threading.Lock()
        self._users = 0
        self._before: Any = ""

    @contextlib.contextmanager
    def lowered(self, level: Any) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._before = self._change(level)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._before != "":
                    self._change(self._before)


_OF_SPARK: Final = _Level(_set_level_of_spark)
_OF_PY4J: Final = _Level(_set_level_of_py4j)
