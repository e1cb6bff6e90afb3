"""Runs many small batches for a long time, to show that resource usage does not grow.

.venv/bin/python benchmarks/steady.py --minutes 60
"""

import contextlib
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil
from confluent_kafka import Producer
from kafka.protocol.admin import ListTransactionsRequest
from processes import parts
from rich.console import Console
from rich.table import Table

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.groups import describe_group
from spark_eos.testing import EmbeddedKafka, spark_session

_PARTITIONS = 4
_ROWS_PER_SECOND = 1_000
_GROUP = "steady"


@dataclass(frozen=True)
class Sample:
    """A sample of the query's resource usage.

    Attributes:
        minutes: Time since the start.
        batches: Number of batches so far.
        driver_mib: Resident memory of the driver's Python process, which also runs this program.
        driver_threads: Number of threads in that process.
        jvm_mib: Resident memory of the driver's JVM.
        jvm_threads: Number of threads in the JVM.
        workers: Number of Python workers, including the daemon that forks them.
        workers_mib: Resident memory of the largest worker.
        workers_threads: Total number of threads in all workers.
        transactional_ids: Number of transactional ids that the broker knows.
        members: Number of group members.
    """

    minutes: float
    batches: int
    driver_mib: float
    driver_threads: int
    jvm_mib: float
    jvm_threads: int
    workers: int
    workers_mib: float
    workers_threads: int
    transactional_ids: int
    members: int


def _sample(
    broker: EmbeddedKafka, connections: Connections, minutes: float, batches: int
) -> Sample:
    memory: dict[str, list[float]] = {}
    threads: dict[str, int] = {}
    for part, process in parts(broker.pid):
        with contextlib.suppress(psutil.Error):
            memory.setdefault(part, []).append(process.memory_info().rss / 2**20)
            threads[part] = threads.get(part, 0) + process.num_threads()
    deadline = Deadline(20, "benchmark")
    everything = ListTransactionsRequest(
        state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=None
    )
    states = connections.send(everything, deadline).transaction_states
    return Sample(
        round(minutes, 1),
        batches,
        max(memory["driver"]),
        threads["driver"],
        max(memory["jvm"]),
        threads["jvm"],
        len(memory["workers"]),
        max(memory["workers"]),
        threads["workers"],
        sum(_GROUP in state.transactional_id for state in states),
        len(describe_group(connections, _GROUP, deadline).members),
    )


@contextlib.contextmanager
def _fed(broker: EmbeddedKafka, topic: str) -> Iterator[None]:
    """Produce records at a constant rate while the block runs."""
    stop = threading.Event()

    def feed() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        number = 0
        while not stop.wait(0.1):
            for _ in range(_ROWS_PER_SECOND // 10):
                producer.produce(topic, b"%0100d" % number, partition=number % _PARTITIONS)
                number += 1
            producer.poll(0)
        producer.flush(10)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    try:
        yield
    finally:
        stop.set()
        feeding.join(20)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", default=60.0, show_default=True, help="Duration in minutes.")
@click.option("--every", default=60.0, show_default=True, help="Seconds between samples.")
@click.option("--trigger", default=0.0, show_default=True, help="Seconds between batches.")
@click.option("--to", type=click.Path(path_type=Path), default=Path("evidence/steady.json"),
              show_default=True, help="File for the samples.")  # fmt: skip
def main(*, minutes: float, every: float, trigger: float, to: Path) -> None:
    """Run a query with as many small batches as possible, and sample its resources."""
    samples: list[Sample] = []
    batches = 0

    def count(_report: BatchReport) -> None:
        nonlocal batches
        batches += 1

    source, target = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("source", "target"))
    with EmbeddedKafka(heap="1g") as broker, tempfile.TemporaryDirectory() as checkpoint:
        for topic in (source, target):
            broker.create_topic(topic, _PARTITIONS, {"retention.bytes": str(64 << 20)})
        spark = spark_session(config={"spark.driver.memory": "1g"})
        kafka = {"bootstrap.servers": broker.bootstrap_servers}
        sink = ExactlyOnceSink(
            kafka=kafka,
            group_id=_GROUP,
            topic=target,
            checkpoint_location=checkpoint,
            on_batch=count,
        )
        frame = sink.read(spark, subscribe=source).select("source", "value")
        with (
            _fed(broker, source),
            contextlib.closing(Connections(ClientSettings(kafka))) as connections,
        ):
            query = (
                sink.write(frame)
                .trigger(processingTime=f"{trigger * 1000:.0f} milliseconds")
                .start()
            )
            began = time.monotonic()
            while query.isActive and time.monotonic() < began + minutes * 60:
                time.sleep(every)
                passed = (time.monotonic() - began) / 60
                samples.append(_sample(broker, connections, passed, batches))
                Console(stderr=True).print(samples[-1], highlight=False)
            query.stop()
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        sink.close()
        spark.stop()
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps([asdict(sample) for sample in samples], indent=1) + "\n")
    table = Table("", *(f"{sample.minutes:g} min" for sample in _picked(samples)))
    for name in asdict(samples[0]):
        table.add_row(name, *(f"{asdict(s)[name]:,.0f}" for s in _picked(samples)))
    Console().print(table)


def _picked(samples: list[Sample]) -> list[Sample]:
    """Return about six samples, including the first and the last."""
    step = max(1, (len(samples) - 1) // 5)
    return [*samples[:-1:step], samples[-1]]


if __name__ == "__main__":
    main()
