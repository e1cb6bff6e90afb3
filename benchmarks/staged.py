"""Compares staged batches with Spark's own sink: a repartitioned stream, in turns.

Both read with the same settings, in one Spark session, from one broker. A first round warms up and
is thrown away.

.venv/bin/python benchmarks/staged.py --rows 2000000
"""

import statistics
import tempfile
import uuid
from pathlib import Path

import click
from contestants import EQUAL, Arena, Trial, Writer, our_sink
from load import fill
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table
from scenarios import Records
from turns import median_and_range, ratios, turns

from spark_eos.testing import EmbeddedKafka, spark_session

PARTITIONS = 4


def _repartitioned(frame: DataFrame) -> DataFrame:
    return frame.select("key", "value").repartition(PARTITIONS)


def _staged(arena: Arena) -> Trial:
    sink = our_sink(arena)
    frame = sink.read(arena.spark, subscribe=arena.source, options=arena.reading)
    trial = run_query(sink.write(_repartitioned(frame)), arena)
    sink.close()
    return trial


def _sparks_own(arena: Arena) -> Trial:
    options = {"kafka.bootstrap.servers": arena.bootstrap_servers, "topic": arena.target}
    frame = _repartitioned(arena.read(as_we_do=True))
    return run_query(frame.writeStream.format("kafka").options(**options), arena)


def run_query(writer: Writer, arena: Arena) -> Trial:
    """Runs a query over all there is."""
    query = writer.option("checkpointLocation", arena.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    found = [p for p in query.recentProgress if p["numInputRows"]][: arena.batches]
    return Trial(
        [{"numInputRows": p["numInputRows"], "durationMs": dict(p["durationMs"])} for p in found]
    )


def new_arena(
    spark: SparkSession, broker: EmbeddedKafka, source: str, directory: Path, most: int | None
) -> Arena:
    """An arena with a target topic of its own; ``most`` records a trigger, or all in one."""
    target = f"out-{uuid.uuid4().hex[:8]}"
    broker.create_topic(target, PARTITIONS)
    batches = 1 if most is None else 30
    return Arena(
        spark=spark,
        bootstrap_servers=broker.bootstrap_servers,
        source=source,
        target=target,
        directory=directory,
        header=False,
        most=most,
        batches=batches,
    )


@click.command(help=__doc__)
@click.option("--rows", default=2_000_000, show_default=True, help="Records of the large batch.")
@click.option("--rounds", default=5, show_default=True, help="Number of rounds that count.")
@click.option("--small", default=100, show_default=True, help="Records of each small batch.")
def main(rows: int, rounds: int, small: int) -> None:
    """Prints a table."""
    contestants = {EQUAL: _sparks_own, "staged": _staged}
    large: dict[str, list[float]] = {name: [] for name in contestants}
    short: dict[str, list[float]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka() as broker:
        spark = spark_session(config={"spark.driver.memory": "2g"})
        for name, count in (("large", rows), ("small", 31 * small)):
            broker.create_topic(name, PARTITIONS)
            fill(broker, name, count, Records(size=112, partitions=PARTITIONS))
        for number, name in turns(list(contestants), rounds):
            contestant = contestants[name]
            whole = contestant(new_arena(spark, broker, "large", Path(directory), None))
            steps = contestant(new_arena(spark, broker, "small", Path(directory), small))
            if number:
                large[name].append(whole.rows / (sum(whole.trigger_ms) / 1000))
                short[name].append(statistics.median(steps.trigger_ms[1:]))
    Console().print(comparison(large, short, EQUAL, small))


def comparison(
    large: dict[str, list[float]], short: dict[str, list[float]], base: str, small: int
) -> Table:
    """A table of contestants, each compared with one of them round by round.

    Args:
        large: Rows a second in each round, by contestant.
        short: Milliseconds a small trigger in each round, by contestant.
        base: The one that the others are compared with.
        small: Records of a small trigger.
    """
    table = Table("", "rows/s", "ratio", f"ms a trigger of {small}", "difference")
    for name, rows in large.items():
        more = [a - b for a, b in zip(short[name], short[base], strict=True)]
        table.add_row(
            name,
            f"{statistics.median(rows):,.0f}",
            median_and_range(ratios(rows, large[base])),
            f"{statistics.median(short[name]):.0f}",
            f"{statistics.median(more):+.0f} ({min(more):+.0f} to {max(more):+.0f})",
        )
    return table


if __name__ == "__main__":
    main()
