"""The process and data of an embedded broker, which must be removed when it is closed."""

import os
import shutil
from pathlib import Path

from spark_eos.testing.broker_process import BrokerProcess


class Remains:
    """Removes process and data of a broker that is closed or garbage-collected.

    It holds no reference to the `EmbeddedKafka`, which would keep that alive.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.process: BrokerProcess | None = None
        self.directory: Path | None = None
        self._final_log = ""

    def log(self) -> str:
        """Return the broker's log; after `discard`, its final state."""
        if self.directory is None:
            return self._final_log
        try:
            return (self.directory / "broker.log").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def discard(self) -> None:
        """Stop the broker and remove its data."""
        if os.getpid() != self._owner:
            return  # in a fork of the owner, which must not touch the owner's broker
        if self.process is not None:
            self.process.stop(grace=15)
            self.process = None
        if self.directory is not None:
            self._final_log = self.log()
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
