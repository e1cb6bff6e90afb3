"""Reads offset ranges of partitions as a consumer with an isolation level, with librdkafka."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spark_eos.client.settings import ClientSettings
from spark_eos.errors import DeadlineExceededError, VerificationError
from spark_eos.verify.places import SHIFT, Places

# Larger batches are slower: their records live long enough to be moved to older generations of the
# garbage collector.
_MAX_RECORDS: Final = 1_000
_BYTES: Final = 32 << 20
_SAMPLE: Final = 20
# Seconds after which a call returns with fewer records than asked for; also the delay of Ctrl-C.
_WAIT: Final = 0.02

Batch = list[tuple[int, Message]]


class Reader:
    """Reads with one isolation level.

    Args:
        settings: The client settings.
        places: The partitions.
        isolation_level: ``read_committed`` or ``read_uncommitted``.
        timeout: Maximum number of seconds without progress.
    """

    def __init__(
        self, settings: ClientSettings, places: Places, isolation_level: str, timeout: float
    ) -> None:
        self._settings = {
            **settings.for_consumer(),
            # librdkafka requires a group id; no group is joined, and nothing is committed.
            "group.id": f"spark-eos-verify-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Retention may remove the first records while they are read.
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "check.crcs": True,
            # By default librdkafka waits a second when the queue is full, and queues too much.
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 20_000,
            "queued.max.messages.kbytes": 32_768,
        }
        self._places = places
        self._timeout = timeout

    def read(
        self, spans: Mapping[int, tuple[int, int]], advance: Callable[[int], None]
    ) -> Iterator[Batch]:
        """Yields the visible records of offset ranges, in order within each partition.

        A range ends early at the last stable offset, beyond which the consumer can't read.

        Args:
            spans: First offset and end, by place.
            advance: Called with the number of offsets read since the last call.

        Returns:
            Batches of records, each with its position as an integer of `places`.

        Raises:
            DeadlineExceededError: No progress within the timeout.
            VerificationError: A partition can't be read.
        """
        offsets = {place: low for place, (low, end) in spans.items() if low < end}
        ends = {place: spans[place][1] for place in offsets}
        numbers = self._places.numbers(offsets)
        with closing(Consumer(self._settings)) as consumer:
            consumer.assign([self._at(place, low) for place, low in offsets.items()])
            size = _SAMPLE
            moved_at = time.monotonic()
            while offsets:
                messages = consumer.consume(size, timeout=_WAIT)
                size = _next_size(messages, size)
                batch, stopped = self._sort(messages, numbers, ends)
                if batch:
                    yield batch
                done = set(stopped)
                moved = 0
                for at in consumer.position([self._at(place) for place in offsets]):
                    place = numbers[at.topic, at.partition]
                    reached = ends[place] if place in done else min(at.offset, ends[place])
                    moved += max(0, reached - offsets[place])
                    offsets[place] = max(offsets[place], reached)
                    if reached == ends[place]:
                        done.add(place)
                finished = [place for place in done if offsets.pop(place, None) is not None]
                if finished:
                    # Records beyond the range must not delay other partitions.
                    consumer.pause([self._at(place) for place in finished])
                advance(moved)
                now = time.monotonic()
                moved_at = now if messages or moved else moved_at
                if now - moved_at > self._timeout:
                    stuck = ", ".join(self._places.name(place) for place in sorted(offsets)[:5])
                    raise DeadlineExceededError(
                        f"no record of {stuck} came within {self._timeout:g} s"
                    )

    def _sort(
        self,
        messages: list[Message],
        numbers: Mapping[tuple[str, int], int],
        ends: Mapping[int, int],
    ) -> tuple[Batch, list[int]]:
        """Returns the records within the ranges, and the places whose end has been reached."""
        batch: Batch = []
        stopped: list[int] = []
        for message in messages:
            error = message.error()
            if error is not None and message.topic() is None:
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # librdkafka looks up the group's coordinator even though nobody joins it.
                    continue
                raise VerificationError(f"reading: {error.str()}")
            place = numbers[message.topic(), message.partition()]  # type: ignore[index]
            if error is None:
                offset: int = message.offset()  # type: ignore[assignment]
                if offset < ends[place]:
                    batch.append((place << SHIFT | offset, message))
            elif error.code() == KafkaError._PARTITION_EOF:
                stopped.append(place)
            else:
                raise VerificationError(f"reading {self._places.name(place)}: {error.str()}")
        return batch, stopped

    def _at(self, place: int, offset: int = -1001) -> TopicPartition:
        return TopicPartition(*self._places.partition(place), offset)


def _next_size(messages: list[Message], size: int) -> int:
    """Returns how many records make up about 32 MiB, estimated from a sample of the last ones."""
    sample = messages[:: max(1, len(messages) // _SAMPLE)]
    if not sample:
        return size
    mean = sum(len(message.value() or b"") for message in sample) / len(sample)
    return max(_SAMPLE, min(_MAX_RECORDS, int(_BYTES / (mean + 1))))


def refused(error: KafkaException) -> str:
    """Returns librdkafka's reason for an error, without the code."""
    found = error.args[0]
    return str(found.str() if isinstance(found, KafkaError) else found)
