"""Reading spans of partitions as a consumer of an isolation level does, by librdkafka."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spark_eos.client.settings import ClientSettings
from spark_eos.errors import DeadlineExceededError, VerificationError
from spark_eos.verify.places import SHIFT, Places

# More at once are slower: they live long enough for the garbage collector to look at them again.
_MOST: Final = 1_000
_BYTES: Final = 32 << 20
_SAMPLE: Final = 20
# A call that does not get all it asked for takes so long, in seconds; so does noticing Ctrl-C.
_WAIT: Final = 0.02

Batch = list[tuple[int, Message]]


class Reader:
    """Reads with one isolation level.

    Args:
        settings: The client settings.
        places: The partitions.
        isolation_level: ``read_committed`` or ``read_uncommitted``.
        timeout: Seconds without any progress after which it gives up.
    """

    def __init__(
        self, settings: ClientSettings, places: Places, isolation_level: str, timeout: float
    ) -> None:
        self._settings = {
            **settings.for_consumer(),
            # librdkafka wants a group; none is joined, and nothing is committed.
            "group.id": f"spark-eos-verify-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Retention may remove a head while it is read.
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "check.crcs": True,
            # The defaults wait a second whenever the queue is full, and keep more than is needed.
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 20_000,
            "queued.max.messages.kbytes": 32_768,
        }
        self._places = places
        self._timeout = timeout

    def read(
        self, spans: Mapping[int, tuple[int, int]], advance: Callable[[int], None]
    ) -> Iterator[Batch]:
        """The records of spans that a consumer gets, each partition's in order.

        A span ends early where the consumer gets no further: at the last stable offset.

        Args:
            spans: First offset and end, by place.
            advance: Told how many offsets have been read.

        Returns:
            Batches of records, each with its position as an integer of `places`.

        Raises:
            DeadlineExceededError: Nothing comes any more.
            VerificationError: A partition can't be read.
        """
        offsets = {place: low for place, (low, end) in spans.items() if low < end}
        ends = {place: spans[place][1] for place in offsets}
        with closing(Consumer(self._settings)) as consumer:
            consumer.assign([self._at(place, low) for place, low in offsets.items()])
            size = _SAMPLE
            moved_at = time.monotonic()
            while offsets:
                messages = consumer.consume(size, timeout=_WAIT)
                size = _next_size(messages, size)
                batch, stopped = self._sort(messages, ends)
                if batch:
                    yield batch
                done = set(stopped)
                moved = 0
                for at in consumer.position([self._at(place) for place in offsets]):
                    place = self._places.numbers[at.topic, at.partition]
                    reached = ends[place] if place in done else min(at.offset, ends[place])
                    moved += max(0, reached - offsets[place])
                    offsets[place] = max(offsets[place], reached)
                    if reached == ends[place]:
                        done.add(place)
                finished = [place for place in done if offsets.pop(place, None) is not None]
                if finished:
                    # Others shall not wait for what lies beyond the span.
                    consumer.pause([self._at(place) for place in finished])
                advance(moved)
                now = time.monotonic()
                moved_at = now if messages or moved else moved_at
                if now - moved_at > self._timeout:
                    stuck = ", ".join(self._places.name(place) for place in sorted(offsets)[:5])
                    raise DeadlineExceededError(
                        f"no record of {stuck} came within {self._timeout:g} s"
                    )

    def _sort(self, messages: list[Message], ends: Mapping[int, int]) -> tuple[Batch, list[int]]:
        """The records of the spans, and the places at whose end the consumer stands."""
        numbers = self._places.numbers
        batch: Batch = []
        stopped: list[int] = []
        for message in messages:
            error = message.error()
            if error is not None and message.topic() is None:
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # librdkafka looks for the coordinator of a group that nobody joins.
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
    """So many records that they take up some tens of megabytes, by a sample of the last ones."""
    sample = messages[:: max(1, len(messages) // _SAMPLE)]
    if not sample:
        return size
    mean = sum(len(message.value() or b"") for message in sample) / len(sample)
    return max(_SAMPLE, min(_MOST, int(_BYTES / (mean + 1))))


def refused(error: KafkaException) -> str:
    """The reason in librdkafka's words, without the rest of its error."""
    found = error.args[0]
    return str(found.str() if isinstance(found, KafkaError) else found)
