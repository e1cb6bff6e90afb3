"""Measures peak memory and temporary files of ``spark-eos verify`` for topics of growing size.

For small topics there are no temporary files on disk: SQLite has a cache of 32 MiB.

.venv/bin/python benchmarks/verify_memory.py --records 4000000
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import click
from confluent_kafka import Producer
from peak import peak_mib
from rich.console import Console
from rich.table import Table

from spark_eos.testing import EmbeddedKafka

_PARTITIONS = 4


def _produce(broker: EmbeddedKafka, source: str, target: str, count: int, size: int) -> None:
    """Write the same records to both topics; the target's records have a position header."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50})
    value = b"x" * size
    for number in range(count):
        partition, offset = number % _PARTITIONS, number // _PARTITIONS
        position = f"{source}:{partition}:{offset}".encode()
        named: list[tuple[str, str | bytes | None]] = [("position", position)]
        for topic, headers in ((source, None), (target, named)):
            while True:
                try:
                    producer.produce(topic, value, partition=partition, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.05)
    if producer.flush(300):
        raise TimeoutError("records could not be produced")


def _verify(broker: EmbeddedKafka, source: str, target: str) -> tuple[float, float, float]:
    """Return peak MiB, seconds, and the peak MiB of temporary files."""
    command = [str(Path(sys.executable).with_name("spark-eos")), "verify", "--input", source]
    command += ["--output", target, "--position-header", "position"]
    command += ["--bootstrap-servers", broker.bootstrap_servers]
    began, peak, most = time.monotonic(), 0.0, 0
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "TMPDIR": directory}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
            while process.poll() is None:
                peak = max(peak, peak_mib(process.pid))
                most = max(most, _open_bytes(process.pid, directory))
                time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"verify ended with {process.returncode}")
    return peak, time.monotonic() - began, most / 2**20


def _open_bytes(pid: int, directory: str) -> int:
    """Return the bytes of a directory's files that a process has open, even unlinked ones.

    SQLite unlinks its sort files.
    """
    sizes: dict[str, int] = {}
    with suppress(OSError):  # the process has ended
        for descriptor in Path("/proc", str(pid), "fd").iterdir():
            with suppress(OSError):  # or closed the file
                file = str(descriptor.readlink())
                if file.startswith(directory):
                    sizes[file] = descriptor.stat().st_size
    return sum(sizes.values())


@click.command()
@click.option(
    "--records",
    default=4_000_000,
    show_default=True,
    help="Number of records of the largest input.",
)
@click.option("--size", default=112, show_default=True, help="Bytes of a record's value.")
def main(records: int, size: int) -> None:
    """Measure the peak resident memory of the verifying process."""
    table = Table(title=f"As many records out as in, {size} bytes per value")
    for column in ("records in", "peak MiB", "temporary files MiB", "seconds"):
        table.add_column(column, justify="right")
    with EmbeddedKafka(heap="1g") as broker:
        for count in (records // 16, records // 4, records):
            name = uuid.uuid4().hex[:6]
            source, target = f"in-{name}", f"out-{name}"
            broker.create_topic(source, _PARTITIONS)
            broker.create_topic(target, _PARTITIONS)
            _produce(broker, source, target, count, size)
            peak, seconds, files = _verify(broker, source, target)
            table.add_row(f"{count:,}", f"{peak:.0f}", f"{files:.0f}", f"{seconds:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
