"""What makes one of Spark's Python worker processes quick from task to task."""

import gc
import os
import socket
import stat
from pathlib import Path
from typing import Final

_OPEN_FILES: Final = Path("/proc/self/fd")

_quick = False
_sparks_sockets: list[int] = []


def hasten() -> None:
    """Spares this worker process two waits that Spark has in store for every task.

    To be called at the start of a task, before its first row is read. Between tasks Spark's
    daemon runs a full garbage collection, which takes tens of milliseconds once pyarrow and pandas
    are loaded: what is loaded by the first task is taken out of it. And Spark writes to its
    workers in small pieces, each of which waits until the one before it is acknowledged (RFC 896),
    which Linux does 40 ms later unless asked to do so at once (RFC 1122, 4.2.3.2). On Unix domain
    sockets (``spark.python.unix.domain.socket.enabled``) there is nothing to acknowledge.
    """
    global _quick  # noqa: PLW0603 - of the process, as what it tells of
    if not _quick:
        _quick = True
        gc.collect()
        gc.freeze()
        # Later there would be those of Kafka's clients among them.
        _sparks_sockets.extend(_open_sockets())
    for descriptor in _sparks_sockets:
        _acknowledge(descriptor)


def _open_sockets() -> list[int]:
    # Only Linux tells which there are, and only Linux can be asked to acknowledge.
    if not _OPEN_FILES.is_dir():
        return []
    return [number for number in (int(f.name) for f in _OPEN_FILES.iterdir()) if _is_socket(number)]


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _acknowledge(descriptor: int) -> None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    except OSError:
        pass  # closed, or of another kind by now
