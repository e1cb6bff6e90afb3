"""What librdkafka's errors and its log mean to a transaction."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from spark_eos.acls import Acl, Grantee
from spark_eos.client.error_codes import DENIED, remedy

logger = logging.getLogger(__name__)
# Failures reach the user as errors that name a cause; without a handler each of librdkafka's own
# lines about connections would be printed.
logger.addHandler(logging.NullHandler())

# A broker says no. librdkafka goes on trying, since somebody might put it right.
REFUSALS: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}

# All other errors may be cured by an abort, a new producer and another round.
_PERMANENT: Final = {
    *REFUSALS,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._INVALID_ARG,
}

# Whoever asks for the topic as it is now can tell why: it is gone, it was created anew with fewer
# partitions, a row names what never was, or it may not be written to, for which librdkafka fails
# the transaction and purges its records.
TOPIC_AT_FAULT: Final = {
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


class TransactionError(Exception):
    """A transaction did not commit, or nobody knows whether it did.

    Attributes:
        again: whether its rows may be written by a later round, once the driver has fenced this
            producer's members; False if they never can.
        too_slow: whether it was open for longer than a transaction may be, so that fewer rows at a
            time might be written.
    """

    def __init__(self, reason: str, *, again: bool, too_slow: bool = False) -> None:
        super().__init__(reason)
        self.again = again
        self.too_slow = too_slow


class ConnectionLog:
    """librdkafka's log, where alone it tells of every connection that it has lost.

    Its error callback is not called for a connection with one request in flight, and that request
    may be the end of a transaction.

    Args:
        on_lost: called with each line that tells of one.
    """

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self._on_lost = on_lost

    def log(self, level: int, message: str, *arguments: object) -> None:
        """What confluent_kafka calls, from poll and flush, as it would call a logger."""
        logger.log(level, message, *arguments)
        text = message % arguments
        # Where a connection never came about, nothing can be under way.
        if text.startswith(("FAIL ", "REQTMOUT ")) and "in state CONNECT" not in text:
            self._on_lost(text)


def is_transient(error: KafkaError | BaseException) -> bool:
    """Whether an abort, a new producer and another round may cure it."""
    cause = _cause(error)
    if isinstance(cause, KafkaError):
        return cause.code() not in _PERMANENT
    # SystemError: librdkafka failed inside a callback.
    return isinstance(cause, SystemError | TimeoutError)


def advice(error: KafkaError | BaseException, needed: Iterable[Acl], grantee: Grantee) -> str:
    """The error in words, with what can be done about it where that is known.

    Args:
        error: librdkafka's error, or another.
        needed: the ACLs that were needed for what failed.
        grantee: whom they are given to.
    """
    cause = _cause(error)
    if isinstance(cause, KafkaError) and cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return (
            f"{cause}. The record, or the batch it was sent in, is larger than allowed: raise the "
            "topic's max.message.bytes and kafka['message.max.bytes'], or, if the record itself "
            "is smaller than that, lower kafka['batch.size'] to the topic's max.message.bytes"
        )
    if isinstance(cause, KafkaError) and cause.code() in DENIED:
        return f"{cause}: {remedy(cause.code(), needed, grantee)}".removesuffix(": ")
    return str(cause)


def _cause(error: KafkaError | BaseException) -> KafkaError | BaseException:
    return error.args[0] if isinstance(error, KafkaException) else error
