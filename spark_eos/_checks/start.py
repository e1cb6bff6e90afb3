"""A start of a query: connections to each of its clusters, and what was found out by them."""

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

# Seconds for which what was found out need not be asked again: as long as Kafka's clients rely on
# metadata (metadata.max.age.ms). Spark runs no batch before there are records, maybe for days.
_VALID: Final = 300.0

Result = TypeVar("Result")


class Start:
    """Open from the query's first request to the end of its run, which takes it over."""

    # `with start:` is a step of it. It begins anew in a step that finds it too old, or another
    # process's, and is closed if a step fails, or when its owner goes away without a run.

    def __init__(self, settings: WriterSettings) -> None:
        self._settings = settings
        # A user's thread may take a step while the query's first batch takes over.
        self._lock = threading.Lock()
        self._open()

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark Connect pickles the sink to the process where batches run, which begins its own.
        return Start, (self._settings,)

    def _open(self) -> None:
        source = self._settings.source_client
        self.target = Connections(self._settings.client)
        self.source = self.target if source is None else Connections(source)
        self._found: dict[Hashable, Any] = {}
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
            # Without the frames that it came through: a script's last lines are its own place and
            # the text.
            logger.debug("the query does not start", exc_info=error.with_traceback(trace))
            raise error.with_traceback(None) from None

    def deadline(self) -> Deadline:
        """Return the time limit of a call before the run, from now on."""
        return self._settings.connect_deadline()

    def cached(self, what: Hashable, find_out: Callable[[], Result]) -> Result:
        """Return what was found out before, or else is found out now."""
        if what not in self._found:
            self.remember(what, find_out())
        result: Result = self._found[what]
        return result

    def remember(self, what: Hashable, result: object = None) -> None:
        self._found[what] = result

    def remembers(self, what: Hashable) -> bool:
        return what in self._found

    def handed_over(self) -> "Start":
        """Return a start with these connections and findings, for a run; this one opens others."""
        taken = Start(self._settings)
        with self._lock:
            self._renew_if_too_old()
            taken.target, taken.source = self.target, self.source
            taken._found, taken._until = self._found, self._until
            taken._close_if_abandoned()
            self._abandoned.detach()
            self._open()
        return taken

    def close(self) -> None:
        """Close all connections; the next step opens others. May be called again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._until = 0.0
        self._abandoned.detach()
        # A fork has no thread that serves its parent's connections.
        if self._process == os.getpid():
            self.source.close()
            self.target.close()


def _close_in_background(process: int, *connections: Connections) -> None:
    # Python may collect the owner in any thread: also in one that the connections need, or hold.
    def close() -> None:
        for each in connections:
            each.close()

    if process != os.getpid() or not any(each.is_open for each in connections):
        return
    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        threading.Thread(target=close, name="spark-eos-closing", daemon=True).start()
