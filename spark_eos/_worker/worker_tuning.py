"""Reduces what Spark's Python worker processes lose from task to task."""

import contextlib
import functools
import gc
import os
import socket
from typing import Final

from spark_eos._worker.spark_connection import SparkConnection

# Linux alone has it; elsewhere nothing is to be done.
_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)


def reduce_task_overhead(connection: SparkConnection) -> None:
    """Removes two delays that Spark causes in every task of this worker process.

    Call it at the start of a task, before the first row is read.

    Garbage collection: between tasks Spark's daemon runs a full one, which takes tens of
    milliseconds once pyarrow and pandas are loaded. Objects alive at the first task's start are
    excluded from then on, so cycles among them are never freed.

    Delayed acknowledgements: Spark writes to its workers in small pieces, each of which waits until
    the previous one is acknowledged (RFC 896). Linux acknowledges 40 ms later unless asked to do so
    at once (RFC 1122, 4.2.3.2). Unix domain sockets
    (``spark.python.unix.domain.socket.enabled``) need no acknowledgement.
    """
    _freeze_once()
    descriptor = connection.descriptor
    if _AT_ONCE is None or descriptor is None:
        return
    # With a default timeout, the socket object below would make Spark's own socket non-blocking.
    if socket.getdefaulttimeout() is None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as spark:
            if spark.family in (socket.AF_INET, socket.AF_INET6):
                spark.setsockopt(socket.IPPROTO_TCP, _AT_ONCE, 1)


@functools.cache
def _freeze_once() -> None:
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.collect()
        gc.freeze()
