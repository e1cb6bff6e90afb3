"""Spark's progress of a batch joined with the sink's report of it."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from spark_eos.batch.batch_report import BatchReport
from spark_eos.batch.plan import Positions
from spark_eos.driver.offset_log import parse_positions
from spark_eos.errors import ConfigurationError

# Spark's progress comes right after the batch; where the listener was never added, it never does.
_MOST_WAITING: Final = 1_000


def source_lag(progress: StreamingQueryProgress) -> dict[tuple[str, int], int]:
    """How far a batch has stayed behind the ends of its source partitions, as Spark saw them.

    Args:
        progress: Of a query whose sources are Kafka's, as a `StreamingQueryListener` gets it or
            ``query.recentProgress`` holds it.

    Returns:
        Offsets that were there and not read, by (topic, partition); transaction markers count, as
        in Kafka's own lag.
    """
    sources = json.loads(progress.json)["sources"]
    read = _positions([source["endOffset"] for source in sources])
    there = _positions([source["latestOffset"] for source in sources])
    return {
        partition: max(0, offset - read[partition])
        for partition, offset in sorted(there.items())
        if partition in read
    }


def _positions(offsets: list[Any]) -> Positions:
    # JSON in classic Spark, texts that hold JSON in Connect; null where there is none yet.
    texts = [offset if isinstance(offset, str) else json.dumps(offset) for offset in offsets]
    known = [text for text in texts if text != "null"]
    return parse_positions(known, "the query's progress")


@dataclass(frozen=True)
class BatchProgress:
    """One batch as both know it.

    Attributes:
        report: The sink's.
        progress: Spark's.
    """

    report: BatchReport
    progress: StreamingQueryProgress

    @property
    def lag(self) -> dict[tuple[str, int], int]:
        """Offsets that were there and not read; see `source_lag`."""
        return source_lag(self.progress)


class BatchListener(StreamingQueryListener):
    """Joins Spark's progress with the sink's reports, by query id and batch id.

    It is both a listener, for ``spark.streams.addListener``, and a function for ``on_batch``. One
    listener serves any number of queries. It needs both in one process, as they are in classic
    Spark; with Spark Connect the batches run in another process than the listener, and the two can
    be joined by ``query_id`` and ``batch_id`` where they are kept.

    Args:
        on_progress: Called with each `BatchProgress`, on a thread of Spark's; what it raises Spark
            logs.
    """

    def __init__(self, on_progress: Callable[[BatchProgress], object]) -> None:
        self._on_progress = on_progress
        self._waiting: OrderedDict[tuple[str, int], BatchReport] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, report: BatchReport) -> None:
        """Remembers a report until Spark's progress comes; for ``on_batch``."""
        with self._lock:
            self._waiting[report.query_id, report.batch_id] = report
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popitem(last=False)

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigurationError(
            "on_batch: a BatchListener joins within one process, and Spark Connect runs the "
            "batches in another: join reports and progress by query_id and batch_id instead"
        )

    # What Spark calls ------------------------------------------------------------------------

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Joins one batch."""
        progress = event.progress
        with self._lock:
            report = self._waiting.pop((str(progress.id), progress.batchId), None)
        if report is not None:
            self._on_progress(BatchProgress(report, progress))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to do."""
