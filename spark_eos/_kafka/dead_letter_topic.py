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

# Spark stores timestamps as 64-bit microseconds.
_MOST_MS: Final = MAX_OFFSET // 1000
# Maximum number of a header's characters to show in an error.
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
    # None if a header's name is not UTF-8, which makes all headers unreadable.
    headers: tuple[Header, ...] | None
    own_headers: tuple[Header, ...]  # the record's own, without the explanation
    # The explanation: topic, partition, offset, group, message, reason, exception, stacktrace,
    # timestamp, omitted. Also cluster, if the source is in another cluster, and record, if the
    # content is a row instead of the source record.
    error_headers: Mapping[str, str]

    @property
    def source(self) -> TopicPartition | None:
        """The source record's partition; None if the headers don't name one."""
        topic = topic_name(self.error_headers.get("topic"))
        partition = header_number(self.error_headers.get("partition"), MAX_PARTITION)
        return None if topic is None or partition is None else TopicPartition(topic, partition)

    @property
    def home(self) -> str | None:
        """The topic in this cluster that the record came from; None if unknown or elsewhere."""
        # Topics in another cluster differ from topics here, and a row is not a source record.
        elsewhere = self.error_headers.keys() & {"cluster", "record"}
        return None if self.source is None or elsewhere else self.source.topic

    @property
    def incomplete(self) -> str | None:
        """The reason why the record can't be written again as it was; None if it can."""
        if self.headers is None or any(REPLACED in name for name, _ in self.headers):
            return "a header's name is not UTF-8"
        if self.reason == OTHER_FORMAT:
            return OTHER_FORMAT
        omitted = self.error_headers.get("omitted")
        return None if omitted is None else f"omitted: {omitted[:_SHOWN]}"

    @property
    def written(self) -> int | None:
        """When the dead letter was written, in milliseconds since 1970; None if unknown."""
        # Earlier versions gave a dead letter its record's timestamp.
        record_timestamp = self.error_headers.get("timestamp")
        return None if record_timestamp == str(self.timestamp) else self.timestamp

    @property
    def record_timestamp(self) -> int:
        """The record's own timestamp in milliseconds since 1970, or else the dead letter's."""
        # A timestamp that Spark can't represent would make every replay fail.
        written = header_number(self.error_headers.get("timestamp"), _MOST_MS, -_MOST_MS)
        return self.timestamp if written is None else written

    @property
    def reason(self) -> str:
        return self.error_headers.get("reason", "unknown")


def dead_letter(message: Any) -> DeadLetter:
    """Return a message from librdkafka as a `DeadLetter`."""
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
    """Build a dead letter from headers in any known style; ``content`` is key and value."""
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
    advice = "To list, count and show dead letters, the client needs Read on their topic"

    def read(self) -> Iterator[DeadLetter]:
        """Yield all committed dead letters up to the current ends, in order per partition."""
        with self.consumer() as consumer:
            yield from map(dead_letter, self.messages(consumer))

    def letter(self, partition: int, offset: int) -> DeadLetter | None:
        """Return one dead letter; None if there is no committed record at that offset."""
        with self.consumer() as consumer:
            message = next(self.messages(consumer, partition, offset), None)
            is_there = message is not None and message.offset() == offset
            return dead_letter(message) if is_there else None
