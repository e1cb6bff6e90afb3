"""Reads a dead-letter topic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._admin.committed_records import CommittedRecords
from spark_eos._client.confluent_traps import headers_of
from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION, header_number, topic_name
from spark_eos._client.letter_headers import OTHER_FORMAT, Header, read_letter_headers
from spark_eos._kafka.topic_partition import TopicPartition

# message.timestamp.after.max.ms, unless set.
_AHEAD_MS: Final = 3_600_000
# Spark has microseconds.
_EARLIEST_MS: Final = -MAX_OFFSET // 1000
# What Java reads for bytes that are not UTF-8.
_REPLACED: Final = "\ufffd"


@dataclass(frozen=True)
class DeadLetter:
    """A record of a dead-letter topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970
    key: bytes | None
    value: bytes | None
    # None if they can't be read, since a name is not UTF-8. Then there are no other headers either.
    headers: tuple[Header, ...] | None
    own_headers: tuple[Header, ...]  # the record's, without those that explain the letter
    # Those that do: topic, partition, offset, group, message, reason, exception, stacktrace,
    # timestamp, omitted; cluster if the source is in another one; record if it is not the source's
    # but a row.
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
    def home(self) -> str | None:
        """The source topic that it can be replayed to; "" if to others alone, None if to none."""
        headers, told = self.headers, self.error_headers
        if headers is None or any(_REPLACED in name for name, _ in headers):
            return None
        if self.reason == OTHER_FORMAT:
            return None
        # Another cluster's topics may be others than those here, and a row is no source record.
        if self.source is None or "cluster" in told or "record" in told:
            return ""
        return self.source.topic

    @property
    def written(self) -> int | None:
        """When it was written, in milliseconds since 1970; None if it tells only of its record."""
        # Earlier versions gave a letter its record's timestamp.
        told = self.error_headers.get("timestamp")
        return None if told == str(self.timestamp) else self.timestamp

    @property
    def record_timestamp(self) -> int:
        """Milliseconds since 1970 of the record itself; the letter's, if the headers don't tell."""
        # One later than brokers take by default, or earlier than Spark has, would end each replay.
        most = min(MAX_OFFSET, self.timestamp + _AHEAD_MS)
        written = header_number(self.error_headers.get("timestamp"), most, _EARLIEST_MS)
        return self.timestamp if written is None else written

    @property
    def reason(self) -> str:
        return self.error_headers.get("reason", "unknown")


def dead_letter(message: Any) -> DeadLetter:
    """A dead letter as librdkafka has read it."""
    position = message.topic(), message.partition(), message.offset()
    return letter_of(
        headers_of(message), message.timestamp()[1], position, (message.key(), message.value())
    )


def letter_of(
    headers: tuple[Header, ...] | None,
    timestamp: int,
    position: tuple[str, int, int] = ("", -1, -1),
    content: tuple[bytes | None, bytes | None] = (None, None),
) -> DeadLetter:
    """A dead letter with headers in any of the known styles; ``content`` is key and value."""
    found = read_letter_headers(headers or ())
    return DeadLetter(
        *position,
        timestamp,
        *content,
        headers,
        tuple(found.own),
        {name: text.decode(errors="replace") for name, text in found.error_headers.items()},
    )


class DeadLetterTopic(CommittedRecords):
    kind = "dead-letter topic"
    advice = (
        "`spark-eos acls --for replay` prints what is needed to replay; to list, count and "
        "show, Read on the dead-letter topic"
    )

    def read(self) -> Iterator[DeadLetter]:
        """Yields all committed letters, up to the ends of this moment; by partition in order."""
        with self.consumer() as consumer:
            yield from map(dead_letter, self.messages(consumer))

    def letter(self, partition: int, offset: int) -> DeadLetter | None:
        """One letter; None if there is no committed record at that offset."""
        with self.consumer() as consumer:
            message = next(self.messages(consumer, partition, offset), None)
            found = message is not None and message.offset() == offset
            return dead_letter(message) if found else None
