"""Ends a server when its owner is gone. Runs as a script, with a pipe from the owner as stdin."""

import contextlib
import os
import select
import shutil
import signal
import sys

NOTHING = 0
"""Sent instead of a process id while the server is not running."""
DISMISSED = -1
"""Sent instead of a process id once the server's data is removed."""


_PAUSE = 1.0


def main(directory: str, owner: int) -> None:
    """Read process ids, one per line; once the owner is gone, kill the server and clean up."""
    pid, unread = NOTHING, b""
    while True:
        # The operating system closes the owner's end of the pipe no matter how the owner dies,
        # unless a fork of the owner holds it open. Therefore, check the parent process as well.
        is_gone = os.getppid() != owner
        if not select.select([sys.stdin], [], [], 0.0 if is_gone else _PAUSE)[0]:
            if is_gone:
                break
            continue
        received = os.read(sys.stdin.fileno(), 4096)
        if not received:
            break
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            pid = int(line)
        if pid == DISMISSED:
            return
    if pid != NOTHING:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
