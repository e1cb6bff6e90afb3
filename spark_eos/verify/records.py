"""Reads partitions with librdkafka at an isolation level, and reports progress."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Final

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from kafka import TopicPartition

from spark_eos.errors import DeadlineExceededError, VerificationError
from spark_eos.verify.cluster import Cluster, cure_of
from spark_eos.verify.partitions import Partitions, Spans, name_of

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

# Larger batches are slower: their records live long enough to be moved to older generations of the
# garbage collector.
_MAX_RECORDS: Final = 1_000
_BYTES: Final = 32 << 20
_SAMPLE: Final = 20
# Seconds after which a call returns fewer records than requested; also delays Ctrl-C.
_WAIT: Final = 0.02

Batch = list[tuple[int, Message]]
"""Records, each with its position as an integer."""


Watch = Callable[[str, int, int], None]
"""Called with the current step, the amount done and the total amount."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


def meter(watch: Watch, what: str, total: int) -> Callable[[int], None]:
    """Begin a step; return the function to call with the amount done since the last call."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        watch(what, done, total)

    advance(0)
    return advance


class Reader:
    """Reads partitions at one isolation level; gives up after the timeout without progress."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: Partitions,
        isolation_level: str,
        # Partitions that can't be read to the end, with their last stable offsets.
        short: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        self._short = short
        self._settings = {
            **cluster.settings.for_consumer(),
            # librdkafka requires a group id; no group is joined, and nothing is committed.
            "group.id": f"spark-eos-verify-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Retention may remove the first records while they are read.
            "auto.offset.reset": "earliest",
            "isolation.level": isolation_level,
            "check.crcs": True,
            # By default, librdkafka queues too much, and waits a second when the queue is full.
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 20_000,
            "queued.max.messages.kbytes": 32_768,
        }
        self._bases = partitions.bases
        self._timeout = cluster.timeout

    def read(self, spans: Spans, advance: Callable[[int], None]) -> Iterator[Batch]:
        """Yield the visible records of spans, in order within each partition."""
        try:
            with closing(Consumer(self._settings)) as consumer:
                yield from self._read(consumer, spans, advance)
        except KafkaException as error:
            message = error.args[0]
            reason = _reason(message) if isinstance(message, KafkaError) else message
            raise VerificationError(f"reading: {reason}") from error

    def _read(
        self, consumer: Consumer, spans: Spans, advance: Callable[[int], None]
    ) -> Iterator[Batch]:
        # The next offset of each partition that has not been read to its end.
        at = {partition: low for partition, (low, end) in spans.items() if low < end}
        consumer.assign(_offsets(at.items()))
        size = _SAMPLE
        moved_at = time.monotonic()
        while at:
            messages = consumer.consume(size, timeout=_WAIT)
            size = _next_size(messages, size)
            batch, done = self._sort(messages, spans)
            if batch:
                yield batch
            moved = 0
            for position in consumer.position(_offsets((partition, _NONE) for partition in at)):
                partition = TopicPartition(position.topic, position.partition)
                end = spans[partition][1]
                # A span ends early at the last stable offset, beyond which the consumer can't read.
                reached = end if partition in done else min(position.offset, end)
                moved += max(0, reached - at[partition])
                at[partition] = max(at[partition], reached)
                if reached == end:
                    done.add(partition)
            finished = [
                (partition, _NONE) for partition in done if at.pop(partition, None) is not None
            ]
            if finished:
                # Records beyond the span must not delay other partitions.
                consumer.pause(_offsets(finished))
            advance(moved)
            now = time.monotonic()
            moved_at = now if messages or moved else moved_at
            if now - moved_at > self._timeout:
                stuck = ", ".join(map(name_of, list(at)[:5]))
                raise DeadlineExceededError(f"no records from {stuck} within {self._timeout:g} s")

    def _sort(self, messages: list[Message], spans: Spans) -> tuple[Batch, set[TopicPartition]]:
        """Return the records within the spans, and the partitions whose end has been reached."""
        batch: Batch = []
        stopped: set[TopicPartition] = set()
        for message in messages:
            error = message.error()
            if error is not None and message.topic() is None:
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # librdkafka looks up the group's coordinator, although the group isn't joined.
                    continue
                raise VerificationError(f"reading: {_reason(error)}")
            # A plain tuple equals a TopicPartition, and costs less time per record.
            partition: TopicPartition = (message.topic(), message.partition())
            if error is None:
                offset: int = message.offset()  # type: ignore[assignment]
                if offset < spans[partition][1]:
                    batch.append((self._bases[partition] | offset, message))
            elif error.code() == KafkaError._PARTITION_EOF:
                # A follower, or a leader that was just elected, may be behind the end.
                least = self._short.get(partition, spans[partition][1])
                if message.offset() >= least:  # type: ignore[operator]
                    stopped.add(TopicPartition(*partition))
            else:
                raise VerificationError(f"reading {name_of(partition)}: {_reason(error)}")
        return batch, stopped


def _reason(error: KafkaError) -> str:
    return error.str() + cure_of(error.code())


_NONE: Final = confluent_kafka.OFFSET_INVALID


def _offsets(
    offsets: Iterable[tuple[TopicPartition, int]],
) -> list[confluent_kafka.TopicPartition]:
    return [
        confluent_kafka.TopicPartition(partition.topic, partition.partition, offset)
        for partition, offset in offsets
    ]


def _next_size(messages: list[Message], size: int) -> int:
    """Estimate how many records make up about 32 MiB, from a sample of the latest ones."""
    sample = messages[:: max(1, len(messages) // _SAMPLE)]
    if not sample:
        return size
    mean = sum(len(message.value() or b"") for message in sample) / len(sample)
    return max(_SAMPLE, min(_MAX_RECORDS, int(_BYTES / (mean + 1))))
