"""Reduces what Spark's Python worker processes lose from task to task."""

import contextlib
import functools
import gc
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_OPEN_FILES: Final = Path("/proc/self/fd")
# Linux alone has it; elsewhere nothing is to be done.
_AT_ONCE: Final = getattr(socket, "TCP_QUICKACK", None)


def reduce_task_overhead() -> None:
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
    sockets = _at_first_task()
    # With a default timeout, the socket object below would make Spark's own socket non-blocking.
    if _AT_ONCE is not None and socket.getdefaulttimeout() is None:
        for descriptor, inode in sockets:
            _acknowledge(descriptor, inode, _AT_ONCE)


@functools.cache
def _at_first_task() -> list[tuple[int, int]]:
    """Spark's sockets: descriptors and inodes, since a descriptor may be reused later.

    Collected only once: later the sockets of Kafka clients would be among them.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.collect()
        gc.freeze()
    return list(_open_sockets())


def _open_sockets() -> Iterator[tuple[int, int]]:
    # Only Linux lists them, and only Linux has an option to acknowledge at once.
    with contextlib.suppress(OSError):
        for file in list(_OPEN_FILES.iterdir()):
            with contextlib.suppress(OSError):
                status = os.fstat(int(file.name))
                if stat.S_ISSOCK(status.st_mode):
                    yield int(file.name), status.st_ino


def _acknowledge(descriptor: int, inode: int, at_once: int) -> None:
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_ino != inode:
            return
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, at_once, 1)
