"""Ends a server whose owner is gone. Runs as a script; standard input is a pipe from the owner."""

import contextlib
import os
import shutil
import signal
import sys

DISMISSED = b"."


def main(pid: int, directory: str) -> None:
    """Wait for the owner; unless it dismisses the guard, kill `pid` and remove its data."""
    # The operating system closes the pipe's other end however the owner dies, even by SIGKILL.
    if os.read(0, 1) == DISMISSED:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
