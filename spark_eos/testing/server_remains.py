"""The process and data of an embedded server, which must be removed when it is closed."""

import os
import shutil
from pathlib import Path
from typing import Final

from spark_eos.testing.server_process import ServerProcess

LOG: Final = "server.log"
"""Name of the file with the server's log, in its directory."""


class Remains:
    """Removes process and data of a server that is closed or garbage-collected.

    It holds no reference to the `EmbeddedServer`, which would keep that alive.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.process: ServerProcess | None = None
        self.directory: Path | None = None
        self._final_log = ""

    def log(self) -> str:
        """Return the server's log; after `discard`, its final state."""
        if self.directory is None:
            return self._final_log
        try:
            return (self.directory / LOG).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def discard(self) -> None:
        """Stop the server and remove its data."""
        if os.getpid() != self._owner:
            return  # in a fork of the owner, which must not touch the owner's server
        if self.process is not None:
            self.process.stop(grace=15)
            self.process = None
        if self.directory is not None:
            self._final_log = self.log()
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
