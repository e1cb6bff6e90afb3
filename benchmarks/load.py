"""Produces records for benchmarks."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import track
from scenarios import Records

from spark_eos.testing import EmbeddedKafka


def fill(
    broker: EmbeddedKafka, topic: str, rows: int, records: Records, values: Sequence[bytes] = ()
) -> None:
    """Fill a topic with numbered records, or with ``values``, round-robin across its partitions."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50})
    padding = b"x" * records.size
    more: dict[str, Any] = {"headers": [("source", b"benchmark")]} if records.header else {}
    for number in track(range(rows), "producing", console=Console(stderr=True)):
        key = b"%08d" % (number % 100_000) if records.key else None
        value = values[number % len(values)] if values else (b"%012d" % number) + padding[12:]
        while True:
            try:
                producer.produce(topic, value, key, number % records.partitions, **more)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise TimeoutError(f"{topic} could not be filled")
