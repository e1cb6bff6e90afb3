"""A worker's connection with Spark, which PySpark has no public API for."""

import inspect
import select
from collections.abc import Iterator
from typing import Final, TypeVar

from spark_eos.errors import PrintableError

_Item = TypeVar("_Item")

_GONE: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


class CutOffError(PrintableError):
    """Spark has ended a task whose rows had not all arrived."""


class SparkConnection:
    """The connection through which Spark's JVM sends a task's rows to this process.

    Example:
        >>> import os
        >>> receiving, sending = os.pipe()
        >>> connection = SparkConnection(receiving)
        >>> list(connection.whole([1, 2]))
        [1, 2]
        >>> os.close(sending)
        >>> list(connection.whole([1, 2]))
        Traceback (most recent call last):
            ...
        spark_eos._worker.spark_connection.CutOffError: Spark has ended the task before all of \
its rows had arrived
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def of_worker(cls) -> "SparkConnection":
        """That of a worker in a task; ``pyspark.worker`` has it in ``main(infile, outfile)``."""
        frame = inspect.currentframe()
        while frame is not None:
            found = frame.f_locals
            if frame.f_code.co_name == "main" and {"infile", "outfile"} <= found.keys():
                return cls(found["infile"].fileno())
            frame = frame.f_back
        raise RuntimeError(
            "the Python workers of this Spark are not PySpark's own: their connection with Spark "
            "is not found, without which a record of a cancelled task might be written in part"
        )

    def whole(self, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yields the items that Spark sends, and raises if they were not all.

        A connection that ends between two batches of rows is an end of rows like any other to
        Arrow, so the last record may lack rows. Whoever has sent all waits for the results.
        """
        yield from items
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN | _GONE)
        if any(events & _GONE for _, events in poll.poll(0)):
            raise CutOffError("Spark has ended the task before all of its rows had arrived")
