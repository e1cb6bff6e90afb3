"""A start of a query: connections to each of its clusters, and what was found out by them."""

import os
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline

# Seconds for which what was found out need not be asked again: as long as Kafka's clients rely on
# metadata (metadata.max.age.ms). Spark runs no batch before there are records, maybe for days.
_VALID: Final = 300.0

Result = TypeVar("Result")


class Start:
    """Begins before the query's first request, and is closed when its run ends."""

    def __init__(self, settings: WriterSettings) -> None:
        source = settings.source_client
        self.target = Connections(settings.client)
        self.source = self.target if source is None else Connections(source)
        self._settings = settings
        self._found: dict[Hashable, Any] = {}
        self._process = os.getpid()
        self._until = time.monotonic() + _VALID

    @property
    def here(self) -> bool:
        """Whether this process has begun it: a fork has no thread that serves its connections."""
        return self._process == os.getpid()

    @property
    def valid(self) -> bool:
        """Whether a run may rely on what was found out."""
        return self.here and time.monotonic() < self._until

    def deadline(self) -> Deadline:
        """The time limit of a call before the run, from now on."""
        return self._settings.connect_deadline()

    def once(self, what: Hashable, find_out: Callable[[], Result]) -> Result:
        """What was found out before, or else is found out now."""
        if what not in self._found:
            self.know(what, find_out())
        found: Result = self._found[what]
        return found

    def know(self, what: Hashable, result: object = None) -> None:
        """Keeps what was found out."""
        self._found[what] = result

    def knows(self, what: Hashable) -> bool:
        """Whether something was found out."""
        return what in self._found

    def close(self) -> None:
        """Closes all connections. May be called again."""
        self.source.close()
        self.target.close()
