"""Sends the rows of one transaction and waits until the brokers acknowledge them."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.flushing import flush_records
from spark_eos.kafka.deadline import Deadline
from spark_eos.worker.librdkafka_errors import (
    TOPIC_AT_FAULT,
    TransactionError,
    as_transaction_error,
    raised_as_transaction_error,
)
from spark_eos.worker.records import SourceRows, find_record, produce_arguments
from spark_eos.worker.refusals import REFUSALS_OF_DATA, RefusedRecordsError

# Seconds between two checks of the target topics during a wait: librdkafka retries records for a
# deleted topic until the transaction times out.
_STALL: Final = 1.0


def _no_check() -> None:
    pass


@dataclass(frozen=True)
class _FailedRecord:
    error: KafkaError
    rank: tuple[bool, int]
    position: str
    topic: str


@dataclass(frozen=True)
class Letters:
    """How rows are replaced by dead letters.

    Attributes:
        arguments: Arguments of ``Producer.produce`` for the rows that are dead letters already.
        too_large: Returns the arguments that replace those of a row that librdkafka refuses as
            too large; the argument is the row. Raises TransactionError if there are none.
    """

    arguments: Mapping[int, tuple[Any, ...]]
    too_large: Callable[[int], tuple[Any, ...]]


class RecordSender:
    """The records of one transaction, from librdkafka's queue to the brokers' acknowledgement.

    Args:
        producer: The confluent_kafka producer, with a transaction begun.
        settings: The writer's settings.
    """

    def __init__(self, producer: Any, settings: WriterSettings) -> None:
        self._producer = producer
        self._settings = settings
        self._failed: _FailedRecord | None = None
        self._refused: list[tuple[int, Any]] = []

    @property
    def unacknowledged(self) -> int:
        """Number of records that no broker has acknowledged yet."""
        return len(self._producer)

    def produce(
        self,
        found: SourceRows,
        topics: list[str | None],
        check: Callable[[], None] = _no_check,
        letters: Letters | None = None,
    ) -> None:
        """Hands rows to librdkafka; blocks while its queue is full.

        Args:
            found: The rows.
            topics: Each row's target topic.
            check: Raises if a target topic has changed. Called about once a second while blocked,
                and when a topic or partition is unknown.
            letters: How to replace rows by dead letters; None if there is no topic for these.

        Raises:
            TransactionError: A row can't be written; the error names its source position.
        """
        on_delivery = self.on_delivery(found)
        made = {} if letters is None else letters.arguments
        arguments = produce_arguments(found, topics, on_delivery, made.keys())
        if made:
            replaced = list(arguments)
            for row, letter in made.items():
                replaced[row] = letter
            arguments = iter(replaced)
        while True:
            try:
                self._produce_all(arguments, check)
                break
            except Exception as error:
                if isinstance(error, TransactionError):
                    raise
                rest = list(arguments)
                index = found.rows.num_rows - 1 - len(rest)
                if letters is not None and _is_too_large(error):
                    arguments = iter([letters.too_large(index), *rest])
                    continue
                if isinstance(error, KafkaException) and error.args[0].code() in TOPIC_AT_FAULT:
                    check()
                self._raise_cause(error, check)
                what = f"{found.position(index)}, for topic {topics[index]!r}"
                raise as_transaction_error(what, error, self._settings, topics[index]) from error
        self._poll(0)
        self._raise_failed(check)

    def _produce_all(self, arguments: Iterator[tuple[Any, ...]], check: Callable[[], None]) -> None:
        produce = self._producer.produce
        for row in arguments:
            try:
                produce(*row)
            except BufferError:
                self._produce_when_queue_has_room(row, check)

    def produce_one(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp: int,
    ) -> None:
        """Hands a single record to librdkafka, as a probe: it is not made of a row.

        Raises:
            RefusedRecordsError: It is too large for this client.
        """

        def on_delivery(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._note_failure(error, message, None, f"a record for topic {topic!r}")

        try:
            self._producer.produce(
                topic, value, key, partition, on_delivery, on_delivery, timestamp, list(headers)
            )
        except KafkaException as error:
            if not _is_too_large(error):
                raise as_transaction_error("a probe", error, self._settings, topic) from error
            raise RefusedRecordsError(str(error), []) from error

    def on_delivery(self, found: SourceRows) -> Callable[[KafkaError | None, Any], None]:
        """The function that is told what became of a record made of one of the rows."""
        return functools.partial(self._on_delivery, found)

    def wait_while(
        self, condition: Callable[[], bool], check: Callable[[], None] = _no_check
    ) -> None:
        """Serves librdkafka's callbacks while a condition holds.

        Ends at the latest when a record's delivery times out, since the record has then failed.

        Args:
            condition: Asked about every 50 ms.
            check: As in `produce`.

        Raises:
            TransactionError: A record has failed.
        """
        checked = time.monotonic()
        while condition():
            self._poll(0.05)
            self._raise_failed(check)
            if time.monotonic() - checked >= _STALL:
                check()
                checked = time.monotonic()

    def flush(self, deadline: Deadline, check: Callable[[], None] = _no_check) -> None:
        """Waits until every record of the transaction is acknowledged.

        Args:
            deadline: Time limit for all of them.
            check: As in `produce`.

        Raises:
            TransactionError: A record has failed, or was not acknowledged in time.
        """
        while True:
            with raised_as_transaction_error("flush", self._settings):
                left = flush_records(self._producer, min(_STALL, deadline.remaining()))
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

    def _poll(self, seconds: float) -> None:
        with raised_as_transaction_error("poll", self._settings):
            self._producer.poll(seconds)

    def _produce_when_queue_has_room(self, row: tuple[Any, ...], check: Callable[[], None]) -> None:
        def queue_is_full() -> bool:
            try:
                self._producer.produce(*row)
            except BufferError:
                return True
            return False

        self.wait_while(queue_is_full, check)

    def _on_delivery(self, found: SourceRows, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._note_failure(error, message, found, f"source {found.topic}")

    def _note_failure(
        self, error: KafkaError, message: Any, found: SourceRows | None, position: str
    ) -> None:
        is_refusal = error.code() in REFUSALS_OF_DATA
        if is_refusal and self._settings.dead_letters is not None:
            self._refused.append((error.code(), message))
        key, value = message.key(), message.value()
        # When a broker refuses a record batch, name its largest record: the one to blame. Records
        # that wait behind it are purged.
        rank = (is_refusal, len(key or b"") + len(value or b""))
        if self._failed is not None and self._failed.rank >= rank:
            return
        row = None if found is None else find_record(found, key, value)
        if found is not None and row is not None:
            position = found.position(row)
        self._failed = _FailedRecord(error, rank, position, message.topic())

    def _raise_cause(self, error: BaseException, check: Callable[[], None]) -> None:
        """Raises why the transaction has failed, if that is why a row is not taken any more."""
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._STATE:
            # The delivery report follows the failure, and is not served yet.
            end = time.monotonic() + _STALL
            while self._failed is None and time.monotonic() < end:
                self._poll(0.05)
            self._raise_failed(check)

    def _raise_failed(self, check: Callable[[], None]) -> None:
        failed = self._failed
        if failed is not None:
            if failed.error.code() in TOPIC_AT_FAULT and not self._refused:
                check()
            what = f"{failed.position}, for topic {failed.topic!r}"
            error = as_transaction_error(what, failed.error, self._settings, failed.topic)
            raise RefusedRecordsError(str(error), self._refused) if self._refused else error


def _is_too_large(error: BaseException) -> bool:
    return (
        isinstance(error, KafkaException) and error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    )
