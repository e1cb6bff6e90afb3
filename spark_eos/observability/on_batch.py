"""Who is told about a batch: the log, and the functions that the user gave as ``on_batch``."""

import logging
from collections.abc import Callable, Iterable, Sequence

from spark_eos.batch.batch_report import BatchReport
from spark_eos.errors import ConfigurationError

logger = logging.getLogger("spark_eos")

OnBatch = Callable[[BatchReport], object]


def as_observers(on_batch: OnBatch | Iterable[OnBatch] | None) -> tuple[OnBatch, ...]:
    """The functions that an ``on_batch`` names: none, one or several.

    Raises:
        ConfigurationError: Something among them can't be called.
    """
    if on_batch is None:
        return ()
    found = (on_batch,) if callable(on_batch) else tuple(on_batch)
    for observer in found:
        if not callable(observer):
            raise ConfigurationError(
                f"on_batch holds a {type(observer).__name__}; it must be a function that takes a "
                "BatchReport, or several of them"
            )
    return found


def announce(report: BatchReport, observers: Sequence[OnBatch]) -> None:
    """Logs a batch that is committed, then calls the observers in their order.

    None of them can undo what is committed, and Spark would only repeat a batch that has nothing
    left to write: what one raises is logged as a warning, and the others are called all the same.
    """
    logger.info("%s", report, extra=report.fields())
    for observer in observers:
        _tell(observer, report)


def _tell(observer: OnBatch, report: BatchReport) -> None:
    try:
        observer(report)
    except Exception:
        logger.warning(
            "on_batch: %s failed after batch %d of group %s; the batch is committed, and the "
            "query goes on",
            getattr(observer, "__qualname__", type(observer).__name__),
            report.batch_id,
            report.group_id,
            exc_info=True,
        )
