"""Reads a dead-letter topic."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client.confluent_traps import headers_of
from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION, header_number, topic_name
from spark_eos._client.letter_headers import (
    OTHER_FORMAT,
    REPLACED,
    Header,
    read_letter_headers,
)
from spark_eos._kafka.committed_records import CommittedRecords
from spark_eos._kafka.topic_partition import TopicPartition

# message.timestamp.after.max.ms, unless set.
_AHEAD_MS: Final = 3_600_000
# Spark has microseconds.
_EARLIEST_MS: Final = -MAX_OFFSET // 1000
# Errors show at most so many characters of a header.
_SHOWN: Final = 100


@dataclass(frozen=True)
class DeadLetter:
    """A record of a dead-letter topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970
    key: bytes | None
    value: bytes | None
    # None if a name is not UTF-8: then librdkafka reads none.
    headers: tuple[Header, ...] | None
    own_headers: tuple[Header, ...]  # the record's, without those that explain the letter
    # Those that do: topic, partition, offset, group, message, reason, exception, stacktrace,
    # timestamp, omitted; cluster if the source is in another one; record if it is not the source's
    # but a row.
    error_headers: Mapping[str, str]

    @property
    def source(self) -> TopicPartition | None:
        """The partition of its source record; None if the headers don't tell one."""
        topic = topic_name(self.error_headers.get("topic"))
        partition = header_number(self.error_headers.get("partition"), MAX_PARTITION)
        return None if topic is None or partition is None else TopicPartition(topic, partition)

    @property
    def home(self) -> str | None:
        """The topic of this cluster that its record comes from; None if it tells of none."""
        # Another cluster's topics may be others than those here, and a row is no source record.
        elsewhere = self.error_headers.keys() & {"cluster", "record"}
        return None if self.source is None or elsewhere else self.source.topic

    @property
    def incomplete(self) -> str | None:
        """What it lacks of its record, so that it can't be written as it was; None if nothing."""
        if self.headers is None or any(REPLACED in name for name, _ in self.headers):
            return "a header's name is not UTF-8"
        if self.reason == OTHER_FORMAT:
            return OTHER_FORMAT
        omitted = self.error_headers.get("omitted")
        return None if omitted is None else f"omitted: {omitted[:_SHOWN]}"

    @property
    def written(self) -> int | None:
        """When it was written, in milliseconds since 1970; None if it tells only of its record."""
        # Earlier versions gave a letter its record's timestamp.
        told = self.error_headers.get("timestamp")
        return None if told == str(self.timestamp) else self.timestamp

    @property
    def record_timestamp(self) -> int:
        """Milliseconds since 1970 of the record itself; the letter's, if the headers don't tell."""
        # A later time than brokers take by default, or an earlier one than Spark has, would end
        # each replay.
        most = min(MAX_OFFSET, self.timestamp + _AHEAD_MS)
        written = header_number(self.error_headers.get("timestamp"), most, _EARLIEST_MS)
        return self.timestamp if written is None else written

    @property
    def reason(self) -> str:
        return self.error_headers.get("reason", "unknown")


def dead_letter(message: Any) -> DeadLetter:
    """Return a dead letter as librdkafka has read it."""
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
    read = read_letter_headers(headers or ())
    return DeadLetter(
        *position,
        timestamp,
        *content,
        headers,
        tuple(read.own),
        {name: text.decode(errors="replace") for name, text in read.error_headers.items()},
    )


class DeadLetterTopic(CommittedRecords):
    kind = "dead-letter topic"
    advice = "To list, count and show takes Read on the dead-letter topic"

    def read(self) -> Iterator[DeadLetter]:
        """Yield all committed letters, up to the ends of this moment; by partition in order."""
        with self.consumer() as consumer:
            yield from map(dead_letter, self.messages(consumer))

    def letter(self, partition: int, offset: int) -> DeadLetter | None:
        """Return one letter; None if there is no committed record at that offset."""
        with self.consumer() as consumer:
            message = next(self.messages(consumer, partition, offset), None)
            is_there = message is not None and message.offset() == offset
            return dead_letter(message) if is_there else None
