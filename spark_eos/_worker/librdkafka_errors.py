"""Says what librdkafka's errors mean for a transaction."""

import contextlib
from collections.abc import Iterator
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from spark_eos._client.error_codes import DENIED, remedy
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import Operation, transactional_ids, write_topic
from spark_eos.errors import PrintableError, SparkEosError, text_of

# The broker refuses the client. librdkafka keeps trying, in case an operator fixes the cause.
REFUSALS: Final = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}

# The record itself is at fault.
REFUSALS_OF_DATA: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}

# Errors that an abort, a new producer and another attempt can't fix, unlike all other errors.
_PERMANENT: Final = {
    *REFUSALS,
    *REFUSALS_OF_DATA,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
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

# After these errors, looking up the topic shows the cause: it was deleted, it was recreated with
# fewer partitions, a row names a topic or partition that never existed, or an ACL is missing. If an
# ACL is missing, librdkafka fails the transaction and purges its records.
TOPIC_AT_FAULT: Final = {
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


class TransactionError(PrintableError):
    """A transaction that did not commit, or whose outcome is unknown."""

    def __init__(self, reason: str, *, again: bool, too_slow: bool = False) -> None:
        super().__init__(reason)
        self.again = again
        self.too_slow = too_slow


def _is_transient(error: KafkaError | BaseException) -> bool:
    """Return True if an abort, a new producer and another attempt may fix the error."""
    cause = _cause(error)
    if isinstance(cause, KafkaError):
        return cause.code() not in _PERMANENT
    return isinstance(cause, TimeoutError)


@contextlib.contextmanager
def asking_cluster(what: str) -> Iterator[None]:
    """Turn a failed call to the cluster into a `TransactionError`."""
    try:
        yield
    except SparkEosError as error:
        raise TransactionError(f"{what}: {error.text}", again=_is_transient(error)) from error


def as_transaction_error(
    what: str,
    error: KafkaError | BaseException,
    settings: WriterSettings,
    topic: str | None = None,
) -> TransactionError:
    """Wrap an error of librdkafka, or of a call to the cluster, with its cause and remedy."""
    text = f"{what}: {_cause_and_remedy(error, settings, topic)}"
    return TransactionError(text, again=_is_transient(error))


@contextlib.contextmanager
def raised_as_transaction_error(what: str, settings: WriterSettings) -> Iterator[None]:
    """Turn any exception of the block into a `TransactionError`."""
    try:
        yield
    except Exception as error:
        raise as_transaction_error(what, error, settings) from error


def _cause_and_remedy(
    error: KafkaError | BaseException, settings: WriterSettings, topic: str | None
) -> str:
    cause = _cause(error)
    if isinstance(cause, KafkaError) and cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return (
            f"{cause}. The record, or the batch it was sent in, is larger than allowed: raise the "
            "topic's max.message.bytes and kafka['message.max.bytes'], or, if the record itself "
            "is smaller than that, lower kafka['batch.size'] to the topic's max.message.bytes"
        )
    if isinstance(cause, KafkaError) and cause.code() in DENIED:
        needed = [transactional_ids(settings.id_prefix, Operation.WRITE)]
        if topic is not None:
            needed.append(write_topic(topic))
        principal = settings.client.principal
        return f"{cause}: {remedy(cause.code(), needed, principal)}".removesuffix(": ")
    return text_of(cause)


def _cause(error: KafkaError | BaseException) -> KafkaError | BaseException:
    return error.args[0] if isinstance(error, KafkaException) else error
