"""The process that Spark Connect's server starts for a query, and for nothing else.

It is ours: it runs the query's foreachBatch function from its start to its end. Only here do we
install a signal handler, start a thread for what was unpickled, and end the process, since the
server tells of the query's end by SIGTERM alone, which neither unwinds the process nor cancels its
job; calls nothing before the first batch; and leaves the process behind if it dies.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame

from spark_eos._pyspark_internals import connect_plan, in_connect_worker, messages

logger = logging.getLogger(__name__)

# Seconds between two checks whether the server is still running.
_ORPHAN_CHECK: Final = 1.0


def remote_relations(frame: Any) -> list[str]:
    """Ids of the server's relations that a Spark Connect DataFrame reads.

    A micro-batch has its own id. The result of ``checkpoint`` or ``localCheckpoint`` has another
    one, and does not show what it was made of.
    """
    relation = connect_plan(frame)
    return [part.relation_id for part in messages(relation, "CachedRemoteRelation")]


class RemoteSink(Protocol):
    """A sink that the server's process gets a copy of."""

    def __call__(self, frame: DataFrame, batch_id: int, /) -> None:
        """Writes a batch."""

    def note_relation(self, relation: str) -> None:
        """Called before each batch with the server's id of it."""

    def begin_remotely(self) -> None:
        """Called in the query's process once it has the sink."""

    def check_written(self, batch_id: int) -> None:
        """Refuses a batch that the sink has not written."""


class RemoteBatches:
    """The function of a query: notes the server's id of each batch before the batch is written.

    Pickled together with the sink that a function of the user's own calls, so both end up in one
    process. A copy of a sink by itself starts nothing.
    """

    def __init__(self, sink: RemoteSink, function: Callable[[DataFrame, int], None]) -> None:
        self._sink = sink
        self._function = function

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Writes a batch."""
        (relation,) = remote_relations(frame)
        self._sink.note_relation(relation)
        self._function(frame, batch_id)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if in_connect_worker():
            self._sink.begin_remotely()


class ProcessEnd:
    """How a query's process ends: by SIGTERM, which stops the query, or with the server."""

    def __init__(self, stop: Callable[[], bool], orphaned: Callable[[], None]) -> None:
        self._stop = stop
        self._orphaned = orphaned
        self._server = os.getppid()
        self._previous: Any = None
        self.told_by_signal = threading.current_thread() is threading.main_thread()
        if self.told_by_signal:
            self._previous = signal.signal(signal.SIGTERM, self._terminated)
        threading.Thread(
            target=self._end_with_server, name="spark-eos-orphan-check", daemon=True
        ).start()

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if not self._stop():
            return
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _end_with_server(self) -> None:
        while os.getppid() == self._server:
            time.sleep(_ORPHAN_CHECK)
        logger.error("the Spark Connect server has ended; ending its query's run")
        try:
            self._orphaned()
        finally:
            # At a normal exit, Connect's client would try to reach the server for minutes.
            os._exit(1)
