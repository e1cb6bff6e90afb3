"""Hides kafka-python's log records about our connections, unless the user sets a log level."""

# Our own errors and logs say what a failed connection means for the query. Records about other
# kafka-python connections in the process are left alone.

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final

from spark_eos._client.kafka_python import SaslAuthenticateRequest, SaslAuthenticateResponse

_PACKAGE: Final = "kafka"
# Raw bytes may contain anything, including secrets.
_SECRET: Final = (SaslAuthenticateRequest, SaslAuthenticateResponse, bytes, bytearray, memoryview)
_thread = threading.local()


@contextlib.contextmanager
def our_connections() -> Iterator[None]:
    """Treat kafka-python's log records from this thread as ours."""
    for name in list(logging.root.manager.loggerDict):
        if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
            # Each logger needs its own filter: a filter doesn't see the records of child loggers.
            logging.getLogger(name).addFilter(_OURS)
    before = getattr(_thread, "ours", False)
    _thread.ours = True
    try:
        yield
    finally:
        _thread.ours = before


class _OurConnections(logging.Filter):
    """Hides records about our connections; if a level is set, hides only the secrets in them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(_thread, "ours", False):
            return True
        if isinstance(record.args, tuple):
            # At level DEBUG, kafka-python logs everything it sends.
            record.args = tuple("[hidden]" if isinstance(a, _SECRET) else a for a in record.args)
        return _asked_for(record.name)


_OURS: Final = _OurConnections()


def _asked_for(name: str) -> bool:
    """Return True if a level is set for the logger or one of its parents, except the root."""
    parts = name.split(".")
    above = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return any(logging.getLogger(name).level != logging.NOTSET for name in above)
