"""The socket between a keeper and its clients: the peer's identity, and messages.

A message is JSON (UTF-8) after a header of eight bytes: four for the protocol and its version, four
for the length. Nothing received is ever run, and nothing is read from, or sent to, a process of
another user.
"""

import contextlib
import ctypes
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from spark_eos.errors import SparkEosError
from spark_eos.kafka.deadline import Deadline

# The last byte is the version of `spark_eos.datasource.keeper_messages`.
_PROTOCOL: Final = b"EOS\x04"
_HEADER: Final = struct.Struct(">4sI")
# Ample: a message has about 200 bytes per source partition.
_LONGEST: Final = 1 << 28
_CREDENTIALS: Final = struct.Struct("3i")


class PeerError(SparkEosError):
    """The other end of the socket belongs to another user, or uses another protocol."""


def _peer(connection: socket.socket) -> tuple[int | None, int]:
    """Process id (None where the system does not report it) and user id of the other end."""
    if hasattr(socket, "SO_PEERCRED"):
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _group = _CREDENTIALS.unpack(found)
        return pid, user
    # macOS and the BSDs: getpeereid(3).
    user_id, group_id = ctypes.c_uint32(), ctypes.c_uint32()
    ask = ctypes.CDLL(None, use_errno=True).getpeereid
    if ask(connection.fileno(), ctypes.byref(user_id), ctypes.byref(group_id)):
        raise PeerError(f"getpeereid: {os.strerror(ctypes.get_errno())}")
    return None, user_id.value


class Peer:
    """The other end of a socket, a process of this user.

    Args:
        connection: The connected socket.

    Attributes:
        name: The process, for messages.

    Raises:
        PeerError: The process belongs to another user.
    """

    def __init__(self, connection: socket.socket) -> None:
        pid, user = _peer(connection)
        self.name = "the process" if pid is None else f"process {pid}"
        if user != os.geteuid():
            raise PeerError(f"{self.name} belongs to user id {user}, not to {os.geteuid()}")
        self._connection = connection

    def send(self, message: object, deadline: Deadline) -> None:
        """Sends a message of plain values.

        Raises:
            OSError: The other end has closed or does not read; `TimeoutError` if the time is up.
        """
        body = json.dumps(message, allow_nan=False).encode()
        self._bound(deadline)
        self._connection.sendall(_HEADER.pack(_PROTOCOL, len(body)) + body)

    def receive(self, deadline: Deadline) -> Any:
        """Receives the next message.

        Raises:
            EOFError: The other end has closed.
            OSError: The connection is lost; `TimeoutError` if the time is up.
            PeerError: The bytes received are not a message.
        """
        protocol, length = _HEADER.unpack(self._exactly(_HEADER.size, deadline))
        if protocol != _PROTOCOL or length > _LONGEST:
            raise PeerError(f"{self.name} does not use this version's protocol")
        try:
            return json.loads(self._exactly(length, deadline))
        except (ValueError, RecursionError):
            raise PeerError(f"{self.name} sent invalid JSON") from None

    def _exactly(self, size: int, deadline: Deadline) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._bound(deadline)
            part = self._connection.recv(min(size - len(received), 1 << 20))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def _bound(self, deadline: Deadline) -> None:
        if deadline.expired:
            raise TimeoutError
        self._connection.settimeout(deadline.remaining() or 0.001)


@contextlib.contextmanager
def connected(path: Path, deadline: Deadline) -> Iterator[Peer]:
    """Connects to this user's process that listens at a path.

    Raises:
        OSError: No process listens, or none accepts in time.
        PeerError: The listening process belongs to another user.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(deadline.remaining() or 0.001)
        connection.connect(str(path))
        yield Peer(connection)
