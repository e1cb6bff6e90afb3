"""The address at which servers for tests listen."""

import socket
from typing import Final

HOST: Final = "127.0.0.1"


def is_free(port: int) -> bool:
    """Whether a server can listen on a port."""
    with socket.socket() as listener:
        # As Java's servers do: connections that have just ended do not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True
