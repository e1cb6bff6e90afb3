"""Keeps the errors of batches for the code that waits for the query: Spark passes on only text."""

import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cachetools import LRUCache
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_eos._spark.failed_query import without_trace
from spark_eos._spark.signed_errors import new_signature, sign, signed_error
from spark_eos.errors import QueryFailedError, SparkEosError

_MOST_RUNS: Final = 1_000
_LOCK: Final = threading.Lock()


class Failures:
    """The failures of one start's batches.

    Attributes:
        signature: Marks the errors that this start's tasks (on Connect, also its batches) raise.
    """

    def __init__(self) -> None:
        self.signature = new_signature()
        self._last: QueryFailedError | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep a batch's error, in the process that waits for the query."""
        try:
            yield
        except Exception as error:
            self._last = _as_failure(error)
            raise

    @contextmanager
    def signed(self) -> Iterator[None]:
        """Sign a batch's error, in the process in which Connect runs the batch."""
        try:
            yield
        except SparkEosError as error:
            sign(error, self.signature)
            raise
        except Exception as error:
            told = SparkEosError(_as_failure(error).text)
            sign(told, self.signature)
            raise told from error

    def last(self, text: str) -> QueryFailedError | None:
        """Return the failure of a query that ended with this text; None if no batch raised it."""
        if self._last is None and (error := signed_error(text, self.signature)) is not None:
            return _as_failure(error)
        return self._last


_FAILURES_BY_RUN: Final[LRUCache[str, Failures]] = LRUCache(_MOST_RUNS)


def note_run(run_id: str, failures: Failures) -> None:
    with _LOCK:
        _FAILURES_BY_RUN[run_id] = failures


def failure_of(run_id: str, text: str) -> QueryFailedError | None:
    """Return the failure of a run that ended with this text; None if no batch raised it."""
    with _LOCK:
        failures = _FAILURES_BY_RUN.get(run_id)
    return None if failures is None else failures.last(text)


def _as_failure(error: Exception) -> QueryFailedError:
    if type(error) is SparkEosError:
        return QueryFailedError(error.text)
    if isinstance(error, SparkEosError):
        return QueryFailedError(f"{type(error).__name__}: {error.text}", error.entry)
    if isinstance(error, PySparkException | Py4JError):
        return QueryFailedError(f"{type(error).__name__}: {without_trace(str(error))}")
    return QueryFailedError("".join(traceback.format_exception_only(error)).strip())
