"""Ends a server when its owner is gone. Runs as a script, with a pipe from the owner as stdin."""

import contextlib
import os
import shutil
import signal
import sys

NOTHING = 0
"""Sent instead of a process id while the server is not running."""
DISMISSED = -1
"""Sent instead of a process id once the server's data is removed."""


def main(directory: str) -> None:
    """Read process ids, one per line; once the owner is gone, kill the server and clean up."""
    pid = NOTHING
    # The operating system closes the owner's end of the pipe no matter how the owner dies.
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
