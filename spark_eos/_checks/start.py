"""The start of a query: connections to its clusters, and the results of checks made with them."""

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Final, TypeVar

from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import SparkEosError

logger = logging.getLogger(__name__)

# Seconds for which results are valid: as long as Kafka's clients rely on metadata
# (metadata.max.age.ms). Spark runs no batch before there are records, which may take days.
_VALID: Final = 300.0

Result = TypeVar("Result")


class Start:
    """A start's connections and check results, kept until the run that takes them over ends."""

    # Each step of a start runs within `with start:`. If a start is too old or was made by another
    # process, the step opens it again. A start is closed if a step fails, or if it is
    # garbage-collected before a run takes it over.

    def __init__(self, settings: WriterSettings) -> None:
        self._settings = settings
        # A user's thread may run a step while the query's first batch takes the start over.
        self._lock = threading.Lock()
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark Connect pickles the sink for the process that runs the batches, which has a start
        # of its own.
        return Start, (self._settings,)

    def _open(self) -> None:
        source = self._settings.source_client
        self.target = Connections(self._settings.client)
        self.source = self.target if source is None else Connections(source)
        self._results: dict[Hashable, Any] = {}
        self._process = os.getpid()
        self._until = time.monotonic() + _VALID
        self._close_if_abandoned()

    def _close_if_abandoned(self) -> None:
        self._abandoned = weakref.finalize(
            self, _close_in_background, self._process, self.source, self.target
        )
        # When the process exits, its connections end with it.
        self._abandoned.atexit = False

    def __enter__(self) -> "Start":
        with self._lock:
            self._renew_if_too_old()
        return self

    def _renew_if_too_old(self) -> None:
        if time.monotonic() >= self._until or self._process != os.getpid():
            self._close()
            self._open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.close()
        if isinstance(error, SparkEosError):
            # Drop the frames that the error passed through, so that a script's last lines show
            # only its own frame and the error's text.
            logger.debug("the query does not start", exc_info=error.with_traceback(trace))
            raise error.with_traceback(None) from None

    def deadline(self) -> Deadline:
        """Return a deadline, from now, for a call before the run."""
        return self._settings.connect_deadline()

    def cached(self, what: Hashable, find_out: Callable[[], Result]) -> Result:
        """Return the earlier result of a check, or else the result of ``find_out``."""
        if what not in self._results:
            self.remember(what, find_out())
        result: Result = self._results[what]
        return result

    def remember(self, what: Hashable, result: object = None) -> None:
        self._results[what] = result

    def remembers(self, what: Hashable) -> bool:
        return what in self._results

    def handed_over(self) -> "Start":
        """Move all connections and results to a new start, for a run, and return that start."""
        taken = Start(self._settings)
        with self._lock:
            self._renew_if_too_old()
            taken.target, taken.source = self.target, self.source
            taken._results, taken._until = self._results, self._until
            taken._close_if_abandoned()
            self._abandoned.detach()
            self._open()
        return taken

    def close(self) -> None:
        """Close all connections; the next step opens new ones. May be called again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._until = 0.0
        self._abandoned.detach()
        # A forked process has no thread that serves its parent's connections.
        if self._process == os.getpid():
            self.source.close()
            self.target.close()


def _close_in_background(process: int, *connections: Connections) -> None:
    # Python may collect the owner in any thread, even one that the connections need or block.
    def close() -> None:
        for connection in connections:
            connection.close()

    if process != os.getpid() or not any(connection.is_open for connection in connections):
        return
    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        threading.Thread(target=close, name="spark-eos-closing", daemon=True).start()
