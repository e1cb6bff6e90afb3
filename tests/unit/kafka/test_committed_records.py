"""Up to where commands read a topic, and how long they wait for it."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.committed_records import CommittedRecords
from spark_eos.errors import DeadlineExceededError
from support.client_settings import SERVERS


class _Consumer:
    """What a consumer of partitions 0 and 1 receives: nothing of a partition that is paused."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages = messages
        self._paused: set[int] = set()

    def assign(self, _partitions: object) -> None:
        self._coming: Iterator[Message] = iter(self._messages)

    def pause(self, partitions: Iterable[Any]) -> None:
        self._paused |= {partition.partition for partition in partitions}

    def poll(self, _seconds: float) -> Message | None:
        message = next(self._coming, None)
        if message is not None and message.partition() not in self._paused:
            return message
        time.sleep(0.01)
        return None


class _Records(CommittedRecords):
    def bounds(self, _consumer: Any, _only: int | None = None) -> dict[int, tuple[int, int]]:
        return {0: (0, 2), 1: (0, 1)}


def _record(partition: int, offset: int) -> Message:
    return Message(topic="orders", partition=partition, offset=offset, value=b"v")


def _end(partition: int, offset: int) -> Message:
    error = KafkaError(KafkaError._PARTITION_EOF)
    return Message(topic="orders", partition=partition, offset=offset, error=error)


def _read(messages: Iterable[Message]) -> Iterator[tuple[int, int]]:
    records = _Records(ClientSettings(SERVERS), "orders", 0.2)
    for message in records.messages(_Consumer(messages)):
        yield message.partition(), message.offset()


def test_later_records_do_not_prolong_the_wait_for_others() -> None:
    def endless() -> Iterator[Message]:
        for offset in range(1_000):
            yield _record(0, offset)
        pytest.fail("the wait has no limit")

    reading = _read(endless())
    assert [next(reading), next(reading)] == [(0, 0), (0, 1)]
    with pytest.raises(DeadlineExceededError):
        next(reading)


def test_a_replica_that_lags_does_not_end_a_partition() -> None:
    lagging = [_record(1, 0), _record(0, 0), _end(0, 1), _record(0, 1), _end(0, 2)]
    assert [*_read(lagging)] == [(1, 0), (0, 0), (0, 1)]
    # The last offset may be that of a marker.
    marker = [_record(0, 0), _end(0, 2), _record(1, 0)]
    assert [*_read(marker)] == [(0, 0), (1, 0)]
