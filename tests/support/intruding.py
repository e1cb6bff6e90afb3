"""Another user of this host, and what they try: a real process that has given up its own user."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

# Everything is imported while it still may be.
_BEGINNING = """
import os, pickle, socket, struct, sys, time
def as_nobody():
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
"""

# Listens where the first argument says, and tells whoever comes the second, bytes in hexadecimal.
ANSWERS = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); listener.listen()
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    peer.settimeout(1)
    try:
        peer.sendall(bytes.fromhex(sys.argv[2]))
        peer.recv(100_000)
    except OSError:
        pass
    peer.close()
"""


def intruder(script: str, *arguments: object, sockets: tuple[int, ...] = ()) -> str:
    """Runs a script that becomes the other user by ``as_nobody()``; returns what it prints.

    Args:
        script: Python; ``sys.argv[1:]`` are the arguments.
        arguments: as texts.
        sockets: file descriptors that it inherits.
    """
    with lasting_intruder(script, *arguments, sockets=sockets) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def lasting_intruder(
    script: str, *arguments: object, sockets: tuple[int, ...] = ()
) -> "subprocess.Popen[str]":
    """As `intruder`, without waiting for its end; to be ended by the caller."""
    return subprocess.Popen(
        [sys.executable, "-c", _BEGINNING.format(nobody=NOBODY) + script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=sockets,
    )


def until_ready(process: "subprocess.Popen[str]") -> None:
    """Waits until a script of `lasting_intruder` has printed ``ready``."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


class _Touch:
    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self._marker), "w")


def payload(marker: Path) -> bytes:
    """A pickle that makes a file where it is read."""
    return pickle.dumps(_Touch(marker))


def framed(body: bytes) -> bytes:
    """As multiprocessing.connection puts it on a socket."""
    return len(body).to_bytes(4, "big") + body
