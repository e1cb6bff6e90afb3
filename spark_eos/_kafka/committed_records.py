"""Reads a topic's committed records without joining a group."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark_eos._client.error_codes import DENIED
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import (
    AuthorizationError,
    DeadlineExceededError,
    SparkEosError,
    TopicNotFoundError,
)

_WAIT: Final = 0.2
# librdkafka looks up the consumer's group even if the group is not used, so ignore these errors.
_OF_GROUP: Final = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}


class CommittedRecords:
    """The committed records of a topic; the cluster has ``timeout`` seconds for each answer."""

    # For errors: the kind of topic, and the ACL that is needed.
    kind = "topic"
    advice = "To consume the topic, the client needs Read on it"

    def __init__(self, settings: ClientSettings, name: str, timeout: float) -> None:
        self.settings = settings
        self.name = name
        self.timeout = timeout

    @contextmanager
    def consumer(self) -> Iterator[Any]:
        """Open a consumer that joins no group; convert librdkafka's errors to ours."""
        settings = {
            **self.settings.for_consumer(),
            "group.id": "spark-eos",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        try:
            with closing(Consumer(settings)) as consumer:
                yield consumer
        except KafkaException as error:
            message = error.args[0]
            if message.code() in DENIED:
                text = f"{message.str()}. {self.advice}"
                raise AuthorizationError(text, message.code(), ()) from error
            raise SparkEosError(message.str()) from error

    def _partitions(self, consumer: Any) -> list[int]:
        metadata = consumer.list_topics(self.name, self.timeout).topics[self.name]
        if metadata.error is not None and metadata.error.code() in DENIED:
            raise KafkaException(metadata.error)
        if metadata.error is not None or not metadata.partitions:
            raise TopicNotFoundError(f"{self.kind} {self.name!r} does not exist")
        return sorted(metadata.partitions)

    def bounds(self, consumer: Any, only: int | None = None) -> dict[int, tuple[int, int]]:
        """Return each partition's first offset and last stable offset."""
        return {
            partition: consumer.get_watermark_offsets(
                TopicPartition(self.name, partition), self.timeout, cached=False
            )
            for partition in self._partitions(consumer)
            if only in (None, partition)
        }

    def messages(self, consumer: Any, only: int | None = None, offset: int = 0) -> Iterator[Any]:
        """Yield all messages up to the current ends, or one partition's from an offset on."""
        open_: dict[int, int] = {}
        assigned = []
        for partition, (low, high) in self.bounds(consumer, only).items():
            start = max(low, offset)
            if start < high:
                open_[partition] = high
                assigned.append(TopicPartition(self.name, partition, start))
        consumer.assign(assigned)
        while open_:
            message = self._next(consumer)
            partition, is_record = message.partition(), message.error() is None
            end = open_.get(partition, 0)
            # The event of a partition's end has the end's offset, which is lower if the broker that
            # answers is behind.
            if message.offset() + is_record >= end and open_.pop(partition, None) is not None:
                # Later records must not prolong the wait for other partitions.
                consumer.pause([TopicPartition(self.name, partition)])
            if is_record and message.offset() < end:
                yield message

    def _next(self, consumer: Any) -> Any:
        """Return the next message, or the event that a partition's end is reached."""
        deadline = Deadline(self.timeout, "--timeout")
        while not deadline.expired:
            message = consumer.poll(_WAIT)
            error = None if message is None else message.error()
            if message is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
                return message
            if error is not None and error.code() not in _OF_GROUP:
                raise KafkaException(error)
        raise DeadlineExceededError(
            f"no record of {self.name} arrived within {self.timeout:g} s (--timeout)"
        )
