"""The slot of a Python worker process, which makes its transactional id unique."""

# A node stands for a host, and a slot is the lowest number whose lock file no live process holds.
# So there are no more transactional ids than workers, and a worker that takes a dead worker's slot
# ends that worker's open transaction. A cleanup of temporary files may remove a lock file that is
# still held. Another worker then creates and locks a new file. An inode is not reused until all
# processes have closed it, so the two files have different inodes, and the two workers have
# different transactional ids.

import contextlib
import fcntl
import os
import re
import secrets
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

import filelock

from spark_eos._kafka.transactional_ids import id_stem
from spark_eos._private_paths import (
    default_directory,
    open_private,
    private_directory,
    private_text,
    write_private_text,
)
from spark_eos.errors import ConfigurationError

_MOST_SLOTS: Final = 10_000
# Seconds to wait for the lock of the node's file; its holder writes only one line.
_LOCK_SECONDS: Final = 10.0


class Slot:
    """A transactional id that this process holds until it ends or releases it."""

    def __init__(self, prefix: str, group_id: str, directory: str | None) -> None:
        base = Path(directory) if directory else default_directory()
        stem = id_stem(prefix, group_id)
        locks = Path(sha256(stem.encode()).hexdigest()[:16])
        try:
            base.parent.mkdir(parents=True, exist_ok=True)
            # Users may let others read a directory that they chose themselves.
            with private_directory(base, readable=bool(directory)) as inside:
                node = _node_id(base, inside)
                with private_directory(locks, inside) as slots:
                    self._lock, number = _lowest_free(slots, base / locks)
        except OSError as error:
            raise ConfigurationError(
                f"worker_directory {base} can't be used on {socket.gethostname()}: {error}"
            ) from error
        inode = os.fstat(self._lock).st_ino
        self.transactional_id = f"{stem}/{node}-{inode}/{number}"

    def release(self) -> None:
        os.close(self._lock)


def _node_id(base: Path, inside: int) -> str:
    host = quote(socket.gethostname(), safe="")
    # Name the file after the host: containers may share a directory or an image.
    name = f"node-{host}"
    with _locked(base / f"{name}.lock"):
        node = private_text(name, inside)
        # Check the node's name: it becomes part of the transactional ids, by which open
        # transactions are found.
        if node is None or not re.fullmatch(rf"{re.escape(host)}-[0-9a-f]{{8}}", node):
            node = f"{host}-{secrets.token_hex(4)}"
            write_private_text(name, node, inside)
        return node


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with filelock.FileLock(path, timeout=_LOCK_SECONDS, mode=0o600):
            yield
    except filelock.Timeout as error:
        raise OSError(
            f"another process has held the lock {path} for {_LOCK_SECONDS:g} s: end it, or set "
            "worker_directory to another directory"
        ) from error


def _lowest_free(inside: int, locks: Path) -> tuple[int, int]:
    """Lock the lowest free slot's file; return the file's descriptor and the slot's number."""
    for number in range(_MOST_SLOTS):
        file = open_private(f"slot-{number}.lock", os.O_RDWR | os.O_CREAT, inside)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            # Some network file systems raise PermissionError.
            if not isinstance(error, BlockingIOError | PermissionError):
                raise
        else:
            return file, number
    raise OSError(f"all {_MOST_SLOTS} slots in {locks} are taken")
