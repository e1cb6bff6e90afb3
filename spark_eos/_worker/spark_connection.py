"""A worker's connection with Spark, which PySpark has no public API for."""

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
# Linux alone has it; elsewhere nothing is to be done.
_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)


class _File(Protocol):
    """``io.BufferedReader``, or an ``io.BufferedRWPair``, which has no descriptor."""

    def fileno(self) -> int: ...

    def peek(self, size: int, /) -> bytes: ...


class CutOffError(PrintableError):
    """Spark has ended a task whose rows had not all arrived."""


class SparkConnection:
    """The connection through which Spark's JVM sends a task's rows to this process."""

    def __init__(self, file: "_File") -> None:
        self._file = file

    @classmethod
    def of_worker(cls) -> "SparkConnection":
        """That of a worker in a task; ``pyspark.worker`` has it in ``main(infile, outfile)``."""
        frame = inspect.currentframe()
        while frame is not None:
            variables = frame.f_locals
            if frame.f_code.co_name == "main" and "infile" in variables and "outfile" in variables:
                return cls(variables["infile"])
            frame = frame.f_back
        raise RuntimeError(
            "the Python workers of this Spark are not PySpark's own: their connection with Spark "
            "is not found, without which a record of a cancelled task might be written in part"
        )

    def reduce_task_overhead(self) -> None:
        """Remove two delays of every task; to be called before the first row is read."""
        _freeze_once()
        # Spark writes to its workers in small pieces, each of which waits until the previous one is
        # acknowledged (RFC 896). Linux acknowledges 40 ms later unless asked to do so at once (RFC
        # 1122, 4.2.3.2). Unix domain sockets (spark.python.unix.domain.socket.enabled) need none.
        # A default timeout would make Spark's own socket non-blocking, too.
        if _AT_ONCE is None or socket.getdefaulttimeout() is not None:
            return
        # In a process that no daemon has forked, the file has no descriptor.
        with (
            contextlib.suppress(io.UnsupportedOperation, OSError),
            socket.socket(fileno=os.dup(self._file.fileno())) as spark,
        ):
            if spark.family in (socket.AF_INET, socket.AF_INET6):
                spark.setsockopt(socket.IPPROTO_TCP, _AT_ONCE, 1)

    def whole(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yield the items that Spark sends, and raise if they were not all."""
        # A connection that ends between two batches of rows is an end of rows like any other to
        # Arrow, so the last record may lack rows. After all of them Spark sends one number more,
        # which PySpark reads once the task is over (SpecialLengths.END_OF_STREAM).
        yield from items
        if not self._file.peek(1):
            raise CutOffError("Spark has ended the task before all of its rows had arrived")


@functools.cache
def _freeze_once() -> None:
    # Between tasks Spark's daemon collects all garbage, which takes tens of milliseconds once
    # pyarrow and pandas are loaded. Objects alive at the first task's start are excluded from then
    # on, so cycles among them are never freed.
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.collect()
        gc.freeze()
