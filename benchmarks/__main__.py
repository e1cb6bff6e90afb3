"""All benchmarks in one run: ``make bench``, or ``.venv/bin/python benchmarks --help``.

Machines are shared and noisy, so contestants take turns within each round, the first round does
not count, and results are compared as ratios within a round.
"""

import datetime
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from bench import Bench
from plots import plot
from requests_per_batch import requests_per_batch
from results import Measured, page, read_json, write_json
from rich.console import Console
from scenarios import GROWTH, throughputs, triggers

from spark_eos.testing import EmbeddedKafka, spark_session

_RESULTS = Path("docs/performance")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=3, show_default=True, help="Number of rounds that count.")
@click.option("--scale", default=1.0, show_default=True, help="Factor of the numbers of rows.")
@click.option(
    "--only",
    multiple=True,
    help="Run only scenarios whose name contains this; repeatable. Earlier results of other "
    "scenarios are kept.",
)
@click.option("--quix", type=click.Path(path_type=Path), help="Python with quixstreams installed.")
@click.option("--to", "directory", type=click.Path(path_type=Path), default=_RESULTS,
              show_default=True, help="Directory for results.json, .md and .png.")  # fmt: skip
def main(
    *, rounds: int, scale: float, only: tuple[str, ...], quix: Path | None, directory: Path
) -> None:
    """Compare spark-eos with its alternatives."""
    about = {
        "measured": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "cores": os.cpu_count(),
        "rounds": rounds,
        "scale": scale,
    }
    earlier = directory / "results.json"
    measured: list[Measured] = []
    if only and earlier.exists():
        its_rounds, its_scale, measured = read_json(earlier)
        if (its_rounds, its_scale) != (rounds, scale):
            raise click.UsageError(
                f"{earlier} was measured with --rounds {its_rounds} --scale {its_scale:g}: use "
                "the same, or another directory (--to)"
            )
    # No quick start here: the JVMs compile fully, for the highest speed.
    with EmbeddedKafka(heap="2g") as broker, tempfile.TemporaryDirectory() as checkpoints:
        spark = spark_session(config={"spark.driver.memory": "3g"})
        # Queries are stopped in the middle of a batch, which Spark would log at length; failures
        # are raised here.
        spark.sparkContext.setLogLevel("OFF")
        bench = Bench(broker, spark, Path(checkpoints), rounds, quix)
        scenarios: list[tuple[str, Callable[[], Measured]]] = [
            *((s.name, partial(bench.triggers, s)) for s in triggers(scale)),
            ("latency", partial(bench.latency, rate=1_000, seconds=20 * scale)),
            (GROWTH.name, partial(bench.growth, GROWTH)),
            ("requests", partial(requests_per_batch, spark, Path(checkpoints))),
            *((s.name, partial(bench.throughput, s)) for s in throughputs(scale)),
        ]
        for name, measure in scenarios:
            if not only or any(part in name for part in only):
                found = measure()
                measured = [*(one for one in measured if one.name != found.name), found]
                _keep(directory, about, measured)
        spark.stop()
    Console().print((directory / "results.md").read_text(), markup=False)


def _keep(directory: Path, about: Mapping[str, Any], measured: Sequence[Measured]) -> None:
    """Writes the results so far, because a whole run takes long and may be interrupted."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "results.json", about, measured)
    (directory / "results.md").write_text(page(about, measured))
    plot(directory / "results.png", measured)


if __name__ == "__main__":
    main()
