"""Joins Spark's progress for a batch with the sink's report of the same batch."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._batch_report import BatchReport
from spark_eos._checkpoint.offset_log import kafka_positions
from spark_eos._kafka.topic_partition import Positions
from spark_eos.errors import ConfigurationError

# Spark's progress arrives right after the batch, or never if the listener wasn't added to Spark.
_MAX_WAITING: Final = 1_000


def source_lag(progress: StreamingQueryProgress) -> dict[tuple[str, int], int]:
    """Compute how far the end of a batch was from the ends of its source partitions.

    Args:
        progress: Progress of a query that reads from Kafka, from a `StreamingQueryListener` or
            ``query.recentProgress``.

    Returns:
        Number of offsets that Spark saw as available and had not read, by (topic, partition).
        Transaction markers count, as in Kafka's own lag. Sources other than Kafka have no lag.

    Examples:
        >>> class Progress:
        ...     json = '''{"sources": [{"endOffset": {"orders": {"0": 90, "1": 70}},
        ...                             "latestOffset": {"orders": {"0": 100, "1": 70}}}]}'''
        >>> source_lag(Progress())
        {('orders', 0): 10, ('orders', 1): 0}
    """
    lag: dict[tuple[str, int], int] = {}
    for source in json.loads(progress.json)["sources"]:
        read, available = _positions(source["endOffset"]), _positions(source["latestOffset"])
        for partition in sorted(available.keys() & read.keys()):
            behind = max(0, available[partition] - read[partition])
            key = (partition.topic, partition.partition)
            # If two sources read a partition, the one that lags behind counts.
            lag[key] = max(behind, lag.get(key, 0))
    return lag


def _positions(offsets: Any) -> Positions:
    # Offsets are objects in classic Spark and JSON strings in Spark Connect; null before the first
    # batch. Only Kafka's are positions.
    return kafka_positions(offsets if isinstance(offsets, str) else json.dumps(offsets))


@dataclass(frozen=True)
class BatchProgress:
    """One batch as reported by both the sink and Spark.

    Attributes:
        report: The sink's report.
        progress: Spark's progress.

    Examples:
        A function for `BatchListener`::

            def on_progress(batch: BatchProgress) -> None:
                print(batch.report.rows_written, batch.progress.numInputRows, batch.lag)
    """

    report: BatchReport
    progress: StreamingQueryProgress

    @property
    def lag(self) -> dict[tuple[str, int], int]:
        """Number of offsets available and not read, by partition; see `source_lag`."""
        return source_lag(self.progress)


class BatchListener(StreamingQueryListener):
    """Joins Spark's progress with the sink's reports, by query id and batch id.

    The object is both a listener for ``spark.streams.addListener`` and a function for
    ``on_batch``, and serves any number of queries. Batches and listener must run in the same
    process, as in classic Spark. With Spark Connect, they run in different processes: store reports
    and progress, and join them by ``query_id`` and ``batch_id``.

    Args:
        on_progress: Called with each `BatchProgress`, on one of Spark's threads. Spark logs
            exceptions that the function raises.
        on_idle: Called in the same way with the ``group_id`` of a query for which Spark reports
            that there is nothing to read: about every ten seconds
            (``spark.sql.streaming.noDataProgressEventInterval``).

    Examples:
        ::

            listener = BatchListener(lambda batch: print(batch.report, batch.lag))
            spark.streams.addListener(listener)
            sink = ExactlyOnceSink(..., on_batch=listener)
    """

    def __init__(
        self,
        on_progress: Callable[[BatchProgress], object],
        on_idle: Callable[[str], object] | None = None,
    ) -> None:
        self._on_progress = on_progress
        self._on_idle = on_idle
        self._groups: dict[str, str] = {}
        self._waiting: OrderedDict[tuple[str, int], BatchReport] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, report: BatchReport) -> None:
        """Keep a report until Spark's progress arrives; the sink calls it as ``on_batch``."""
        with self._lock:
            self._waiting[report.query_id, report.batch_id] = report
            if len(self._waiting) > _MAX_WAITING:
                self._waiting.popitem(last=False)

    def on_query(self, query: StreamingQuery, group_id: str) -> None:
        """Remember a query's group; the sink calls it when the query has started."""
        self._groups[str(query.id)] = group_id

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigurationError(
            "on_batch: a BatchListener works within one process, but Spark Connect runs the "
            "batches in another: join reports and progress by query_id and batch_id instead"
        )

    # Called by Spark -------------------------------------------------------------------------

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Join the progress of a batch with its report; called by Spark."""
        progress = event.progress
        with self._lock:
            report = self._waiting.pop((str(progress.id), progress.batchId), None)
        if report is not None:
            self._on_progress(BatchProgress(report, progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Report that a sink's query has nothing to read; called by Spark."""
        group_id = self._groups.get(str(event.id))
        if group_id is not None and self._on_idle is not None:
            self._on_idle(group_id)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""
