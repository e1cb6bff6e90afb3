"""Lines that a query prints: one when it starts and, on request, one for each batch."""

import contextlib
import logging
import sys

from spark_eos._batch_report import BatchReport
from spark_eos._client.printable import counted

logger = logging.getLogger("spark_eos")


def say(text: str, **fields: object) -> None:
    """Log a line if INFO is enabled; else print it on stderr, unless a log level silences it."""
    if logger.isEnabledFor(logging.INFO):
        if logger.hasHandlers():
            logger.info("%s", text, extra=fields)
            return
    elif logger.level != logging.NOTSET or logger.disabled or _disabled():
        return  # The logger has its own level, such as WARNING.
    # Python hides INFO unless logging is configured.
    if sys.stderr is not None:
        # Don't end a query because stderr is closed, or a pipe that nobody reads.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"spark-eos: {text}\n")
            sys.stderr.flush()


def _disabled() -> bool:
    """Return True if `logging.disable` applies to INFO."""
    return logging.root.manager.disable >= logging.INFO


def print_batch(report: BatchReport) -> None:
    """Print a line for each batch; pass it to the sink as ``on_batch``.

    If INFO is enabled, each batch is logged anyway, so nothing is printed. The level of the logger
    ``spark_eos`` silences these lines as well as the line at the start. With Spark Connect, the
    lines are in the output of the server, where batches run.

    Args:
        report: The batch's report.

    Examples:
        ::

            sink = ExactlyOnceSink(..., on_batch=print_batch)
            # spark-eos: group orders, batch 7: 10,000 rows in 0.31 s
    """
    if not (logger.isEnabledFor(logging.INFO) and logger.hasHandlers()):
        say(batch_line(report))


def batch_line(report: BatchReport) -> str:
    """Summarize a batch: ``group orders, batch 7: 10,000 rows in 0.31 s, 2 attempts``."""
    lost = sum(records.after - records.first for records in report.lost)
    counts = (
        (report.rows_skipped, "row", "skipped"),
        (sum(report.dead_letters.values()), "dead letter", ""),
        (lost, "source record", "lost"),
        (report.attempts if report.attempts > 1 else 0, "attempt", ""),
    )
    seconds = report.milliseconds.get("total", 0.0) / 1000
    parts = [
        f"{counted(report.rows_written, 'row')} in {seconds:.2f} s",
        *(counted(number, *words) for number, *words in counts if number),
    ]
    return f"group {report.group_id}, batch {report.batch_id}: {', '.join(parts)}"
