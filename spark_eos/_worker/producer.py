"""A worker's transactional producer: a librdkafka producer under its slot's transactional id."""

# librdkafka does not implement Transactions V2 (KIP-890): the producer's epoch stays the same from
# one transaction to the next, so a late request would become part of the next transaction. A
# producer is therefore reused only after a clean commit. After any other end, the producer is
# fenced and closed, and the next transaction gets a new one.

import logging
import time
from collections.abc import Callable
from typing import Final

from cachetools import LRUCache
from confluent_kafka import KafkaError, KafkaException

from spark_eos._client.error_codes import Code
from spark_eos._client.librdkafka import FailedRecord, Handle
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.topic_cache import TopicCache
from spark_eos._kafka.transactions import (
    ProducerIdAndEpoch,
    fence_producer,
    producer_id_and_epoch,
)
from spark_eos._worker.librdkafka_errors import (
    REFUSALS,
    TransactionError,
    as_transaction_error,
    asking_cluster,
    raised_as_transaction_error,
)
from spark_eos._worker.record_sender import RecordSender
from spark_eos._worker.slot import Slot
from spark_eos._worker.target_topics import MOST_NAMES
from spark_eos._worker.topic_rules import TopicRules
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.errors import KafkaResponseError, SparkEosError, warn

logger = logging.getLogger(__name__)
# Users see failures as errors that name a cause. Without a handler, Python would also print all of
# librdkafka's own log lines about connections.
_librdkafka_log = logging.getLogger("spark_eos._worker.librdkafka")
_librdkafka_log.addHandler(logging.NullHandler())

# Idle seconds after which another process may have fenced the producer, or the brokers may have
# forgotten its id (transactional.id.expiration.ms, a week by default).
_IDLE: Final = 10.0
# Seconds that a starting producer waits before it checks whether a listener has refused it.
_REFUSED_WITHIN: Final = 3.0


