"""Measures the time from a record's append to the source until a consumer sees its output."""

import threading
import time
from collections.abc import Callable
from contextlib import closing

from confluent_kafka import Consumer, Producer, TopicPartition
from contestants import Arena
from pyspark.sql.streaming.query import StreamingQuery
from scenarios import Latency

_WARM = 5.0
_PATIENCE = 60.0


def latencies(
    arena: Arena,
    start: Callable[[], StreamingQuery],
    partitions: int,
    scenario: Latency,
) -> list[float]:
    """Return each record's latency in milliseconds, without the first seconds.

    Both ends are on this machine and use the same clock. The consumer reads read_committed.

    Args:
        arena: The query's topics and options; the topics are empty.
        start: Function that starts the query, with a trigger that does not wait.
        partitions: Number of partitions of both topics.
        scenario: The rate of records and the duration after the warm-up.
    """
    found: list[float] = []
    seen = 0
    stop = threading.Event()

    def watch() -> None:
        nonlocal seen
        reader = Consumer(
            {
                "bootstrap.servers": arena.bootstrap_servers,
                "group.id": f"latency-{arena.target}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        with closing(reader):
            reader.assign([TopicPartition(arena.target, p, 0) for p in range(partitions)])
            while not stop.is_set():
                for message in reader.consume(10_000, timeout=0.05):
                    now = time.monotonic()
                    seen += 1
                    sent = float(message.value() or b"0")
                    if sent > began + _WARM:
                        found.append((now - sent) * 1000)

    query = start()
    producer = Producer({"bootstrap.servers": arena.bootstrap_servers, "linger.ms": 0})
    began = time.monotonic()
    reading = threading.Thread(target=watch, daemon=True)
    reading.start()
    number = 0
    while (now := time.monotonic()) < began + _WARM + scenario.seconds:
        while number < (now - began) * scenario.rate:
            producer.produce(
                arena.source, b"%.6f" % time.monotonic(), partition=number % partitions
            )
            number += 1
        producer.poll(0)
        time.sleep(0.001)
    producer.flush(10)
    until = time.monotonic() + _PATIENCE
    while seen < number and time.monotonic() < until:
        time.sleep(0.1)
    query.stop()
    stop.set()
    reading.join(10)
    return found
