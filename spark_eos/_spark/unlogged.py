"""Keeps this thread's calls to Spark out of the logs."""

import contextlib
import logging
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Keeps this thread's calls to Spark out of the logs: py4j logs each one at level DEBUG."""
    this = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != this

    loggers = [logging.getLogger(f"py4j.{name}") for name in ("clientserver", "java_gateway")]
    for logger in loggers:
        logger.addFilter(others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(others)