class TransactionalProducer:
    """The only transactional producer of a worker process and query."""

    def __init__(self, settings: WriterSettings) -> None:
        self.settings = settings
        self.connections = Connections(settings.client)
        self.topics = TopicCache(self.connections, settings.limits)
        self.rules = TopicRules(self.connections, settings)
        self.absent_topics: LRUCache[str, bool] = LRUCache(MOST_NAMES)
        self.batch_size = 0
        self._slot: Slot | None = None
        self._producer: Handle | None = None
        self._identity: ProducerIdAndEpoch | None = None
        self._records: RecordSender | None = None
        self._disturbance: str | None = None
        self._refusal: KafkaError | None = None
        self._lost_connection: str | None = None
        self._in_transaction = False
        self._used = 0.0

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The producer id and epoch; available only while a producer is open."""
        if self._identity is None:
            raise TransactionError("the producer is not open", again=True)
        return self._identity

    @property
    def records(self) -> RecordSender:
        """The sender of the transaction's rows; available only after `begin`."""
        if self._records is None:
            raise TransactionError("no transaction has begun", again=True)
        return self._records

    @property
    def _opened(self) -> Handle:
        if self._producer is None:
            raise TransactionError("the producer is not open", again=True)
        return self._producer

    # One transaction --------------------------------------------------------------------------

    def begin(self, check: Callable[[], None]) -> None:
        """Begin a transaction; ``check`` raises if a target topic has changed."""
        if self._producer is not None and (why := self._why_replaced()) is not None:
            logger.info("replacing %s: %s", self.identity.transactional_id, why)
            self.drop()
        if self._producer is None:
            self._open()
        self._records = RecordSender(self._opened, self.settings, check)
        self._in_transaction = True
        with raised_as_transaction_error("begin_transaction", self.settings):
            self._opened.begin_transaction()

    def _why_replaced(self) -> str | None:
        if not self.clean():
            return self._reason()
        if self._is_forgotten():
            return "idle for too long"
        return "smaller batches" if self.rules.batch_size < self.batch_size else None

    def commit(self, deadline: Deadline) -> None:
        def attempt() -> None:
            try:
                self._opened.commit_transaction(deadline.remaining())
            except KafkaException as error:
                if error.args[0].retriable():
                    self.disturb(str(error.args[0]))
                    raise RetriableError(str(error.args[0])) from error
                raise

        with raised_as_transaction_error("commit_transaction", self.settings):
            deadline.attempts("commit_transaction")(attempt)
        self._in_transaction = False
        self._records = None
        self._used = time.monotonic()

    def disturb(self, reason: str) -> None:
        """Note that the open transaction can't end cleanly, even if it commits."""
        self._disturbance = reason

    def clean(self) -> bool:
        """Return True if the producer can be reused."""
        # The producer can be reused unless an error or a lost connection may have left a delayed
        # request behind. librdkafka may report an error of the last transaction only after the
        # transaction's end, so poll first.
        try:
            self._opened.poll(0)
        except Exception as error:  # noqa: BLE001 - the driver may have fenced it while idle
            self._disturbance = str(error)
        return self._reason() is None

    def _reason(self) -> str | None:
        return self._disturbance or self._lost_connection

    def _is_forgotten(self) -> bool:
        """Return True if the coordinator no longer knows the producer; ask only if it was idle."""
        if time.monotonic() - self._used < _IDLE:
            return False
        mine = self.identity
        with asking_cluster("beginning a transaction"):
            try:
                deadline = self.settings.connect_deadline()
                now = producer_id_and_epoch(self.connections, mine.transactional_id, deadline)
            except KafkaResponseError as error:
                return error.code == Code.TRANSACTIONAL_ID_NOT_FOUND
            return now != mine

    # Opening ----------------------------------------------------------------------------------

    def _open(self) -> None:
        settings = self.settings
        deadline = self.settings.connect_deadline()
        try:
            # This fails at once if a listener refuses the client; librdkafka would keep trying.
            self.connections.brokers(deadline)
            if self._slot is None:
                self._slot = Slot(
                    settings.transactions.id_prefix,
                    settings.group_id,
                    settings.limits.worker_directory,
                )
            transactional_id = self._slot.transactional_id
            self._lost_connection = None
            self._refusal = None
            # Only the current coordinator can write this epoch, and all later epochs are higher.
            fenced = self._fence(transactional_id, deadline)
            self.batch_size = self.rules.batch_size
            self._producer = Handle(
                {
                    **settings.client.for_producer(
                        transactional_id, settings.transactions.timeout_ms
                    ),
                    "batch.size": self.batch_size,
                    # Override the user's settings: lost connections must be reported.
                    "log_level": 7,
                    "log.connection.close": True,
                },
                on_failed=self._on_failed,
                on_error=self._on_error,
                on_log=self._on_log,
            )
            self._initialize(self._producer, deadline)
            self._identity = self._own_identity(fenced, deadline)
            self._producer.poll(0)
        except Exception as error:
            self._close()
            what = "starting a transactional producer"
            raise as_transaction_error(what, error, settings) from error
        # An error while connecting can't affect a transaction, so clear the error. But keep
        # `_lost_connection`: librdkafka does not report another lost connection within 30 s.
        self._disturbance = None
        self._used = time.monotonic()

    def _initialize(self, producer: Handle, deadline: Deadline) -> None:
        def attempt() -> None:
            wait = min(_REFUSED_WITHIN, deadline.remaining())
            # This call also fetches an OAuth token, without which there is no connection.
            self._raise_refusal(producer)
            if self.settings.topic is not None:
                # Connect first. Without a connection, librdkafka fails to find the coordinator, and
                # tries again only half a second later.
                producer.connect(self.settings.topic, wait)
            self._raise_refusal(producer)
            try:
                producer.init_transactions(wait)
            except KafkaException as error:
                self._raise_refusal(producer)
                if error.args[0].retriable():
                    raise RetriableError(f"{error.args[0]}; {self._disturbance}") from error
                raise

        deadline.attempts("init_transactions")(attempt)

    def _own_identity(self, old: ProducerIdAndEpoch, deadline: Deadline) -> ProducerIdAndEpoch:
        """Ask the coordinator until it reports the producer that was initialized after ``old``."""
        transactional_id = old.transactional_id

        def attempt() -> ProducerIdAndEpoch:
            reported = producer_id_and_epoch(self.connections, transactional_id, deadline)
            if reported.producer_id == old.producer_id and reported.epoch <= old.epoch:
                # A broker that was frozen or is cut off from the others may not know that another
                # broker is now the coordinator.
                self.connections.forget_coordinator(CoordinatorType.TRANSACTION, transactional_id)
                raise RetriableError(f"the coordinator still reports epoch {reported.epoch}")
            return reported

        return deadline.attempts("DescribeTransactions")(attempt)

    def _fence(self, transactional_id: str, deadline: Deadline) -> ProducerIdAndEpoch:
        timeout_ms = self.settings.transactions.timeout_ms
        return fence_producer(self.connections, transactional_id, timeout_ms, deadline)

    def _raise_refusal(self, producer: Handle) -> None:
        producer.poll(0)
        if self._refusal is not None:
            raise KafkaException(self._refusal)

    def _on_failed(self, record: FailedRecord) -> None:
        if self._records is not None:
            self._records.note_failure(record)

    def _on_error(self, error: KafkaError) -> None:
        self._disturbance = str(error)
        awaits_token = self._producer is not None and self._producer.awaits_token
        if error.code() in REFUSALS and not awaits_token:
            self._refusal = error

    def _on_log(self, level: int, line: str) -> None:
        """Note lost connections, which librdkafka reliably reports only in its log."""
        # librdkafka does not call `_on_error` for a connection with one request in flight, and that
        # request may be the end of a transaction.
        _librdkafka_log.log(level, "%s", line)
        # A connection that was never established has no request in flight.
        if line.startswith(("FAIL ", "REQTMOUT ")) and "in state CONNECT" not in line:
            self._lost_connection = line

    # Closing ----------------------------------------------------------------------------------

    def drop(self) -> None:
        """Fence and close the producer, which aborts its open transaction."""
        # Forget all topics: one of them may have been deleted or recreated, or its config changed.
        self.topics.clear()
        self.rules.forget()
        producer, self._producer = self._producer, None
        identity, self._identity = self._identity, None
        self._records = None
        self._in_transaction = False
        if producer is None or identity is None:
            return
        try:
            # Fence first, so that the brokers refuse a delayed request of this producer.
            self._fence(identity.transactional_id, self.settings.connect_deadline())
        except SparkEosError as error:
            # The driver ends open transactions before anyone else may write.
            warn(
                logger,
                "EOS69",
                "producer %s could not be fenced, so the driver ends its transaction: %s",
                identity.transactional_id,
                error,
            )
        finally:
            producer.abandon()
            producer.close()

    def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def close(self) -> None:
        """Close the producer and its connections, and release the slot."""
        # Don't fence between transactions: that could wait for an unreachable cluster. If a late
        # request opens a transaction, nobody commits it, and the driver or the brokers' timeout
        # ends it.
        if self._in_transaction:
            self.drop()
        self._close()
        self._identity = self._records = None
        self.connections.close()
        if self._slot is not None:
            self._slot.release()
            self._slot = None
