"""Records of 1970 and before: librdkafka replaces the timestamp 0 with the current time."""

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer

from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.records import SourceRows
from support.dead_letters import create_dead_letter_topic, headers_of
from support.flow import Flow
from support.members import started
from support.writing import rows, transactions


def _rows(
    flow: Flow, milliseconds: Sequence[int | None], errors: Sequence[str | None] | None = None
) -> SourceRows:
    columns = {"timestamp": pa.array(milliseconds, pa.timestamp("ms", "UTC"))}
    if errors is not None:
        columns["error"] = pa.array(errors, pa.string())
    return rows(flow, 0, *range(len(milliseconds)), **columns)


def _written(flow: Flow, topic: str | None = None) -> list[int]:
    return [message.timestamp()[1] for message in flow.written(topic)]


def test_millisecond_0_of_1970_is_written_as_1_and_counted(flow: Flow) -> None:
    before = int(time.time() * 1000)
    with started(flow) as membership, transactions(flow, membership) as writing:
        # Of a transaction that is not committed nothing is counted.
        writing.add(_rows(flow, [0, 0]))
        writing.abort()
        writing.add(_rows(flow, [0, 1, 0, -1_000, -(10**15), 1_700_000_000_000, None]))
        writing.commit()
        assert writing.counters.timestamps_adjusted == 2
    *timestamps, now = _written(flow)
    assert timestamps == [1, 1, 1, -1_000, -(10**15), 1_700_000_000_000]
    assert now >= before


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"compression.type": "gzip"}, [-1_000, -2]),
        ({"compression.type": "zstd"}, [-1_000, -2]),
        ({"compression.type": "lz4"}, [-1_000, -2]),
        ({"compression.type": "uncompressed"}, []),
        ({"message.timestamp.before.max.ms": "1000"}, [-1_000, -2, 1_000]),
    ],
)
def test_a_record_of_before_1970_and_one_without_timestamp(
    flow: Flow, config: dict[str, str], refused: list[int]
) -> None:
    """Every topic accepts Kafka's NO_TIMESTAMP, -1: old producers write it."""
    dlq = create_dead_letter_topic(flow)
    given = [-1, -1_000, 1_000, -1, -2]
    flow.produce(range(len(given)), partition=0)
    topic = f"judging-{flow.name}"
    flow.broker.create_topic(topic, 1, config)
    settings: Any = DeadLetterSettings(topic=dlq)
    with (
        started(flow) as membership,
        transactions(flow, membership, topic=topic, dead_letters=settings) as writing,
    ):
        writing.add(_rows(flow, given))
        writing.commit()
    assert _written(flow, topic) == [at for at in given if at not in refused]
    reasons = [headers_of(m)["__dlq.errors.reason"] for m in flow.written(dlq)]
    assert reasons == ["invalid_record"] * len(refused)


_DAY = 86_400_000


@pytest.mark.parametrize(
    ("config", "old"),
    [
        ({}, 2),
        ({"retention.ms": str(2 * _DAY)}, 3),
        ({"retention.ms": str(40 * _DAY)}, 0),
        ({"retention.ms": "-1"}, 0),
        ({"cleanup.policy": "compact"}, 0),
        ({"cleanup.policy": "compact,delete"}, 2),
        ({"message.timestamp.type": "LogAppendTime"}, 0),
    ],
)
def test_rows_older_than_the_retention_are_counted(
    flow: Flow, config: dict[str, str], old: int
) -> None:
    topic = f"keeping-{flow.name}"
    flow.broker.create_topic(topic, 1, {"retention.ms": str(7 * _DAY), **config})
    now = int(time.time() * 1000)
    ages = [None, 0, 3, 8, 30]
    times = [None if days is None else now - days * _DAY for days in ages]
    # A negative time is none to brokers.
    times = [-1, -5, *times]
    columns = {
        "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
        "key": pa.array([b"k"] * len(times)),
    }
    given = rows(flow, 0, *range(len(times)), **columns)
    with started(flow) as membership, transactions(flow, membership, topic=topic) as writing:
        # Of a transaction that is not committed nothing is counted.
        writing.add(given)
        writing.abort()
        writing.add(given)
        writing.commit()
        assert writing.counters.past_retention == ({topic: old} if old else {})


@pytest.mark.parametrize("style", ["dlq", "streams", "connect"])
def test_a_dead_letter_has_its_records_timestamp(flow: Flow, style: str) -> None:
    before = int(time.time() * 1000)
    dlq = create_dead_letter_topic(flow)
    records = [0, -5, -1, 1_000]
    # confluent-kafka can't write a timestamp of 0 either.
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers)
    for milliseconds in records:
        producer.send(flow.source, b"v", partition=0, timestamp_ms=milliseconds).get(60)
    producer.close()
    settings: Any = DeadLetterSettings(topic=dlq, headers=style)
    with (
        started(flow) as membership,
        transactions(flow, membership, dead_letters=settings) as writing,
    ):
        writing.add(_rows(flow, [0] * 4, ["bad"] * 4))
        writing.commit()
        assert writing.counters.timestamps_adjusted == 0
        writing.close()
    assert min(_written(flow, dlq)) >= before
    timestamps = [headers_of(m)[f"__{style}.errors.timestamp"] for m in flow.written(dlq)]
    assert timestamps == ["0", "-5", "-1", "1000"]
