"""What kafka-python logs of our connections: nothing, unless a level is set for its loggers."""

# What a failed connection means for a query, our errors and logs say. The records of other users of
# kafka-python in the process are left alone.

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final

from spark_eos._client.kafka_python import SaslAuthenticateRequest, SaslAuthenticateResponse

_PACKAGE: Final = "kafka"
# Raw bytes may hold anything.
_SECRET: Final = (SaslAuthenticateRequest, SaslAuthenticateResponse, bytes, bytearray, memoryview)
_thread = threading.local()


@contextlib.contextmanager
def our_connections() -> Iterator[None]:
    """Mark what this thread does: kafka-python's records of it are ours."""
    for name in list(logging.root.manager.loggerDict):
        if name == _PACKAGE or name.startswith(f"{_PACKAGE}."):
            # Each one: a logger's filter sees no record of those below it.
            logging.getLogger(name).addFilter(_OURS)
    before = getattr(_thread, "ours", False)
    _thread.ours = True
    try:
        yield
    finally:
        _thread.ours = before


class _OurConnections(logging.Filter):
    """Hides records of our connections; if they are asked for, the secrets in them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(_thread, "ours", False):
            return True
        if isinstance(record.args, tuple):
            # At level DEBUG kafka-python logs everything it sends.
            record.args = tuple("[hidden]" if isinstance(a, _SECRET) else a for a in record.args)
        return _asked_for(record.name)


_OURS: Final = _OurConnections()


def _asked_for(name: str) -> bool:
    """Return True if somebody has set a level for a logger of kafka-python."""
    parts = name.split(".")
    above = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return any(logging.getLogger(name).level != logging.NOTSET for name in above)
