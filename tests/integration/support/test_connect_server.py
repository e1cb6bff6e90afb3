"""A Connect server is ready when it listens itself, whoever else has its port."""

import os
import socket
import subprocess
import sys

from support.connect_server import listens
from support.queries import until

_HOLD = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    sys.stdin.read()
"""


def test_a_port_that_another_process_has_is_not_ours() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
        assert listens(os.getpid(), port)
    command = [sys.executable, "-c", _HOLD, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        until(lambda: listens(other.pid, port), lambda: "the port to be taken")
        assert not listens(os.getpid(), port)
        other.communicate()
