"""Sends the rows of one transaction and waits until the brokers acknowledge them."""

import bisect
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from spark_eos._client.librdkafka import FailedRecord, Handle
from spark_eos._kafka.deadline import Deadline
from spark_eos._worker.dead_letters import letter_rows
from spark_eos._worker.librdkafka_errors import (
    REFUSALS_OF_DATA,
    TOPIC_AT_FAULT,
    TransactionError,
    as_transaction_error,
    raised_as_transaction_error,
)
from spark_eos._worker.record_arrays import Integers, arguments, messages, one_by_one
from spark_eos._worker.records import RecordContent, RowTopics, SourceRows
from spark_eos._worker.writer_settings import WriterSettings

# Seconds between checks of the target topics during a wait: librdkafka retries records for a
# deleted topic until the transaction times out.
_STALL: Final = 1.0


@dataclass(frozen=True)
class _Failure:
    error: KafkaError
    rank: tuple[bool, int]
    number: int
    topic: str


class RefusedRecordError(TransactionError):
    """A broker refused a record because of its content."""

    def __init__(
        self, reason: str, topic: str, part: SourceRows, replaced: Collection[int]
    ) -> None:
        super().__init__(reason, again=False)
        self.topic = topic
        self.part = part
        self.replaced = replaced


class RecordSender:
    """Sends one transaction's records, and waits for the brokers to acknowledge them."""

    def __init__(
        self, producer: Handle, settings: WriterSettings, check: Callable[[], None]
    ) -> None:
        self._producer = producer
        self._settings = settings
        # Raises an error if a target topic has changed.
        self._check = check
        # The parts passed to librdkafka, each with its rows that were replaced by dead letters.
        self._sent: list[tuple[SourceRows, Collection[int]]] = []
        # The number of each part's first row, and last the number of the next row.
        self._numbers: list[int] = [1]
        self._failure: _Failure | None = None

    @property
    def unacknowledged(self) -> int:
        """Number of records that no broker has acknowledged yet."""
        return self._producer.unacknowledged

    def produce(
        self, part: SourceRows, topics: RowTopics, dead_letters: Mapping[int, RecordContent]
    ) -> None:
        """Pass rows to librdkafka, some as dead letters; block while its queue is full."""
        for rows, names, numbers in self._parts(part, topics, dead_letters):
            if one_by_one(rows):
                self._send_each(rows, names, numbers)
                continue
            batch = messages(rows, numbers)
            for name in names.firsts():
                # With one topic, don't copy the messages.
                topic = str(name)
                left = batch if len(names.names) == 1 else batch[names.rows(name)]
                for _ in self._pauses():
                    was_empty = not self._producer.unacknowledged
                    taken, error = self._producer.produce_batch(topic, left, rows)
                    left = left[taken:]
                    if error is None:
                        break
                    alone = was_empty and not taken
                    self._refuse(int(left["number"][0]), topic, error, alone=alone)
        self._poll(0)
        self._raise_failed()

    def _parts(
        self, part: SourceRows, topics: RowTopics, dead_letters: Mapping[int, RecordContent]
    ) -> Iterator[tuple[pa.RecordBatch, RowTopics, Integers]]:
        """Yield the rows, then the dead letters."""
        numbers = self._number(part, dead_letters)
        rows = part.rows
        if not dead_letters:
            yield rows, topics, numbers
            return
        kept = np.ones(rows.num_rows, bool)
        kept[[*dead_letters]] = False
        kept_topics = RowTopics(topics.names, topics.codes[kept])
        yield rows.filter(pa.array(kept)), kept_topics, numbers[kept]
        # No row may go to the dead-letter topic, so sending the dead letters last keeps each
        # topic's order.
        own = self._settings.dead_letters
        name = None if own is None else own.topic
        topic = RowTopics([name], np.zeros(len(dead_letters), np.intp))
        yield letter_rows([*dead_letters.values()]), topic, numbers[[*dead_letters]]

    def _number(self, part: SourceRows, replaced: Collection[int]) -> Integers:
        first = self._numbers[-1]
        self._sent.append((part, frozenset(replaced)))
        self._numbers.append(first + part.rows.num_rows)
        return np.arange(first, self._numbers[-1])

    def _row(self, number: int) -> tuple[str, SourceRows, Collection[int]]:
        """Return a numbered row's position, the rows sent with it, and which ones were replaced."""
        place = bisect.bisect_right(self._numbers, number) - 1
        part, replaced = self._sent[place]
        return part.position(number - self._numbers[place]), part, replaced

    def _send_each(self, rows: pa.RecordBatch, topics: RowTopics, numbers: Integers) -> None:
        used = topics.firsts()
        addresses = [self._producer.topic(str(n)) if n in used else 0 for n in topics.names]
        made = arguments(rows, np.array(addresses, np.uint64)[topics.codes], numbers)
        array, counts, row = made.array, made.counts.tolist(), 0
        for _ in self._pauses():
            was_empty = not self._producer.unacknowledged
            taken, error = self._producer.produce_each(array, counts[row:], rows)
            array = array[sum(counts[row : row + taken]) :]
            row += taken
            if error is None:
                break
            alone = was_empty and not taken
            self._refuse(int(numbers[row]), str(topics[row]), error, alone=alone)

    def wait_while(self, condition: Callable[[], bool]) -> None:
        """Serve librdkafka's events while a condition holds."""
        for _ in self._pauses():
            if not condition():
                break

    def _pauses(self) -> Iterator[None]:
        """Yield at once, and then again after each short round of serving events."""
        # This loop ends at the latest when a record's delivery times out, because that raises an
        # error.
        checked = time.monotonic()
        while True:
            yield
            # A record's acknowledgement is not an event, so it doesn't end this wait early.
            self._poll(0.005)
            self._raise_failed()
            if time.monotonic() - checked >= _STALL:
                self._check()
                checked = time.monotonic()

    def flush(self, deadline: Deadline) -> None:
        """Wait until every record of the transaction is acknowledged."""
        while True:
            with raised_as_transaction_error("flush", self._settings):
                left = self._producer.flush(min(_STALL, deadline.remaining()))
            self._raise_failed()
            if not left:
                return
            if deadline.expired:
                raise TransactionError(
                    f"{left} records were not acknowledged within {deadline.seconds:g} s "
                    f"({deadline.setting})",
                    again=True,
                )
            self._check()

    def _poll(self, seconds: float) -> None:
        with raised_as_transaction_error("poll", self._settings):
            self._producer.poll(seconds)

    # Failures ---------------------------------------------------------------------------------

    def note_failure(self, record: FailedRecord) -> None:
        """Keep the record to blame; librdkafka calls this for each record it could not deliver."""
        # When a broker refuses a record batch, its largest record is to blame. The records that
        # wait behind the batch are purged.
        rank = (record.code in REFUSALS_OF_DATA, record.size)
        if self._failure is not None and self._failure.rank >= rank:
            return
        self._failure = _Failure(KafkaError(record.code), rank, record.number, record.topic)

    def _refuse(self, number: int, topic: str, error: KafkaError, *, alone: bool) -> None:
        """Raise an error for a refused record; return if only other records fill the queue."""
        what = f"{self._row(number)[0]}, for topic {topic!r}"
        if error.code() == KafkaError._QUEUE_FULL:
            if not alone:
                return
            raise TransactionError(
                f"{what}: the record is larger than the client's queue: raise "
                "kafka['queue.buffering.max.kbytes']",
                again=False,
            )
        if error.code() in TOPIC_AT_FAULT:
            self._check()
        if error.code() == KafkaError._STATE:
            # The transaction has failed. The delivery report that says why has not been served yet.
            self._serve_until(lambda: self._failure is not None)
            self._raise_failed()
        raise as_transaction_error(what, error, self._settings, topic)

    def _serve_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _STALL
        while not condition() and time.monotonic() < end:
            self._poll(0.05)

    def _raise_failed(self) -> None:
        failed = self._failure
        if failed is not None:
            if failed.error.code() in TOPIC_AT_FAULT:
                self._check()
            if failed.error.code() == KafkaError.INVALID_PRODUCER_EPOCH:
                # The fatal error that follows says who fenced the producer.
                self._serve_until(lambda: False)
            position, part, replaced = self._row(failed.number)
            what = f"{position}, for topic {failed.topic!r}"
            error = as_transaction_error(what, failed.error, self._settings, failed.topic)
            if failed.error.code() in REFUSALS_OF_DATA:
                raise RefusedRecordError(str(error), failed.topic, part, replaced)
            raise error
