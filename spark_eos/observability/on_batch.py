"""Announces queries and batches in the log, and to the functions passed as ``on_batch``."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._batch_report import BatchReport
from spark_eos.errors import warn

logger = logging.getLogger("spark_eos")

OnBatch = Callable[[BatchReport], object]


def as_observers(on_batch: OnBatch | Iterable[OnBatch] | None) -> tuple[OnBatch, ...]:
    """Return the functions in ``on_batch``."""
    if on_batch is None:
        return ()
    return (on_batch,) if callable(on_batch) else tuple(on_batch)


def announce_query(query: StreamingQuery, group_id: str, observers: Sequence[OnBatch]) -> None:
    """Call the ``on_query`` methods of observers, in the process that has started the query."""
    # With Spark Connect, another process calls copies of the observers after each batch.
    # The query's first batch may already be running, or be done.
    for observer in observers:
        on_query = getattr(observer, "on_query", None)
        if callable(on_query):
            with _logging_errors(observer, f"at the start of the query of group {group_id}"):
                on_query(query, group_id)


def announce(report: BatchReport, observers: Sequence[OnBatch]) -> None:
    """Log a committed batch, then call the observers in order."""
    after = f"after batch {report.batch_id} of group {report.group_id}; the batch is committed"
    with suppress(Exception):  # a filter of the application may fail, and the batch is committed
        logger.info("%s", report, extra=report.fields())
    for observer in observers:
        with _logging_errors(observer, after):
            observer(report)


@contextmanager
def _logging_errors(observer: OnBatch, when: str) -> Iterator[None]:
    """Log exceptions instead of raising them, which would make Spark repeat a committed batch."""
    try:
        yield
    except Exception:  # noqa: BLE001 - it is logged
        name = getattr(observer, "__qualname__", type(observer).__name__)
        text = "on_batch: %s failed %s, and the query continues"
        warn(logger, "EOS62", text, name, when, trace=True)
