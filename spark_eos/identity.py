"""Transactional ids: ``<prefix>/<group>/<node>/<slot>``, one per Python worker process and query.

A node is a host, a slot the lowest number whose lock file no live process holds; so the ids are
as few as the workers, and a worker that takes a dead one's slot ends what that one left open.
"""

import getpass
import os
import re
import secrets
import socket
import tempfile
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import filelock

from spark_eos.errors import ConfigurationError

_MOST_SLOTS = 10_000


def id_stem(prefix: str, group_id: str) -> str:
    """What all transactional ids of a group's query begin with.

    The group is percent-encoded, so that no other group's ids begin alike.
    """
    return f"{prefix}/{quote(group_id, safe='')}"


def id_prefix(prefix: str, group_id: str) -> str:
    """What an ACL names that covers exactly a query's transactional ids (KIP-290)."""
    return f"{id_stem(prefix, group_id)}/"


def id_prefix_of(transactional_id: str) -> str:
    """The `id_prefix` of the query that an id belongs to."""
    return re.sub(r"/(driver|[^/]+/[0-9]+)$", "/", transactional_id)


def id_pattern(prefix: str, group_id: str) -> str:
    """A regular expression (RE2) for exactly the ids that workers of the query may hold."""
    stem = re.sub(r"([^A-Za-z0-9_/-])", r"\\\1", id_stem(prefix, group_id))
    return f"^{stem}/[^/]+/[0-9]+$"


def driver_id(prefix: str, group_id: str) -> str:
    """The id with which the driver tries the transaction settings; it never writes."""
    return f"{id_stem(prefix, group_id)}/driver"


def default_directory() -> Path:
    """Where a host keeps its node id and slots: a private directory below the temporary one."""
    return Path(tempfile.gettempdir()) / f"spark-eos-{_user()}"


def _user() -> str:
    try:
        return str(os.getuid())
    except AttributeError:  # no user ids on Windows
        return getpass.getuser()


class Slot:
    """A transactional id held by this process until it ends or releases it.

    Args:
        prefix: the transactional id prefix.
        group_id: the consumer group.
        directory: the host's directory; None for `default_directory`.

    Raises:
        ConfigurationError: the directory can't be used.
    """

    def __init__(self, prefix: str, group_id: str, directory: str | None) -> None:
        base = Path(directory) if directory else default_directory()
        stem = id_stem(prefix, group_id)
        locks = base / sha256(stem.encode()).hexdigest()[:16]
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            locks.mkdir(mode=0o700, exist_ok=True)
            node = _node_id(base)
            self._lock, number = _lowest_free(locks)
        except OSError as error:
            raise ConfigurationError(
                f"worker_directory {base} can't be used on {socket.gethostname()}: {error}"
            ) from error
        self.transactional_id = f"{stem}/{node}/{number}"

    def release(self) -> None:
        """Lets another process take the id."""
        self._lock.release()


def _node_id(base: Path) -> str:
    host = quote(socket.gethostname(), safe="")
    # The host's name is part of the file's, since containers may share a directory or an image.
    path = base / f"node-{host}"
    with filelock.FileLock(base / f"node-{host}.lock"):
        node = path.read_text() if path.exists() else ""
        if not node:
            node = f"{host}-{secrets.token_hex(4)}"
            path.write_text(node)
        return node


def _lowest_free(locks: Path) -> tuple[filelock.BaseFileLock, int]:
    for number in range(_MOST_SLOTS):
        lock = filelock.FileLock(locks / f"slot-{number}.lock", is_singleton=False)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            continue
        return lock, number
    raise OSError(f"all {_MOST_SLOTS} slots in {locks} are taken")
