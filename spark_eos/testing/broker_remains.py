"""What an embedded broker leaves behind unless somebody removes it."""

import os
import shutil
from pathlib import Path

from spark_eos.testing.broker_process import BrokerProcess


class Remains:
    """What must go when the broker is closed or forgotten. Holds no reference to the broker."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.process: BrokerProcess | None = None
        self.directory: Path | None = None
        self._final_log = ""

    def log(self) -> str:
        """Return the broker's log, as it was at the end if it was discarded."""
        if self.directory is None:
            return self._final_log
        try:
            return (self.directory / "broker.log").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def discard(self) -> None:
        """Stop the broker and remove its data."""
        if os.getpid() != self._owner:
            return  # a fork of the owner, which must leave the owner's broker alone
        if self.process is not None:
            self.process.stop(grace=15)
            self.process = None
        if self.directory is not None:
            self._final_log = self.log()
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
