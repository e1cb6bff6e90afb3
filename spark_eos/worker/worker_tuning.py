"""What makes one of Spark's Python worker processes quick from task to task."""

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


def reduce_task_overhead() -> None:
    """Spares this worker process two waits that Spark has in store for every task.

    To be called at the start of a task, before its first row is read. Between tasks Spark's
    daemon runs a full garbage collection, which takes tens of milliseconds once pyarrow and pandas
    are loaded: what lives when the first task begins is left out of it from then on, so that
    cycles among those objects are never freed. And Spark writes to its workers in small pieces,
    each of which waits until the one before it is acknowledged (RFC 896), which Linux does 40 ms
    later unless asked to do so at once (RFC 1122, 4.2.3.2). On Unix domain sockets
    (``spark.python.unix.domain.socket.enabled``) there is nothing to acknowledge.
    """
    sockets = _at_first_task()
    # Else a socket object would take the default timeout, and leave Spark's own without waiting.
    if socket.getdefaulttimeout() is None:
        for descriptor, inode in sockets:
            _acknowledge(descriptor, inode)


@functools.cache
def _at_first_task() -> list[tuple[int, int]]:
    """Spark's sockets: descriptors with their inodes, since a number may name another file later.

    Looked for only once: later there would be those of Kafka's clients among them.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):
        gc.collect()
        gc.freeze()
    return list(_open_sockets())


def _open_sockets() -> Iterator[tuple[int, int]]:
    # Only Linux tells which there are, and only Linux can be asked to acknowledge.
    with contextlib.suppress(OSError):
        for file in list(_OPEN_FILES.iterdir()):
            with contextlib.suppress(OSError):
                status = os.fstat(int(file.name))
                if stat.S_ISSOCK(status.st_mode):
                    yield int(file.name), status.st_ino


def _acknowledge(descriptor: int, inode: int) -> None:
    with contextlib.suppress(OSError):
        if os.fstat(descriptor).st_ino != inode:
            return
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
