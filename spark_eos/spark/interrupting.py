"""Ctrl-C in a script that waits for its query: the query stops, and one line says so."""

import contextlib
import functools
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS: Final = 1
# How long a batch may take to end by itself.
_BATCH_SECONDS: Final = 5
_PAUSE_SECONDS: Final = 0.02
_SAID: Final = "Interrupted: the query has stopped, and its next start goes on from there."


def stopping_on_interrupt(query: StreamingQuery) -> StreamingQuery:
    """Lets ``awaitTermination`` without a timeout stop the query before it raises for Ctrl-C.

    Otherwise Python would leave, Spark's JVM would miss it in the middle of a batch, and both
    would print stack traces. A handler of the user's own stays, and so does a prompt, which
    expects that the query goes on.

    Args:
        query: A query that has just started.

    Returns:
        The same object.
    """
    wait = query.awaitTermination

    @functools.wraps(wait)
    def await_termination(timeout: int | None = None) -> bool | None:
        if timeout is not None or not _is_ours():
            return wait(timeout)
        with _Interrupts() as interrupts:
            # A signal during a call to the JVM is noticed when that returns.
            while not (interrupts.any or wait(_POLL_SECONDS)) and query.isActive:
                pass
            if not interrupts.any:
                return None
            with _spark_quiet():
                _stop_between_batches(query)
        _leave_quietly()
        raise KeyboardInterrupt

    vars(query)["awaitTermination"] = await_termination
    return query


def _is_ours() -> bool:
    """Whether Ctrl-C would end the program: in a script's main thread, by Python's handler."""
    if hasattr(sys, "ps1") or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    # pyspark's cancels all jobs, which fails the batch, and raises KeyboardInterrupt then.
    return handler is signal.default_int_handler or (
        callable(handler) and getattr(handler, "__module__", "").startswith("pyspark.")
    )


def _stop_between_batches(query: StreamingQuery) -> None:
    """Stops a query; if its batch ends soon, behind it."""
    end = time.monotonic() + _BATCH_SECONDS
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)
    query.stop()


@contextlib.contextmanager
def _spark_quiet() -> Iterator[None]:
    """Leaves out what Spark and py4j log of a batch that a stop interrupts, with stack traces."""
    context: Any = SparkContext._active_spark_context
    py4j = logging.getLogger("py4j")
    level_of_py4j = py4j.level
    level = None
    py4j.setLevel(logging.CRITICAL)
    if context is not None:
        root = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
        level = root.getLevel().toString()
        context.setLogLevel("ERROR")
    try:
        yield
    finally:
        py4j.setLevel(level_of_py4j)
        if level is not None:
            context.setLogLevel(level)


class _Interrupts:
    """Notes SIGINT instead of raising in the middle of a call."""

    def __init__(self) -> None:
        self.any = False
        self._before: Any = None

    def __enter__(self) -> "_Interrupts":
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.any:  # Twice is meant.
            raise KeyboardInterrupt
        self.any = True


def _leave_quietly() -> None:
    """Shows the interruption, if nobody catches it, as one line without a traceback."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.stderr.write(f"{_SAID}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = hook
