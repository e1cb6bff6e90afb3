"""What a running query says by itself: a line when it starts, and one for each batch if asked."""

import contextlib
import logging
import sys

from spark_eos._batch_report import BatchReport
from spark_eos._client.printable import counted

logger = logging.getLogger("spark_eos")


def say(text: str, **fields: object) -> None:
    """Say one line: in the log if that takes INFO, else on stderr, unless a level silences it."""
    if logger.isEnabledFor(logging.INFO):
        if logger.hasHandlers():
            logger.info("%s", text, extra=fields)
            return
    elif logger.level != logging.NOTSET or logger.disabled or _disabled():
        return  # The logger has a level of its own, such as WARNING.
    # Python hides INFO unless logging is configured.
    if sys.stderr is not None:
        # It may be closed, or a pipe that nobody reads: no reason to end a query.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"spark-eos: {text}\n")
            sys.stderr.flush()


def _disabled() -> bool:
    """Return True if `logging.disable` is in force for INFO."""
    return logging.root.manager.disable >= logging.INFO


def print_batch(report: BatchReport) -> None:
    """Say one line for each batch; to be given as ``on_batch``.

    Where the log takes INFO, each batch is there already, and nothing more is said. The level of
    the logger ``spark_eos`` silences it as it silences the line at the start. On Spark Connect the
    lines are in the server's output, where batches run.

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
    """A batch in a few words: ``group orders, batch 7: 10,000 rows in 0.31 s, 2 attempts``."""
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
