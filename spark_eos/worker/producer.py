"""A worker's transactional producer: a librdkafka producer that bears its slot's id.

librdkafka has no Transaction V2 (KIP-890), so its epoch stays the same from one transaction to
the next, and a request that arrives late would join the next transaction. Hence one rule: a
producer survives only clean commits. After any other end it is fenced and closed, and the next
transaction gets a new one.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from spark_eos.acls import Operation, transactional_ids, write_topic
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.error_codes import Code
from spark_eos.errors import KafkaResponseError, SparkEosError
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.topic_cache import TopicCache
from spark_eos.kafka.transactions import (
    ProducerIdAndEpoch,
    fence_producer,
    producer_id_and_epoch,
)
from spark_eos.worker.librdkafka_errors import (
    REFUSALS,
    TOPIC_AT_FAULT,
    ConnectionLog,
    TransactionError,
    advice,
    is_transient,
)
from spark_eos.worker.records import SourceRows, find_record, produce_arguments
from spark_eos.worker.slot import Slot

logger = logging.getLogger(__name__)

# Seconds without an end to a wait, after which whoever waits looks for a reason: librdkafka retries
# records for a topic that is gone until the transaction's timeout.
_STALL: Final = 1.0
# Seconds of idleness after which a producer's id may be another's, or nobody's: the brokers forget
# it after transactional.id.expiration.ms, a week by default.
_IDLE: Final = 10.0
# Seconds after which a producer that can't start asks whether a listener refuses it.
_REFUSED_WITHIN: Final = 3.0


def _go_on() -> None:
    pass


@dataclass(frozen=True)
class _FailedRecord:
    error: KafkaError
    size: int
    position: str
    topic: str


class TransactionalProducer:
    """The one transactional producer of a worker process and query.

    Args:
        settings: the writer's settings.

    Attributes:
        settings: the same.
        wire: connections of the producer's own.
        topics: what is known of target topics, from one clean commit to the next.
    """

    def __init__(self, settings: WriterSettings) -> None:
        self.settings = settings
        self.wire = Wire(settings.client)
        self.topics = TopicCache(
            self.wire,
            max_block_ms=settings.max_block_ms,
            max_idle_ms=settings.metadata_max_idle_ms,
        )
        self._slot: Slot | None = None
        self._producer: Any = None
        self._identity: ProducerIdAndEpoch | None = None
        self._failed: _FailedRecord | None = None
        self._disturbance: str | None = None
        self._refusal: KafkaError | None = None
        self._lost_connection: str | None = None
        self._in_transaction = False
        self._used = 0.0

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """Producer id and epoch; only while a producer is open."""
        if self._identity is None:
            raise TransactionError("the producer is not open", again=True)
        return self._identity

    # Life -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a transaction, with a new producer if the last one did not end cleanly."""
        if self._producer is not None and not self.clean():
            logger.info("%s is replaced: %s", self.identity.transactional_id, self._reason())
            self.drop()
        if self._producer is not None and self._is_forgotten():
            logger.info("%s is replaced: it was idle for long", self.identity.transactional_id)
            self.drop()
        if self._producer is None:
            self._open()
        self._failed = None
        self._in_transaction = True
        self._guarded("begin_transaction", self._producer.begin_transaction)

    def _is_forgotten(self) -> bool:
        """Whether the coordinator knows the producer no more; asked after a while of idleness."""
        if time.monotonic() - self._used < _IDLE:
            return False
        mine = self.identity
        deadline = Deadline(self.settings.connect_timeout_ms / 1000, "connect_timeout_ms")
        try:
            return producer_id_and_epoch(self.wire, mine.transactional_id, deadline) != mine
        except KafkaResponseError as error:
            return error.code == Code.TRANSACTIONAL_ID_NOT_FOUND
        except SparkEosError as error:
            raise TransactionError(
                f"beginning a transaction: {self._advice(error)}", again=is_transient(error)
            ) from error

    def clean(self) -> bool:
        """Whether nothing has happened, as far as librdkafka knows, that a request may outlive.

        An error that came with the last transaction may be reported after its end, so it counts
        against the next one.
        """
        try:
            self._producer.poll(0)
        except Exception as error:  # noqa: BLE001 - fenced while idle, by the driver say
            self._disturbance = str(error)
        return self._reason() is None

    def _reason(self) -> str | None:
        return self._disturbance or self._lost_connection

    def _open(self) -> None:
        settings = self.settings
        deadline = Deadline(settings.connect_timeout_ms / 1000, "connect_timeout_ms")
        try:
            # librdkafka would go on trying a listener that refuses it.
            self.wire.brokers(deadline)
            if self._slot is None:
                self._slot = Slot(
                    settings.transactional_id_prefix, settings.group_id, settings.worker_directory
                )
            transactional_id = self._slot.transactional_id
            self._lost_connection = None
            self._refusal = None
            self._producer = Producer(
                {
                    **settings.client.for_producer(
                        transactional_id, settings.transaction_timeout_ms
                    ),
                    "error_cb": self._on_error,
                    # Whatever the user has set: lost connections must be told.
                    "log_level": 7,
                    "log.connection.close": True,
                },
                logger=ConnectionLog(self._on_lost_connection),
            )
            self._initialize(deadline)
            self._identity = producer_id_and_epoch(self.wire, transactional_id, deadline)
            self._producer.poll(0)
        except Exception as error:
            self._producer = None
            raise TransactionError(
                f"starting a transactional producer: {self._advice(error)}",
                again=is_transient(error),
            ) from error
        # An error while connecting can't reach into a transaction. A lost connection is remembered,
        # since librdkafka does not tell of the next one if that comes within 30 s.
        self._disturbance = None
        self._used = time.monotonic()

    def _initialize(self, deadline: Deadline) -> None:
        def attempt() -> None:
            wait = min(_REFUSED_WITHIN, deadline.remaining())
            if self.settings.topic is not None:
                # Connects. Without a connection librdkafka looks for the coordinator once, in
                # vain, and then again after half a second.
                with contextlib.suppress(KafkaException):
                    self._producer.list_topics(self.settings.topic, wait)
            self._raise_refusal()
            try:
                self._producer.init_transactions(wait)
            except KafkaException as error:
                self._raise_refusal()
                if error.args[0].retriable():
                    raise RetriableError(f"{error.args[0]}; {self._disturbance}") from error
                raise

        deadline.attempts("init_transactions")(attempt)

    def _raise_refusal(self) -> None:
        self._producer.poll(0)
        if self._refusal is not None:
            raise KafkaException(self._refusal)

    def drop(self) -> None:
        """Fences and closes the producer; whatever its transaction holds is aborted."""
        # A topic that was deleted, or created anew, may be the reason.
        self.topics.clear()
        producer, self._producer = self._producer, None
        identity, self._identity = self._identity, None
        self._in_transaction = False
        if producer is None or identity is None:
            return
        try:
            # First fence: a delayed request of this producer must find a dead epoch.
            fence_producer(
                self.wire,
                identity.transactional_id,
                self.settings.transaction_timeout_ms,
                Deadline(self.settings.connect_timeout_ms / 1000, "connect_timeout_ms"),
            )
        except SparkEosError as error:
            # The driver ends what is open before anybody else may write.
            logger.warning("%s is left to the driver: %s", identity.transactional_id, error)
        try:
            producer.purge()
            producer.flush(0)
        except Exception as error:  # noqa: BLE001 - it is fenced, so nothing can go wrong
            logger.debug("%s: while closing: %s", identity.transactional_id, error)

    def close(self) -> None:
        """Gives producer, slot and connections back.

        Between transactions nothing is fenced, which might wait for a cluster that is gone: what a
        late request could open, nobody commits, and the driver or the brokers' timeout ends it.
        """
        if self._in_transaction:
            self.drop()
        self._producer = self._identity = None
        self.wire.close()
        if self._slot is not None:
            self._slot.release()
            self._slot = None

    # What librdkafka reports --------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        self._disturbance = str(error)
        if error.code() in REFUSALS:
            self._refusal = error

    def _on_lost_connection(self, line: str) -> None:
        self._lost_connection = line

    def disturb(self, reason: str) -> None:
        """Notes that the open transaction can't end cleanly, even if it commits."""
        self._disturbance = reason

    def _on_delivery(self, found: SourceRows, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return
        key, value = message.key(), message.value()
        size = len(key or b"") + len(value or b"")
        # Of a refused record batch the largest record is to blame, so it is the one to name.
        if self._failed is not None and self._failed.size >= size:
            return
        row = find_record(found, key, value)
        position = found.position(row) if row is not None else f"source {found.topic}"
        self._failed = _FailedRecord(error, size, position, message.topic())

    def _advice(self, error: KafkaError | BaseException, topic: str | None = None) -> str:
        needed = [transactional_ids(self.settings.id_prefix, Operation.WRITE)]
        if topic is not None:
            needed.append(write_topic(topic))
        return advice(error, needed, self.settings.client.grantee)

    def _guarded(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except Exception as error:
            # Besides KafkaException: SystemError, when librdkafka fails inside a callback.
            raise TransactionError(
                f"{what}: {self._advice(error)}", again=is_transient(error)
            ) from error

    # Work -------------------------------------------------------------------------------------

    def produce(
        self, found: SourceRows, topics: list[str | None], check: Callable[[], None] = _go_on
    ) -> None:
        """Hands rows to librdkafka; blocks while its queue is full.

        Args:
            found: the rows.
            topics: each row's target topic.
            check: raises if the target topics are not what they were; called about once a second
                while blocked, and when a topic or partition is not known.

        Raises:
            TransactionError: a row can't be written; the error names its source position.
        """
        arguments = produce_arguments(found, topics, functools.partial(self._on_delivery, found))
        produce = self._producer.produce
        try:
            for row in arguments:
                try:
                    produce(*row)
                except BufferError:
                    self._produce_when_there_is_room(row, check)
        except Exception as error:
            if isinstance(error, TransactionError):
                raise
            if isinstance(error, KafkaException) and error.args[0].code() in TOPIC_AT_FAULT:
                check()
            index = found.rows.num_rows - 1 - sum(1 for _ in arguments)
            raise TransactionError(
                f"{found.position(index)}, for topic {topics[index]!r}: "
                f"{self._advice(error, topics[index])}",
                again=is_transient(error),
            ) from error
        self._guarded("poll", self._producer.poll, 0)
        self._raise_failed(check)

    @property
    def unacknowledged(self) -> int:
        """Records that were handed over and are not known to be written."""
        return len(self._producer)

    def wait_while(self, condition: Callable[[], bool], check: Callable[[], None] = _go_on) -> None:
        """Lets librdkafka work for as long as a condition holds.

        No longer than records may wait for acknowledgement: then they have failed.

        Args:
            condition: asked again and again.
            check: as in `produce`.

        Raises:
            TransactionError: a record has failed.
        """
        checked = time.monotonic()
        while condition():
            self._guarded("poll", self._producer.poll, 0.05)
            self._raise_failed(check)
            if time.monotonic() - checked >= _STALL:
                check()
                checked = time.monotonic()

    def _produce_when_there_is_room(self, row: tuple[Any, ...], check: Callable[[], None]) -> None:
        def has_no_room() -> bool:
            try:
                self._producer.produce(*row)
            except BufferError:
                return True
            return False

        self.wait_while(has_no_room, check)

    def _raise_failed(self, check: Callable[[], None]) -> None:
        failed = self._failed
        if failed is not None:
            if failed.error.code() in TOPIC_AT_FAULT:
                check()
            raise TransactionError(
                f"{failed.position}, for topic {failed.topic!r}: "
                f"{self._advice(failed.error, failed.topic)}",
                again=is_transient(failed.error),
            )

    def flush(self, deadline: Deadline, check: Callable[[], None] = _go_on) -> None:
        """Waits until every record of the transaction is acknowledged.

        Args:
            deadline: over all of it.
            check: as in `produce`.

        Raises:
            TransactionError: one was not.
        """
        while True:
            wait = min(_STALL, deadline.remaining())
            left = self._guarded("flush", self._producer.flush, wait)
            self._raise_failed(check)
            if not left:
                return
            if deadline.expired:
                raise TransactionError(
                    f"{left} records were not acknowledged within {deadline.seconds:g} s "
                    f"({deadline.setting})",
                    again=True,
                )
            check()

    def commit(self, deadline: Deadline) -> None:
        """Ends the transaction by committing it.

        Raises:
            TransactionError: it is not committed, or nobody knows.
        """

        def attempt() -> None:
            try:
                self._producer.commit_transaction(deadline.remaining())
            except KafkaException as error:
                if error.args[0].retriable():
                    self.disturb(str(error.args[0]))
                    raise RetriableError(str(error.args[0])) from error
                raise

        def committing() -> None:
            deadline.attempts("commit_transaction")(attempt)

        self._guarded("commit_transaction", committing)
        self._in_transaction = False
        self._used = time.monotonic()
