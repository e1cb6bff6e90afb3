"""Ends a broker whose owner is gone. Run as a script, with standard input a pipe from the owner.

The pipe's other end is closed by the operating system however the owner dies, SIGKILL included.
"""

import contextlib
import os
import shutil
import signal
import sys

DISMISSED = b"."


def main(pid: int, directory: str) -> None:
    """Wait for the owner; if it goes without dismissing the guard, kill `pid`, remove its data."""
    if os.read(0, 1) == DISMISSED:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
