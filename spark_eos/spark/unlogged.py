"""Keeps out of logs what this thread tells Spark."""

import contextlib
import logging
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Keeps out of logs what this thread tells Spark: py4j logs each call at level DEBUG."""
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
