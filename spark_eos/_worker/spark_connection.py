"""A worker's connection to Spark, for which PySpark has no public API."""

import contextlib
import functools
import gc
import inspect
import io
import os
import socket
from collections.abc import Iterator
from typing import Final, Protocol, TypeVar

from spark_eos.errors import PrintableError

_Item = TypeVar("_Item")
# Only Linux has this option; other systems don't need it.
_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)


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
        """Return the connection of this worker's task: ``infile`` in ``main`` of pyspark.worker."""
        frame = inspect.currentframe()
        while frame is not None:
            variables = frame.f_locals
            if frame.f_code.co_name == "main" and "infile" in variables and "outfile" in variables:
                return cls(variables["infile"])
            frame = frame.f_back
        raise RuntimeError(
            "the Python workers of this Spark are not PySpark's own, so their connection to Spark "
            "can't be found. Without it, a cancelled task might write a record only in part"
        )

    def reduce_task_overhead(self) -> None:
        """Remove two delays from each task; call this before reading the first row."""
        _freeze_once()
        # Spark writes to its workers in small pieces, each of which waits until the previous one is
        # acknowledged (RFC 896). Linux delays acknowledgements by 40 ms unless told otherwise (RFC
        # 1122, 4.2.3.2). Unix domain sockets (spark.python.unix.domain.socket.enabled) have no such
        # delay. With a default timeout, opening a socket here would make Spark's own socket
        # non-blocking as well.
        if _AT_ONCE is None or socket.getdefaulttimeout() is not None:
            return
        # In a process that was not forked by Spark's daemon, the file has no descriptor.
        with (
            contextlib.suppress(io.UnsupportedOperation, OSError),
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


@functools.cache
def _freeze_once() -> None:
    # Between tasks, Spark's workers collect all garbage, which takes tens of milliseconds once
    # pyarrow and pandas are loaded. Exclude the objects that are alive when the first task starts;
    # cycles among them are then never freed.
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.collect()
        gc.freeze()
