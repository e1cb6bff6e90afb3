"""Ends a server whose owner is gone. Runs as a script; standard input is a pipe from the owner."""

import contextlib
import os
import shutil
import signal
import sys

NOTHING = 0
"""In place of a process id, while the server does not run."""
DISMISSED = -1
"""In place of a process id, once its data is removed."""


def main(directory: str) -> None:
    """Follow the server's process id, a line each; when the owner is gone, kill it and its data."""
    pid = NOTHING
    # The operating system closes the pipe's other end however the owner dies, even by SIGKILL.
    for line in sys.stdin:
        pid = int(line)
    if pid == DISMISSED:
        return
    if pid != NOTHING:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
