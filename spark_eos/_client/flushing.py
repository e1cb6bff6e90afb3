"""Waiting for a producer's records, in pieces that are short enough for confluent-kafka."""

import time
from typing import Any, Final

# From 0.2 on, confluent-kafka 2.16 goes on after a fatal error (Producer_flush in its Producer.c).
_PIECE: Final = 0.15


def flush_records(producer: Any, seconds: float) -> int:
    """Waits until all of a producer's records are acknowledged or have failed.

    Use it for transactional producers in place of ``flush``. That serves callbacks on after a fatal
    error, such as that of a fenced producer, while the error is pending in the interpreter: they
    fail at random or never end, and what is raised at last is a KafkaError, which is no exception
    and passes ``except Exception``.
    """
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        unacknowledged = int(producer.flush(max(0.0, min(_PIECE, left))))
        if not unacknowledged or left <= _PIECE:
            return unacknowledged
