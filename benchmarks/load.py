"""Records for benchmarks."""

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import track

from spark_eos.testing import EmbeddedKafka


def fill(broker: EmbeddedKafka, topic: str, rows: int, size: int, partitions: int) -> None:
    """Fills a topic with numbered records of ``size`` bytes, in turn over its partitions."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50})
    padding = b"x" * size
    for number in track(range(rows), "producing", console=Console(stderr=True)):
        while True:
            try:
                producer.produce(
                    topic,
                    (b"%012d" % number) + padding[12:],
                    b"%08d" % (number % 100_000),
                    number % partitions,
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
