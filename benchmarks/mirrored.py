"""Compares a relay from another cluster with a direct one, in turns.

Two brokers run all the time, so that both contestants have the same share of the machine. A first
round warms up and is thrown away.

.venv/bin/python benchmarks/mirrored.py --rows 2000000
"""

import statistics
import tempfile
from pathlib import Path

import click
from contestants import Arena, Trial
from load import fill
from rich.console import Console
from scenarios import Records
from staged import PARTITIONS, comparison, new_arena, run_query
from turns import turns

from spark_eos import ExactlyOnceSink
from spark_eos.testing import EmbeddedKafka, spark_session


def _relay(arena: Arena, source: EmbeddedKafka | None) -> Trial:
    sink = ExactlyOnceSink(
        kafka={"bootstrap.servers": arena.bootstrap_servers},
        group_id=arena.target,
        topic=arena.target,
        checkpoint_location=arena.checkpoint,
        source_kafka=(None if source is None else {"bootstrap.servers": source.bootstrap_servers}),
    )
    frame = sink.read(arena.spark, subscribe=arena.source, options=arena.reading)
    trial = run_query(sink.write(frame.select("source", "key", "value")), arena)
    sink.close()
    return trial


@click.command(help=__doc__)
@click.option("--rows", default=2_000_000, show_default=True, help="Records of the large batch.")
@click.option("--rounds", default=5, show_default=True, help="Number of rounds that count.")
@click.option("--small", default=100, show_default=True, help="Records of each small batch.")
def main(rows: int, rounds: int, small: int) -> None:
    """Prints a table."""
    large: dict[str, list[float]] = {"direct": [], "mirrored": []}
    short: dict[str, list[float]] = {"direct": [], "mirrored": []}
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedKafka() as target,
        EmbeddedKafka() as source,
    ):
        spark = spark_session(config={"spark.driver.memory": "2g"})
        for broker in (target, source):
            for name, count in (("large", rows), ("small", 31 * small)):
                broker.create_topic(name, PARTITIONS)
                fill(broker, name, count, Records(size=112, partitions=PARTITIONS))
        for number, name in turns(list(large), rounds):
            read = source if name == "mirrored" else None
            whole = _relay(new_arena(spark, target, "large", Path(directory), None), read)
            steps = _relay(new_arena(spark, target, "small", Path(directory), small), read)
            if number:
                large[name].append(whole.rows / (sum(whole.trigger_ms) / 1000))
                short[name].append(statistics.median(steps.trigger_ms[1:]))
    Console().print(comparison(large, short, "direct", small))


if __name__ == "__main__":
    main()
