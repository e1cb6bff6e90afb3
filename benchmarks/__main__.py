"""Runs all benchmarks: ``make bench``, or ``.venv/bin/python benchmarks --help``.

Machines are shared and noisy. Therefore, contestants take turns within each round, the first round
does not count, and results are compared as ratios within a round.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyspark
from bench import Bench
from frames import frames, spark_avro
from plots import plot
from requests_per_batch import requests_per_batch
from results import Measured, page, read_json, write_json
from rich.console import Console
from scenarios import GROWTH, Latency, throughputs, triggers
from schemas import schemas
from starts import starts

from spark_eos.testing import spark_session
from spark_eos.testing.broker import kafka_version
from support.origin import origin

_RESULTS = Path("evidence")
_PICTURES = Path("docs/performance")
# Conditions that must be the same for all results in a file.
_SAME = ("code", "machine", "spark", "kafka", "rounds", "scale")
_console = Console(highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, help="Number of rounds that count.")
@click.option("--scale", default=1.0, show_default=True, help="Factor of the numbers of rows.")
@click.option(
    "--only",
    multiple=True,
    help="Run only scenarios whose name contains this text; repeatable. Earlier results of other "
    "scenarios are kept.",
)
@click.option("--quix", type=click.Path(path_type=Path), help="Python with quixstreams installed.")
@click.option("--bounds", is_flag=True, help="Also measure queries that write nothing.")
@click.option("--to", "directory", type=click.Path(path_type=Path), default=_RESULTS,
              show_default=True, help="Directory of the results.")  # fmt: skip
def main(
    *,
    rounds: int,
    scale: float,
    only: tuple[str, ...],
    quix: Path | None,
    bounds: bool,
    directory: Path,
) -> None:
    """Compare spark-eos with its alternatives."""
    about = {
        **origin(),
        "spark": pyspark.__version__,
        "kafka": kafka_version(),
        "rounds": rounds,
        "scale": scale,
    }
    earlier = directory / "bench.json"
    measured: list[Measured] = []
    if only and earlier.exists():
        its, measured = read_json(earlier)
        if other := [name for name in _SAME if its[name] != about[name]]:
            raise click.UsageError(
                f"{earlier} was measured with {', '.join(f'{name} {its[name]}' for name in other)}:"
                " use the same conditions, or another directory (--to)"
            )
    with tempfile.TemporaryDirectory() as checkpoints:
        # A single broker with one replica is intended here.
        logging.getLogger("spark_eos._checks.replication").setLevel(logging.ERROR)
        # Spark keeps a poll's records for minutes, for each query and each of 500 partitions.
        spark = spark_session(config={"spark.driver.memory": "8g", "spark.jars": spark_avro()})
        # Queries are stopped in the middle of a batch, which Spark would log at length. Failures
        # are raised anyway.
        spark.sparkContext.setLogLevel("OFF")
        bench = Bench(spark, Path(checkpoints), rounds, quix, bounds=bounds)
        latency = Latency(1_000, 10 * scale)
        scenarios: list[tuple[str, Callable[[], Iterable[Measured]]]] = [
            *((s.name, partial(_one, bench.throughput, s)) for s in throughputs(scale)),
            *((s.name, partial(_one, bench.triggers, s)) for s in triggers(scale)),
            (latency.name, partial(_one, bench.latency, latency)),
            ("schemas", partial(schemas, rounds, scale)),
            ("frames", partial(frames, spark, Path(checkpoints), rounds, scale)),
            ("starts", partial(starts, Path(checkpoints), rounds)),
            (GROWTH.name, partial(_one, bench.growth, GROWTH)),
            ("requests", partial(_one, requests_per_batch, spark, Path(checkpoints))),
        ]
        for name, measure in scenarios:
            if not only or any(part in name for part in only):
                began = time.monotonic()
                for result in measure():
                    measured = [*(one for one in measured if one.name != result.name), result]
                _keep(directory, about, measured)
                _console.print(f"{name}: {(time.monotonic() - began) / 60:.1f} minutes")
        spark.stop()
    _console.print((directory / "bench.md").read_text(), markup=False)


def _one(measure: Callable[..., Measured], *arguments: object) -> list[Measured]:
    return [measure(*arguments)]


def _keep(directory: Path, about: Mapping[str, Any], measured: Sequence[Measured]) -> None:
    """Write the results so far, because a whole run takes a long time and may be interrupted."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "bench.json", about, measured)
    pictures = _PICTURES if directory == _RESULTS else directory
    text = page(about, measured, os.path.relpath(pictures, directory))
    (directory / "bench.md").write_text(text)
    plot(pictures, measured)


if __name__ == "__main__":
    main()
