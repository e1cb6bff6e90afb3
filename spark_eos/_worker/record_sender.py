"""Sends the rows of one transaction and waits until the brokers acknowledge them."""

import functools
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._client.confluent_traps import flush_records
from spark_eos._kafka.deadline import Deadline
from spark_eos._worker.librdkafka_errors import (
    REFUSALS_OF_DATA,
    TOPIC_AT_FAULT,
    RefusedRecordError,
    TransactionError,
    as_transaction_error,
    raised_as_transaction_error,
)
from spark_eos._worker.records import SourceRows, find_record, produce_arguments

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
    found: SourceRows
    replaced: Collection[int]


class RecordSender:
    """The records of one transaction, from librdkafka's queue to the brokers' acknowledgement."""

    def __init__(self, producer: Any, settings: WriterSettings) -> None:
        self._producer = producer
        self._settings = settings
        self._failed: _FailedRecord | None = None

    @property
    def unacknowledged(self) -> int:
        """Number of records that no broker has acknowledged yet."""
        return len(self._producer)

    def produce(
        self,
        found: SourceRows,
        topics: list[str | None],
        check: Callable[[], None] = _no_check,
        letters: Mapping[int, tuple[Any, ...]] | None = None,
        after_each: Callable[[], None] | None = None,
    ) -> None:
        """Hands rows to librdkafka; blocks while its queue is full."""
        letters = letters or {}
        on_delivery = self.on_delivery(found, letters.keys())
        arguments = produce_arguments(found, topics, on_delivery, letters.keys())
        if letters:
            replaced = list(arguments)
            for row, letter in letters.items():
                replaced[row] = letter
            arguments = iter(replaced)
        produce = self._producer.produce
        try:
            for record in arguments:
                try:
                    produce(*record)
                except BufferError:
                    self._produce_when_queue_has_room(record, check)
                if after_each is not None:
                    after_each()
        except Exception as error:
            if isinstance(error, TransactionError):
                raise
            index = found.rows.num_rows - 1 - len(list(arguments))
            if isinstance(error, KafkaException) and error.args[0].code() in TOPIC_AT_FAULT:
                check()
            self._raise_cause(error, check)
            what = f"{found.position(index)}, for topic {topics[index]!r}"
            raise as_transaction_error(what, error, self._settings, topics[index]) from error
        self._poll(0)
        self._raise_failed(check)

    def on_delivery(
        self, found: SourceRows, replaced: Collection[int]
    ) -> Callable[[KafkaError | None, Any], None]:
        """Makes the function that notes what became of a record made of one of the rows."""
        return functools.partial(self._on_delivery, found, replaced)

    def wait_while(
        self, condition: Callable[[], bool], check: Callable[[], None] = _no_check
    ) -> None:
        """Serves librdkafka's callbacks while a condition holds.

        Ends at the latest when a record's delivery times out, since the record has then failed.
        """
        checked = time.monotonic()
        while condition():
            self._poll(0.05)
            self._raise_failed(check)
            if time.monotonic() - checked >= _STALL:
                check()
                checked = time.monotonic()

    def flush(self, deadline: Deadline, check: Callable[[], None] = _no_check) -> None:
        """Waits until every record of the transaction is acknowledged."""
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

    def _on_delivery(
        self,
        found: SourceRows,
        replaced: Collection[int],
        error: KafkaError | None,
        message: Any,
    ) -> None:
        if error is None:
            return
        key, value = message.key(), message.value()
        # When a broker refuses a record batch, name its largest record: the one to blame. Records
        # that wait behind it are purged.
        rank = (error.code() in REFUSALS_OF_DATA, len(key or b"") + len(value or b""))
        if self._failed is not None and self._failed.rank >= rank:
            return
        row = find_record(found, key, value)
        position = f"source {found.source.topic}" if row is None else found.position(row)
        self._failed = _FailedRecord(error, rank, position, message.topic(), found, replaced)

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
            if failed.error.code() in TOPIC_AT_FAULT:
                check()
            what = f"{failed.position}, for topic {failed.topic!r}"
            error = as_transaction_error(what, failed.error, self._settings, failed.topic)
            if failed.error.code() in REFUSALS_OF_DATA:
                raise RefusedRecordError(str(error), failed.topic, failed.found, failed.replaced)
            raise error
