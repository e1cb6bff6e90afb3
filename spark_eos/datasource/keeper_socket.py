"""The socket between a keeper and those who ask it: who is at the other end, and messages.

A message is JSON (UTF-8); before it come four bytes that name the protocol and its version, and
its length in four more. Nothing that comes is ever run, and nothing is read from, or told to, a
process of another user.
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

# The last one is the version of `spark_eos.datasource.keeper_messages`.
_PROTOCOL: Final = b"EOS\x01"
_HEADER: Final = struct.Struct(">4sI")
# Some 200 bytes for each source partition.
_LONGEST: Final = 1 << 28
_CREDENTIALS: Final = struct.Struct("3i")


class PeerError(SparkEosError):
    """The other end of the socket is another user's, or speaks something else."""


def _peer(connection: socket.socket) -> tuple[int | None, int]:
    """Process id, where the system tells it, and user id of the other end."""
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
        connection: the connected socket.

    Attributes:
        name: the process in words.

    Raises:
        PeerError: it is another user's.
    """

    def __init__(self, connection: socket.socket) -> None:
        pid, user = _peer(connection)
        self.name = "the process" if pid is None else f"process {pid}"
        if user != os.geteuid():
            raise PeerError(f"{self.name} belongs to user id {user} and not to this one")
        self._connection = connection

    def send(self, message: object, deadline: Deadline) -> None:
        """Sends a message of plain values.

        Raises:
            OSError: the other end has gone, or does not read; `TimeoutError` if the time is up.
        """
        body = json.dumps(message, allow_nan=False).encode()
        self._bound(deadline)
        self._connection.sendall(_HEADER.pack(_PROTOCOL, len(body)) + body)

    def receive(self, deadline: Deadline) -> Any:
        """The next message.

        Raises:
            EOFError: there is none, since the other end has gone.
            OSError: the connection is lost; `TimeoutError` if the time is up.
            PeerError: what comes is no message.
        """
        protocol, length = _HEADER.unpack(self._exactly(_HEADER.size, deadline))
        if protocol != _PROTOCOL or length > _LONGEST:
            raise PeerError(f"{self.name} does not speak this version's protocol")
        try:
            return json.loads(self._exactly(length, deadline))
        except (ValueError, RecursionError):
            raise PeerError(f"{self.name} has sent what is no JSON") from None

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
    """Connects to whoever of this user listens.

    Raises:
        OSError: nobody does, or not in time.
        PeerError: another user does.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(deadline.remaining() or 0.001)
        connection.connect(str(path))
        yield Peer(connection)
