"""Announces queries and batches: to the log and to the functions given as ``on_batch``."""

import logging
from collections.abc import Callable, Iterable, Sequence

from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._batch.batch_report import BatchReport
from spark_eos.errors import ConfigurationError, warn

logger = logging.getLogger("spark_eos")

OnBatch = Callable[[BatchReport], object]


def as_observers(on_batch: OnBatch | Iterable[OnBatch] | None) -> tuple[OnBatch, ...]:
    """Returns the functions in ``on_batch``: none, one or several.

    Raises:
        ConfigurationError: One of them is not callable.

    Example:
        >>> as_observers(None)
        ()
        >>> as_observers(print) == as_observers([print]) == (print,)
        True
    """
    if on_batch is None:
        return ()
    found = (on_batch,) if callable(on_batch) else tuple(on_batch)
    for observer in found:
        if not callable(observer):
            raise ConfigurationError(
                f"on_batch holds a {type(observer).__name__}; it must be a function that takes a "
                "BatchReport, or several such functions"
            )
    return found


def announce_query(query: StreamingQuery, group_id: str, observers: Sequence[OnBatch]) -> None:
    """Tells the observers that have a method ``on_query`` of a query that has started.

    It is called where the query was started. With Spark Connect that is another process than the
    one in which copies of the observers are called with the batches. The query's first batch may
    already be running, or be done. Exceptions are logged as warnings.

    Args:
        query: The query.
        group_id: The group of its sink.
        observers: The functions given as ``on_batch``.

    Example:
        ::

            announce_query(query, "order-processors", as_observers([metrics, listener]))
    """
    for observer in observers:
        on_query = getattr(observer, "on_query", None)
        if callable(on_query):
            try:
                on_query(query, group_id)
            except Exception:  # noqa: BLE001 - it is logged
                warn(
                    logger,
                    "EOS62",
                    "on_batch: %s failed at the start of the query of group %s, which continues",
                    _name(observer),
                    group_id,
                    trace=True,
                )


def announce(report: BatchReport, observers: Sequence[OnBatch]) -> None:
    """Logs a committed batch, then calls the observers in their order.

    An exception can't undo the commit, and would make Spark repeat a batch with nothing left to
    write. So exceptions are logged as warnings, and the other observers are still called.

    Example:
        ::

            announce(report, as_observers([PrometheusMetrics(port=9108), listener]))
    """
    logger.info("%s", report, extra=report.fields())
    for observer in observers:
        _notify(observer, report)


def _notify(observer: OnBatch, report: BatchReport) -> None:
    try:
        observer(report)
    except Exception:  # noqa: BLE001 - it is logged
        warn(
            logger,
            "EOS62",
            "on_batch: %s failed after batch %d of group %s; the batch is committed, and the "
            "query continues",
            _name(observer),
            report.batch_id,
            report.group_id,
            trace=True,
        )


def _name(observer: OnBatch) -> str:
    return str(getattr(observer, "__qualname__", type(observer).__name__))
