"""Announces each batch: to the log and to the functions given as ``on_batch``."""

import logging
from collections.abc import Callable, Iterable, Sequence

from spark_eos.batch.batch_report import BatchReport
from spark_eos.errors import ConfigurationError

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
    except Exception:
        logger.warning(
            "on_batch: %s failed after batch %d of group %s; the batch is committed, and the "
            "query continues",
            getattr(observer, "__qualname__", type(observer).__name__),
            report.batch_id,
            report.group_id,
            exc_info=True,
        )
