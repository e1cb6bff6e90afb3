"""Small batches one after another, with Spark's logs written around each and asynchronously.

All run in one Spark session, from one topic, in turns; ratios are those within a round. The first
round warms up and is thrown away, and so is the first third of each query's batches.

.venv/bin/python benchmarks/small_triggers.py --rows 100
"""

import statistics
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
from contestants import Arena, our_sink, our_writer, own_writer, run_and_stop
from load import fill
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scenarios import SPARE, Records

from spark_eos.testing import EmbeddedKafka, spark_session

_RECORDS: Final = Records(size=100, partitions=4)
_BASE: Final = "Spark's own sink"


def _ours(arena: Arena) -> DataStreamWriter:
    return our_writer(our_sink(arena), arena)


_CONTESTANTS: Final[dict[str, tuple[Callable[[Arena], DataStreamWriter], bool]]] = {
    _BASE: (own_writer, False),
    "Spark's own sink, source read as by spark-eos": (partial(own_writer, as_we_do=True), False),
    "spark-eos": (_ours, False),
    "Spark's own sink, asynchronous": (partial(own_writer, as_we_do=True), True),
    "spark-eos, asynchronous_progress": (_ours, True),
}


@click.command(help=__doc__)
@click.option("--rows", default=100, show_default=True, help="Records of a batch.")
@click.option("--batches", default=60, show_default=True, help="Batches of a query.")
@click.option("--rounds", default=6, show_default=True, help="Rounds, the first is thrown away.")
def main(rows: int, batches: int, rounds: int) -> None:
    """Prints a table."""
    found: dict[str, list[float]] = {name: [] for name in _CONTESTANTS}
    names = list(_CONTESTANTS)
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka(heap="1g") as broker:
        spark = spark_session(config={"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("OFF")
        broker.create_topic("in", _RECORDS.partitions)
        fill(broker, "in", rows * (batches + 5) + SPARE * _RECORDS.partitions, _RECORDS)
        arena = Arena(
            spark,
            broker.bootstrap_servers,
            "in",
            "",
            Path(directory),
            header=False,
            most=rows,
            batches=batches,
        )
        for number in track(range(rounds), "Rounds", transient=True):
            # Not always in the same order.
            for name in names[number % len(names) :] + names[: number % len(names)]:
                make, asynchronous = _CONTESTANTS[name]
                target = f"out-{uuid.uuid4().hex[:8]}"
                broker.create_topic(target, _RECORDS.partitions)
                mine = replace(arena, target=target, asynchronous=asynchronous)
                trial = run_and_stop(make(mine), mine)
                if number:
                    found[name].append(statistics.median(trial.trigger_ms[batches // 3 :]))
    table = Table("", "ms", "ratio within a round")
    for name, times in found.items():
        ratios = [a / b for a, b in zip(times, found[_BASE], strict=True)]
        table.add_row(
            name,
            f"{statistics.median(times):,.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
