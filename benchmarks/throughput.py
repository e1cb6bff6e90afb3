"""Rows per second of spark-eos and of Spark's own Kafka sink on one large batch, as a ratio.

Both in turn, in the same Spark session on the same broker, several rounds; the first is not
counted. Only the ratio means something: machines are shared and noisy.

    .venv/bin/python benchmarks/throughput.py --rows 2000000 --rounds 3
"""

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import click
from load import fill
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from spark_eos import ExactlyOnceSink
from spark_eos.testing import EmbeddedKafka, spark_session

Contestant = Callable[[str], None]


def _contestants(
    spark: SparkSession, broker: EmbeddedKafka, source: str, directory: Path
) -> dict[str, Contestant]:
    servers = broker.bootstrap_servers

    def plain_source() -> DataFrame:
        options = {"kafka.bootstrap.servers": servers, "subscribe": source}
        reader = spark.readStream.format("kafka").options(**options, startingOffsets="earliest")
        return reader.load().select("key", "value")

    def run(frame: DataFrame, form: str, checkpoint: str, **options: str) -> None:
        writer = frame.writeStream.format(form).options(checkpointLocation=checkpoint, **options)
        writer.trigger(availableNow=True).start().awaitTermination()

    def spark_eos(target: str) -> None:
        sink = ExactlyOnceSink(
            kafka={"bootstrap.servers": servers},
            group_id=target,
            topic=target,
            checkpoint_location=str(directory / target),
        )
        frame = sink.read(spark, subscribe=source).select("source", "key", "value")
        sink.write(frame).trigger(availableNow=True).start().awaitTermination()
        sink.close()

    def sparks_own(target: str) -> None:
        options = {"kafka.bootstrap.servers": servers, "topic": target}
        run(plain_source(), "kafka", str(directory / target), **options)

    def noop(target: str) -> None:
        run(plain_source(), "noop", str(directory / target))

    return {"Spark's own sink": sparks_own, "spark-eos": spark_eos, "read only": noop}


@click.command()
@click.option("--rows", default=2_000_000, show_default=True, help="Records in the source topic.")
@click.option("--size", default=112, show_default=True, help="Bytes of a record's value.")
@click.option("--partitions", default=4, show_default=True, help="Of source and target.")
@click.option("--rounds", default=3, show_default=True, help="Rounds that count.")
def main(rows: int, size: int, partitions: int, rounds: int) -> None:
    """Compares spark-eos with Spark's own Kafka sink."""
    rates: dict[str, list[float]] = {}
    with EmbeddedKafka(heap="1g") as broker, tempfile.TemporaryDirectory() as directory:
        source = f"source-{uuid.uuid4().hex[:6]}"
        broker.create_topic(source, partitions)
        fill(broker, source, rows, size, partitions)
        spark = spark_session(config={"spark.driver.memory": "2g"})
        contestants = _contestants(spark, broker, source, Path(directory))
        for number in range(rounds + 1):
            for name, contestant in contestants.items():
                target = f"target-{uuid.uuid4().hex[:6]}"
                broker.create_topic(target, partitions)
                started = time.monotonic()
                contestant(target)
                if number:
                    rates.setdefault(name, []).append(rows / (time.monotonic() - started))
                broker.delete_topic(target)
        spark.stop()
    table = Table(title=f"{rows:,} rows of {size} bytes, {partitions} partitions, {rounds} rounds")
    for column in ("contestant", "median rows/s", "of Spark's own sink", "spread"):
        table.add_column(column, justify="left" if column == "contestant" else "right")
    for name, found in rates.items():
        ratios = [a / b for a, b in zip(found, rates["Spark's own sink"], strict=True)]
        table.add_row(
            name,
            f"{statistics.median(found):,.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
