"""Reads single source records again, for dead letters of rows that don't carry their record."""

import contextlib
import time
from collections import deque
from typing import Any, Final

import confluent_kafka
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException

from spark_eos._client.confluent_traps import headers_of
from spark_eos._client.error_codes import DENIED, remedy
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.librdkafka_errors import TransactionError, as_transaction_error
from spark_eos._worker.records import RecordContent
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import read_topic
from spark_eos.errors import text_of

_SETTINGS: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    # Spark has already read the records at these positions, with its own isolation level.
    "isolation.level": "read_uncommitted",
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 2_000,
    "queued.max.messages.kbytes": 8_192,
}
# Read and discard up to this many records rather than seek: a new position costs tens of
# milliseconds.
_AHEAD: Final = 5_000
_READ: Final = 500
# After this many seconds without a record, ask whether the wanted record still exists.
_SILENCE: Final = 1.0
_GONE: Final = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}


class SourceRecords:
    """Fetches source records by their positions, without committing or joining a group."""

    # Fetching is fastest if offsets ascend within a partition.

    def __init__(self, settings: WriterSettings) -> None:
        self._settings = settings
        self._consumer: Any = None
        self._partition: TopicPartition | None = None
        self._next = 0
        self._read: deque[Any] = deque()
        # Remember the last record, because several rows may come from it.
        self._last: tuple[TopicPartition, int] | None = None
        self._last_record: RecordContent | None = None

    def fetch(self, partition: TopicPartition, offset: int) -> RecordContent | None:
        """Return a source record; None if it has been deleted since Spark read it."""
        if self._last == (partition, offset):
            return self._last_record
        what = f"reading source {partition} offset {offset} again for its dead letter"
        try:
            record = self._fetch(partition, offset)
        except KafkaException as error:
            cause = error.args[0]
            if cure := remedy(cause.code(), [read_topic(partition.topic)], self._client.principal):
                raise TransactionError(f"{what}: {cause}: {cure}", again=False) from error
            raise as_transaction_error(what, error, self._settings) from error
        except TimeoutError as error:
            raise TransactionError(f"{what}: {text_of(error)}", again=True) from error
        self._last, self._last_record = (partition, offset), record
        return record

    def _fetch(self, partition: TopicPartition, offset: int) -> RecordContent | None:
        self._move(partition, offset)
        deadline = self._settings.connect_deadline()
        heard = time.monotonic()
        cause = "no record arrived"
        while not deadline.expired:
            if not self._read:
                self._read.extend(self._consumer.consume(_READ, 0.1))
            message = self._read.popleft() if self._read else None
            error = None if message is None else message.error()
            if error is None and message is not None:
                if message.offset() >= offset:
                    return self._content_at(message, offset)
                continue
            if error is not None and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                # GROUP_AUTHORIZATION_FAILED is ignored: librdkafka looks up the group's
                # coordinator, although the group is not used here and may belong to another
                # cluster.
                cause = str(error)
                if error.code() in DENIED:
                    raise KafkaException(error)
            silent = message is None and time.monotonic() - heard > _SILENCE
            said_gone = error is not None and error.code() in _GONE
            if (silent or said_gone) and self._is_gone(partition, offset):
                # After an out-of-range error, the consumer fetches nothing more.
                self._partition = None
                return None
            heard = time.monotonic() if silent else heard
        raise TimeoutError(f"{cause} within {deadline.seconds:g} s ({deadline.setting})")

    @property
    def _client(self) -> ClientSettings:
        return self._settings.source_client or self._settings.client

    def _move(self, partition: TopicPartition, offset: int) -> None:
        if self._consumer is None:
            own = {**self._client.for_consumer(), "group.id": self._settings.group_id}
            self._consumer = Consumer({**own, **_SETTINGS})
        if self._partition == partition and self._next <= offset <= self._next + _AHEAD:
            return
        self._read.clear()
        self._partition, self._next = partition, offset
        self._consumer.assign([confluent_kafka.TopicPartition(*partition, offset)])

    def _content_at(self, message: Any, offset: int) -> RecordContent | None:
        self._next = offset + 1
        if message.offset() > offset:
            self._read.appendleft(message)
            return None
        kind, milliseconds = message.timestamp()
        timestamp = None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds
        return RecordContent(message.key(), message.value(), headers_of(message), timestamp)

    def _is_gone(self, partition: TopicPartition, offset: int) -> bool:
        """Return True if the partition is known to no longer have the offset."""
        asked = confluent_kafka.TopicPartition(*partition)
        try:
            low, _high = self._consumer.get_watermark_offsets(asked, 2, cached=False)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                self._check_visible(partition.topic)
            return False
        return bool(offset < low)

    def _check_visible(self, topic: str) -> None:
        """Raise KafkaException if this client may not even describe the topic."""
        # librdkafka reports nothing then: it waits until the topic exists.
        try:
            found = self._consumer.list_topics(topic, timeout=2).topics[topic].error
        except KafkaException:
            return
        if found is not None and found.code() in DENIED:
            raise KafkaException(found)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._partition, self._last = None, None
        self._read.clear()
        if consumer is not None:
            with contextlib.suppress(KafkaException):
                consumer.close()
