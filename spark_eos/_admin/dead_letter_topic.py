"""Reads a dead-letter topic."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException

from spark_eos._client.error_codes import DENIED
from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION, header_number, topic_name
from spark_eos._client.letter_headers import Header, read_letter_headers
from spark_eos._client.message_headers import headers_of
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import (
    AuthorizationError,
    DeadlineExceededError,
    SparkEosError,
    TopicNotFoundError,
    WriteError,
)

_WAIT: Final = 0.2
# message.timestamp.after.max.ms, unless set.
_AHEAD_MS: Final = 3_600_000
# librdkafka looks the consumer's group up, also where it is not used.
_OF_GROUP: Final = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True)
class DeadLetter:
    """A record of a dead-letter topic.

    Attributes:
        topic: The dead-letter topic.
        partition: Its partition.
        offset: The record's offset.
        timestamp: Milliseconds since 1970.
        key: The key.
        value: The value.
        headers: All headers; None if they can't be read, since a name is not UTF-8. Then the letter
            has no headers of its own, and tells nothing.
        own_headers: Those of the record itself, without those that explain the letter.
        error_headers: The connector's headers, by name: ``topic``, ``partition``, ``offset``,
            ``group``, ``message``, ``reason``, ``exception``, ``stacktrace``, ``timestamp``,
            ``omitted``, ``cluster`` if the source is in another one, and ``record`` if it is not
            the source's but a row.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] | None
    own_headers: tuple[Header, ...]
    error_headers: Mapping[str, str]

    @property
    def position(self) -> str:
        """Where the letter is, as ``topic-partition offset``."""
        return f"{self.topic}-{self.partition} offset {self.offset}"

    @property
    def source(self) -> TopicPartition | None:
        """The partition of its source record; None if the headers don't tell one."""
        topic = topic_name(self.error_headers.get("topic"))
        partition = header_number(self.error_headers.get("partition"), MAX_PARTITION)
        return None if topic is None or partition is None else TopicPartition(topic, partition)

    @property
    def record_timestamp(self) -> int:
        """Milliseconds since 1970 of the record itself; the letter's, if the headers don't tell.

        The two differ where the topic has LogAppendTime. A later one than brokers take by default
        is not believed: it would end each replay.
        """
        most = min(MAX_OFFSET, self.timestamp + _AHEAD_MS)
        written = header_number(self.error_headers.get("timestamp"), most, -MAX_OFFSET)
        return self.timestamp if written is None else written

    @property
    def reason(self) -> str:
        """Why it is one."""
        return self.error_headers.get("reason", "unknown")


def dead_letter(message: Any) -> DeadLetter:
    """A dead letter as librdkafka has read it, with headers in any of the known styles."""
    headers = headers_of(message)
    found = read_letter_headers(headers or ())
    return DeadLetter(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers,
        tuple(found.own),
        {name: text.decode(errors="replace") for name, text in found.error_headers.items()},
    )


class DeadLetterTopic:
    """A dead-letter topic.

    Attributes:
        settings: See above.
        name: The topic's name.
        timeout: See above.

    Example:
        ::

            topic = DeadLetterTopic(settings, "orders-dlq", timeout=15)
            reasons = Counter(letter.reason for letter in topic.read())
    """

    def __init__(self, settings: ClientSettings, topic: str, timeout: float) -> None:
        self.settings = settings
        self.name = topic
        self.timeout = timeout

    def read(self) -> Iterator[DeadLetter]:
        """Yields all committed letters, up to the ends of this moment; by partition in order.

        Raises:
            TopicNotFoundError: The topic does not exist.
            DeadlineExceededError: The cluster does not answer in time.
            SparkEosError: The topic can't be read.
        """
        with explained(), self.consumer() as consumer:
            for message in self.messages(consumer, {}):
                yield dead_letter(message)

    def letter(self, partition: int, offset: int) -> DeadLetter | None:
        """One letter; None if there is no committed record at that offset.

        Raises:
            SparkEosError: As `read`.
        """
        with explained(), self.consumer() as consumer:
            for message in self.messages(consumer, {partition: offset}, only=partition):
                return dead_letter(message) if message.offset() == offset else None
        return None

    @contextmanager
    def consumer(self, group_id: str = "spark-eos-dead-letters") -> Iterator[Any]:
        """A consumer that joins no group."""
        settings = {
            **self.settings.for_consumer(),
            "group.id": group_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        with closing(Consumer(settings)) as consumer:
            yield consumer

    def partitions(self, consumer: Any) -> list[int]:
        """The topic's partitions.

        Raises:
            TopicNotFoundError: The topic does not exist.
        """
        found = consumer.list_topics(self.name, self.timeout).topics[self.name]
        if found.error is not None and found.error.code() in DENIED:
            raise KafkaException(found.error)
        if found.error is not None or not found.partitions:
            raise TopicNotFoundError(f"dead-letter topic {self.name!r} does not exist")
        return sorted(found.partitions)

    def bounds(self, consumer: Any, only: int | None = None) -> dict[int, tuple[int, int]]:
        """The first offset and the last stable one, by partition.

        Args:
            consumer: From `consumer`.
            only: The only partition to ask about; None for all.

        Raises:
            TopicNotFoundError: The topic does not exist.
        """

        def ask(partition: int) -> tuple[int, int]:
            asked = confluent_kafka.TopicPartition(self.name, partition)
            low, high = consumer.get_watermark_offsets(asked, self.timeout, cached=False)
            return low, high

        return {p: ask(p) for p in (self.partitions(consumer) if only is None else [only])}

    def messages(
        self, consumer: Any, starts: Mapping[int, int], only: int | None = None
    ) -> Iterator[Any]:
        """Yields the messages from the starts, or the beginning, up to the ends of now."""
        open_: dict[int, int] = {}
        assigned = []
        for partition, (low, high) in self.bounds(consumer, only).items():
            start = max(low, starts.get(partition, low))
            if start < high:
                open_[partition] = high
                assigned.append(confluent_kafka.TopicPartition(self.name, partition, start))
        consumer.assign(assigned)
        while open_:
            message = self._next(consumer)
            partition = message.partition()
            if message.error() is not None:
                open_.pop(partition, None)
                continue
            if message.offset() + 1 >= open_.get(partition, 0):
                known = open_.pop(partition, None)
                if known is None or message.offset() >= known:
                    continue
            yield message

    def _next(self, consumer: Any) -> Any:
        """The next message, or the news that a partition has come to its end."""
        deadline = Deadline(self.timeout, "--timeout")
        while not deadline.expired:
            message = consumer.poll(_WAIT)
            error = None if message is None else message.error()
            if message is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
                return message
            if error is not None and error.code() not in _OF_GROUP:
                raise KafkaException(error)
        raise DeadlineExceededError(
            f"no record of {self.name} came within {self.timeout:g} s (--timeout)"
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raises what librdkafka raises as an error of spark-eos."""
    try:
        yield
    except KafkaException as error:
        found = error.args[0]
        if found.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
            raise WriteError("another replay of the topic has begun, and goes on") from error
        if found.code() in DENIED:
            raise AuthorizationError(
                f"{found.str()}. `spark-eos acls --for replay` prints what is needed to replay; "
                "to list, count and show, Read on the dead-letter topic",
                found.code(),
                (),
            ) from error
        raise SparkEosError(found.str()) from error
