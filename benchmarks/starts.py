"""Measures the time until output is visible, after a cold start and after the driver was killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from bench import note
from confluent_kafka import Consumer, Producer, TopicPartition
from contestants import EQUAL, OURS
from results import Measured
from turns import turns

from spark_eos._jars.spark_image import driver_options
from spark_eos.testing import EmbeddedKafka
from spark_eos.testing.class_training import train

_QUERY: Final = str(Path(__file__).parent / "loops" / "query.py")
_PARTITIONS: Final = 4
_PATIENCE: Final = 120.0
_KINDS: Final = {
    EQUAL: ("own", "plain"),
    OURS: ("eos", "plain"),
    f"{EQUAL}, class archive": ("own", "archive"),
    f"{OURS}, class archive": ("eos", "archive"),
    f"{OURS}, class archive, worker daemon": ("eos", "archive-daemon"),
}


def starts(directory: Path, rounds: int) -> tuple[Measured, Measured]:
    """Measure the milliseconds to the first commit after a cold start, and after SIGKILL.

    The time runs from the start of a query's process, in plain Python, until a read_committed
    consumer sees its first record. The query is killed in the middle of a stream of batches.

    Args:
        directory: Directory for checkpoints.
        rounds: Number of rounds that count.
    """
    cold = Measured("cold start to first commit", "ms")
    killed = Measured("SIGKILL of the driver to next commit", "ms")
    # Create the class archive before the first start that counts.
    driver_options(train)
    with EmbeddedKafka() as broker:
        for number, name in turns(list(_KINDS), rounds):
            kind = _KINDS[name]
            source, target = (f"{way}-{number}-{'-'.join(kind)}" for way in ("in", "out"))
            for topic in (source, target):
                broker.create_topic(topic, _PARTITIONS)
            with _watched(broker, target) as reader:
                for measured in (cold, killed):
                    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
                    for record in range(1_000):
                        producer.produce(source, b"x" * 100, partition=record % _PARTITIONS)
                    producer.flush(30)
                    began = time.monotonic()
                    query = _start(broker, source, target, directory, *kind)
                    try:
                        _first(reader, query)
                        found = (time.monotonic() - began) * 1000
                        _go_on(reader, producer, source)
                    finally:
                        os.killpg(query.pid, signal.SIGKILL)
                        query.wait()
                    _drain(reader)
                    note(measured, name, found, counts=number > 0)
    return cold, killed


def _start(
    broker: EmbeddedKafka, source: str, target: str, directory: Path, kind: str, classes: str
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            _QUERY,
            kind,
            broker.bootstrap_servers,
            source,
            target,
            str(directory / target),
            classes,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )


@contextmanager
def _watched(broker: EmbeddedKafka, target: str) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"starts-{target}",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 10,
    }
    with closing(Consumer(settings)) as reader:
        reader.assign([TopicPartition(target, p, 0) for p in range(_PARTITIONS)])
        yield reader


def _first(reader: Consumer, query: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _PATIENCE
    while not reader.consume(1, timeout=0.05):
        if query.poll() is not None:
            raise RuntimeError(f"the query ended with exit status {query.returncode}")
        if time.monotonic() > until:
            raise TimeoutError("the query has written nothing")


def _go_on(reader: Consumer, producer: Producer, source: str) -> None:
    """Let the query write for a few seconds, so that it is killed in the middle of batches."""
    until = time.monotonic() + 3
    while time.monotonic() < until:
        for record in range(100):
            producer.produce(source, b"x" * 100, partition=record % _PARTITIONS)
        producer.flush(10)
        reader.consume(1_000, timeout=0.1)


def _drain(reader: Consumer) -> None:
    while reader.consume(10_000, timeout=1.0):
        pass
