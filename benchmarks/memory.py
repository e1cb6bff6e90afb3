"""Measures the writing worker's peak memory for batches of growing size in one source partition.

.venv/bin/python benchmarks/memory.py --rows 2000000
"""

import os
import tempfile
import uuid
from pathlib import Path

import click
from load import fill
from peak import peak_mib
from rich.console import Console
from rich.table import Table
from scenarios import Records

from spark_eos import BatchReport, ExactlyOnceSink, Limits
from spark_eos.testing import EmbeddedKafka, spark_session


def _writers(directory: str) -> list[int]:
    """Return the process ids of workers that hold the slot of a transactional id."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            links = [os.readlink(fd) for fd in (process / "fd").iterdir()]  # noqa: PTH115
        except OSError:
            continue
        if any(link.startswith(directory) and "/slot-" in link for link in links):
            found.append(int(process.name))
    return found


@click.command()
@click.option(
    "--rows", default=2_000_000, show_default=True, help="Number of rows of the largest batch."
)
@click.option("--size", default=112, show_default=True, help="Bytes of a record's value.")
def main(rows: int, size: int) -> None:
    """Measure the peak resident memory of the worker that writes."""
    table = Table(title=f"One source partition, {size} bytes per value")
    for column in ("rows in one batch", "transactions", "worker's peak MiB", "seconds"):
        table.add_column(column, justify="right")
    with EmbeddedKafka(heap="1g") as broker, tempfile.TemporaryDirectory() as directory:
        spark = spark_session(config={"spark.driver.memory": "2g"})
        for count in (rows // 20, rows):
            name = uuid.uuid4().hex[:6]
            broker.create_topic(f"in-{name}")
            broker.create_topic(f"out-{name}")
            fill(broker, f"in-{name}", count, Records(size, 1))
            workers, reports = f"{directory}/workers-{name}", list[BatchReport]()
            sink = ExactlyOnceSink(
                kafka={"bootstrap.servers": broker.bootstrap_servers},
                group_id=name,
                topic=f"out-{name}",
                checkpoint_location=f"{directory}/checkpoint-{name}",
                limits=Limits(worker_directory=workers),
                on_batch=reports.append,
            )
            frame = sink.read(spark, subscribe=f"in-{name}").select("source", "key", "value")
            sink.write(frame).trigger(availableNow=True).start().awaitTermination()
            table.add_row(
                f"{reports[0].rows_written:,}",
                str(reports[0].transactions),
                f"{max(map(peak_mib, _writers(workers))):.0f}",
                f"{reports[0].milliseconds['total'] / 1000:.1f}",
            )
            sink.close()
        spark.stop()
    Console().print(table)


if __name__ == "__main__":
    main()
