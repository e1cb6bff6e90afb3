"""Records of 1970 and before: librdkafka replaces the timestamp 0 with the current time."""

import time

import pytest
from kafka import KafkaProducer

from support.dead_letters import letters
from support.flow import Flow
from support.writing import rows, writer, writer_with_dead_letters


def _written(flow: Flow, topic: str | None = None) -> list[int]:
    return [message.timestamp()[1] for message in flow.written(topic)]


def test_millisecond_0_of_1970_is_written_as_1_and_counted(flow: Flow) -> None:
    before = int(time.time() * 1000)
    with writer(flow) as writing:
        # Of a transaction that is not committed nothing is counted.
        writing.add(rows(flow, 0, 0, 1, timestamp=[0, 0]))
        writing.abort()
        times = [0, 1, 0, -1_000, -(10**15), 1_700_000_000_000, None]
        writing.add(rows(flow, 0, *range(7), timestamp=times))
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
    given = [-1, -1_000, 1_000, -1, -2]
    flow.produce(range(len(given)), partition=0)
    topic = f"judging-{flow.name}"
    flow.broker.create_topic(topic, 1, config)
    with writer_with_dead_letters(flow, topic=topic) as writing:
        writing.add(rows(flow, 0, *range(len(given)), timestamp=given))
        writing.commit()
    assert _written(flow, topic) == [at for at in given if at not in refused]
    reasons = [headers["__dlq.errors.reason"] for _, headers in letters(flow)]
    assert reasons == ["invalid_record"] * len(refused)


_DAY = 86_400_000


@pytest.mark.slow
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
    given = rows(flow, 0, *range(len(times)), timestamp=times, key=[b"k"] * len(times))
    with writer(flow, topic=topic) as writing:
        # Of a transaction that is not committed nothing is counted.
        writing.add(given)
        writing.abort()
        writing.add(given)
        writing.commit()
        assert writing.counters.past_retention == ({topic: old} if old else {})


@pytest.mark.slow
@pytest.mark.parametrize("style", ["dlq", "streams", "connect"])
def test_a_dead_letter_has_its_records_timestamp(flow: Flow, style: str) -> None:
    before = int(time.time() * 1000)
    records = [0, -5, -1, 1_000]
    # confluent-kafka can't write a timestamp of 0 either.
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers)
    for milliseconds in records:
        producer.send(flow.source, b"v", partition=0, timestamp_ms=milliseconds).get(60)
    producer.close()
    with writer_with_dead_letters(flow, style=style) as writing:
        writing.add(rows(flow, 0, *range(4), timestamp=[0] * 4, error=["bad"] * 4))
        writing.commit()
        assert writing.counters.timestamps_adjusted == 0
    assert min(_written(flow, f"dlq-{flow.name}")) >= before
    timestamps = [headers[f"__{style}.errors.timestamp"] for _, headers in letters(flow)]
    assert timestamps == ["0", "-5", "-1", "1000"]
