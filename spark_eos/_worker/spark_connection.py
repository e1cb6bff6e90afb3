"""A worker's connection with Spark, which PySpark has no public API for."""

import inspect
import io
from collections.abc import Iterator
from typing import Protocol, TypeVar

from spark_eos.errors import PrintableError

_Item = TypeVar("_Item")


class _File(Protocol):
    """``io.BufferedReader``, or an ``io.BufferedRWPair``, which has no descriptor."""

    def fileno(self) -> int: ...

    def peek(self, size: int, /) -> bytes: ...


class CutOffError(PrintableError):
    """Spark has ended a task whose rows had not all arrived."""


class SparkConnection:
    """The connection through which Spark's JVM sends a task's rows to this process.

    Example:
        >>> with_more = SparkConnection(io.BufferedReader(io.BytesIO(b"end of stream")))
        >>> list(with_more.whole([1, 2]))
        [1, 2]
        >>> list(SparkConnection(io.BufferedReader(io.BytesIO(b""))).whole([1, 2]))
        Traceback (most recent call last):
            ...
        spark_eos._worker.spark_connection.CutOffError: Spark has ended the task before all of \
its rows had arrived
    """

    def __init__(self, file: "_File") -> None:
        self._file = file

    @classmethod
    def of_worker(cls) -> "SparkConnection":
        """That of a worker in a task; ``pyspark.worker`` has it in ``main(infile, outfile)``."""
        frame = inspect.currentframe()
        while frame is not None:
            found = frame.f_locals
            if frame.f_code.co_name == "main" and "infile" in found and "outfile" in found:
                return cls(found["infile"])
            frame = frame.f_back
        raise RuntimeError(
            "the Python workers of this Spark are not PySpark's own: their connection with Spark "
            "is not found, without which a record of a cancelled task might be written in part"
        )

    @property
    def descriptor(self) -> int | None:
        """The socket's; None in a process that no daemon has forked, whose file hides it."""
        try:
            return self._file.fileno()
        except io.UnsupportedOperation:
            return None

    def whole(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yields the items that Spark sends, and raises if they were not all.

        A connection that ends between two batches of rows is an end of rows like any other to
        Arrow, so the last record may lack rows. After all of them Spark sends one number more,
        which PySpark reads once the task is over (``SpecialLengths.END_OF_STREAM``).
        """
        yield from items
        if not self._file.peek(1):
            raise CutOffError("Spark has ended the task before all of its rows had arrived")
