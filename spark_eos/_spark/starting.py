"""The start of a sink's query: who owns it, and what is checked before the query's run."""

import contextlib
import logging
import threading
import weakref
from dataclasses import replace
from types import TracebackType
from typing import Any

from spark_eos._batch.writer_settings import SourceTopics, WriterSettings
from spark_eos._driver import preflight
from spark_eos._driver.start import Start
from spark_eos._kafka.groups import own_group
from spark_eos._spark.batches import SinkQuery
from spark_eos._spark.source import source_topics
from spark_eos._spark.stream_sources import topics_read
from spark_eos.errors import SparkEosError

logger = logging.getLogger(__name__)


class Starting:
    """The start that a sink has begun, until the query's run takes it over.

    Closed if a step of it fails, by `close`, when it is too old, or when the sink goes away.
    """

    def __init__(self, settings: WriterSettings) -> None:
        self._settings = settings
        self.turn = threading.Lock()
        """Held by whoever begins a run, or a batch of it."""
        self._lock = threading.Lock()
        self._start: Start | None = None
        self._closes_with_sink: weakref.finalize[..., Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark Connect pickles the sink to the process where batches run, which begins its own.
        return Starting, (self._settings,)

    def step(self) -> "_Step":
        """A step of the start, which begins with the first one."""
        return _Step(self)

    def begun(self) -> Start:
        """The start, which is the sink's from then on."""
        start = self.take()
        with self._lock:
            self._start = start
            self._closes_with_sink = weakref.finalize(self, _close_aside, start)
            # When the process exits, its connections end with it.
            self._closes_with_sink.atexit = False
        return start

    def take(self) -> Start:
        """Hands the start over to the caller, who closes it."""
        found = self._given_up()
        if found is not None and found.valid:
            return found
        if found is not None:
            found.close()
        return Start(self._settings)

    def close(self) -> None:
        """Closes the start, unless a run has taken it over. May be called again."""
        if (found := self._given_up()) is not None:
            found.close()

    def _given_up(self) -> Start | None:
        """The start, if this process has begun one; it is the sink's no more."""
        with self._lock:
            found, self._start = self._start, None
            if self._closes_with_sink is not None:
                self._closes_with_sink.detach()
        return found if found is not None and found.here else None


class _Step:
    """Gives the start, and closes it if the step fails.

    An error of ours goes on without the frames that it came through: a script's last lines are its
    own place and the text.
    """

    def __init__(self, starting: Starting) -> None:
        self._starting = starting

    def __enter__(self) -> Start:
        return self._starting.begun()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._starting.close()
        if isinstance(error, SparkEosError):
            logger.debug("the query does not start", exc_info=error.with_traceback(trace))
            raise error.with_traceback(None) from None


def _close_aside(start: Start) -> None:
    # Python may collect the sink in any thread: also in one that the connections need, or hold.
    if start.here:
        with contextlib.suppress(RuntimeError):  # the interpreter is ending
            threading.Thread(target=start.close, name="spark-eos-closing", daemon=True).start()


def checked_by_cluster(query: SinkQuery, start: Start) -> SinkQuery:
    """The query, once the cluster can run it; with the topics that its rows may not be for."""
    settings, progress = query.settings, query.progress_topic

    def here(servers: str) -> bool:
        return query.delivery.reads_here(start, servers)

    refused = topics_read(query.sources, here) | SourceTopics((progress.name,))
    settings = replace(settings, source_topics=refused)
    topics = set[str]() if settings.source_client else source_topics(start, query.selections)
    topics |= query.delivery.progress_topics(start, progress)
    preflight.check_cluster(start, settings, topics, start.deadline())
    own_group(start.target, settings.group_id, start.deadline())
    return replace(query, settings=settings)
