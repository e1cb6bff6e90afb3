"""Calls of confluent-kafka that end the process, never end, or leak, if made in the plain way."""

import contextlib
import threading
import time
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Message

from spark_eos._client.letter_headers import Header

UNREADABLE: Final = "headers, since a name is not UTF-8 or has U+0000"
"""What of a record is not known, for a text."""

_UNREADABLE: Final[list[Header]] = []
# confluent-kafka returns a list with gaps and leaves the error set. Python checks for that in calls
# by way of C, but not in a line that has run several times: there it would come up elsewhere.
_headers: Final = methodcaller(Message.headers.__name__)
# From 0.2 on, confluent-kafka 2.16 goes on after a fatal error (Producer_flush in its Producer.c).
_PIECE: Final = 0.15
# Seconds for the callbacks of records that are purged, which no broker is asked about.
_CALLBACKS: Final = 2.0


def headers_of(message: Any) -> tuple[Header, ...] | None:
    """A record's headers; None if they can't be read, since a name is not UTF-8.

    Kafka takes any bytes for a name; confluent-kafka has names as text only.
    """
    try:
        found: Any = _headers(message)
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        # confluent-kafka keeps a list with gaps, and would return it the next time: to look at
        # one ends the process.
        message.set_headers(_UNREADABLE)
        return None
    return None if found is _UNREADABLE else tuple(found or ())


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


def leave_transaction(producer: Any) -> None:
    """Gives up a transactional producer's open transaction, if there is one, so that it can close.

    Raises no error, which would replace the one that is the reason. Use it before such a producer
    is closed:

    - While librdkafka 2.16 closes, it may begin to add a partition to the transaction, and then an
      assertion ends the process (txn_req_cnt in rdkafka_txnmgr.c). After an abort has begun, which
      takes librdkafka's thread a moment, it adds none.
    - A record whose callback was not called keeps all that the callback refers to, even the
      producer itself, which is then never closed.
    """
    # In a thread, where no exception is being handled: confluent-kafka 2.16 keeps such a one, and
    # with it the producer, if it raises another (PyErr_SetObject takes KafkaError for one).
    thread = threading.Thread(target=_leave_transaction, args=(producer,))
    thread.start()
    thread.join()


def _leave_transaction(producer: Any) -> None:
    with contextlib.suppress(Exception):
        producer.abort_transaction(_PIECE)
    with contextlib.suppress(Exception):
        producer.purge()
    end = time.monotonic() + _CALLBACKS
    while time.monotonic() < end:
        # Raises a fatal error once, in place of the callbacks behind it.
        with contextlib.suppress(Exception):
            if not producer.flush(_PIECE):
                return
