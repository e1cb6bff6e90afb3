"""A worker's connection to Spark, for which PySpark has no public API."""

import contextlib
import gc
import inspect
import io
import itertools
import os
import socket
from collections.abc import Iterator
from typing import Final, Protocol, TypeVar

from spark_eos.errors import PrintableError

_Item = TypeVar("_Item")
# Only Linux has this option; other systems don't need it.
_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)
# The first tasks of a process import modules and fill caches.
_FIRST_TASKS: Final = 8
_tasks: Final = itertools.count()


class _File(Protocol):
    """An ``io.BufferedReader``, or an ``io.BufferedRWPair``, which has no descriptor."""

    def fileno(self) -> int: ...

    def peek(self, size: int, /) -> bytes: ...


class CutOffError(PrintableError):
    """Spark ended a task before all of its rows had arrived."""


class SparkConnection:
    """The connection through which Spark's JVM sends a task's rows to this process."""

    def __init__(self, file: "_File") -> None:
        self._file = file

    @classmethod
    def of_worker(cls) -> "SparkConnection":
        """Return the connection of this worker's task; raise if it can't be found."""
        if (connection := _connection()) is not None:
            return connection
        raise RuntimeError(
            "the Python workers of this Spark are not PySpark's own, so their connection to Spark "
            "can't be found. Without it, a cancelled task might write only part of a record's rows"
        )

    def acknowledge_at_once(self) -> None:
        """Don't make Spark wait for this process; call this before reading the first row."""
        # Spark writes to its workers in small pieces, each of which waits until the previous one is
        # acknowledged (RFC 896). Linux delays acknowledgements by 40 ms unless told otherwise (RFC
        # 1122, 4.2.3.2). Unix domain sockets (spark.python.unix.domain.socket.enabled) have no such
        # delay. With a default timeout, opening a socket here would make Spark's own socket
        # non-blocking as well.
        if _AT_ONCE is None or socket.getdefaulttimeout() is not None:
            return
        # In a process that PySpark's daemon did not fork, the file may have no descriptor.
        with (
            contextlib.suppress(io.UnsupportedOperation, OSError, AttributeError),
            socket.socket(fileno=os.dup(self._file.fileno())) as spark,
        ):
            if spark.family in (socket.AF_INET, socket.AF_INET6):
                spark.setsockopt(socket.IPPROTO_TCP, _AT_ONCE, 1)

    def whole(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yield the items that Spark sends; raise if some are missing."""
        # If the connection ends between two batches of rows, Arrow takes that for the end of the
        # rows, so the last record may lack rows. After all rows Spark sends one more number, which
        # PySpark reads once the task is over (SpecialLengths.END_OF_STREAM).
        yield from items
        if not self._file.peek(1):
            raise CutOffError("Spark ended the task before all of its rows had arrived")


def reduce_task_overhead() -> None:
    """Remove two delays from this worker's tasks; our own functions for ``mapInArrow`` begin here.

    Functions that call a user's function don't: each task has its own copy of that function, and a
    copy that refers to itself would stay forever.
    """
    # Between tasks, Spark's workers collect all garbage, which takes up to a tenth of a second once
    # pyarrow and pandas are loaded. Exclude the objects that are alive when the first tasks start;
    # cycles among them are then never freed.
    if os.environ.get("SPARK_REUSE_WORKER") and (task := next(_tasks)) < _FIRST_TASKS:
        if not task:
            gc.collect()
        gc.freeze()
    if (connection := _connection()) is not None:
        connection.acknowledge_at_once()


def _connection() -> SparkConnection | None:
    """Return the connection that ``main`` of pyspark.worker has as ``infile``, if it is there."""
    frame = inspect.currentframe()
    while frame is not None:
        # Don't read this function's own variables: they include its frame, which makes a cycle.
        if frame.f_code.co_name == "main":
            variables = frame.f_locals
            if "infile" in variables and "outfile" in variables:
                return SparkConnection(variables["infile"])
        frame = frame.f_back
    return None
