"""The queries that are killed, each in a process: ``python -m spark_eos._demo.query``.

They copy orders, or count them by customer in windows of event time, with `ExactlyOnceSink` or with
Spark's own Kafka sink, and end when they have processed everything available.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Final

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions, job_options
from spark_eos.testing import spark_session

# In windows. Partitions of the topic are read evenly, and their orders are less than that apart.
_LATENESS: Final = 6


def _copied(orders: DataFrame) -> DataFrame:
    return orders.select(*{"source", "key", "value"}.intersection(orders.columns))


def _counted(orders: DataFrame, minutes: int) -> DataFrame:
    """In append mode, the default, a count is written when no order can change it any more."""
    late = f"{_LATENESS * minutes} minutes"
    return _rows(_windowed(_times(orders).withWatermark("ordered_at", late), minutes))


def _expected_counts(orders: DataFrame, minutes: int) -> DataFrame:
    """What `_counted` has written when it has read all orders, by a plain batch query."""
    times = _times(orders)
    late = F.expr(f"INTERVAL {_LATENESS * minutes} MINUTES")
    last = times.agg((F.max("ordered_at") - late).alias("watermark"))
    in_time = F.col("window.end") <= F.col("watermark")
    return _rows(_windowed(times, minutes).join(F.broadcast(last), in_time))


def _times(orders: DataFrame) -> DataFrame:
    ordered_at = F.get_json_object(F.col("value").cast("string"), "$.ordered_at")
    return orders.select("key", ordered_at.cast("timestamp").alias("ordered_at"))


def _windowed(times: DataFrame, minutes: int) -> DataFrame:
    window = F.window("ordered_at", f"{minutes} minutes").alias("window")
    return times.groupBy("key", window).agg(F.count(F.lit(1)).alias("orders"))


def _rows(counted: DataFrame) -> DataFrame:
    value = F.to_json(F.struct(F.col("window.start").alias("from"), "orders"))
    return counted.select("key", value.alias("value"))


def _session() -> SparkSession:
    # Files that a killed JVM leaves are removed with the demonstration's temporary directory.
    directory = tempfile.gettempdir()
    return spark_session(
        "spark-eos-demo",
        config={
            "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={directory}"',
            "spark.local.dir": directory,
        },
        quick_start=True,
    )


def _run_sparks_sink(options: JobOptions, transform: Callable[[DataFrame], DataFrame]) -> None:
    """Runs the same query with Spark's own sink, as Spark's documentation writes it."""
    servers = options.kafka["bootstrap.servers"]
    orders = (
        _session()
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", options.source)
        .option("startingOffsets", options.starting_offsets)
        .options(**options.source_options)
        .load()
    )
    query = (
        transform(orders)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", options.target)
        .option("checkpointLocation", options.checkpoint_location)
        .trigger(**options.trigger)
        .start()
    )
    query.awaitTermination()


def _write_expected(options: JobOptions, minutes: int, path: str) -> None:
    orders = (
        _session()
        .read.format("kafka")
        .option("kafka.bootstrap.servers", options.kafka["bootstrap.servers"])
        .option("subscribe", options.source)
        .load()
    )
    _expected_counts(orders, minutes).write.parquet(path)


@click.command()
@job_options
@click.option("--sink", type=click.Choice(["exactly-once", "spark"]), required=True)
@click.option("--count-minutes", type=click.IntRange(min=1), help="Count in windows of this size.")
@click.option("--expected", help="Where to write the counts that are expected at the end.")
def main(options: JobOptions, sink: str, count_minutes: int | None, expected: str | None) -> None:
    """Copy orders from one topic to another, or count them."""
    transform = partial(_counted, minutes=count_minutes) if count_minutes else _copied
    if sink == "spark":
        _run_sparks_sink(options, transform)
    else:
        run_job(options, transform, session=_session)
    if count_minutes is not None and expected is not None:
        _write_expected(options, count_minutes, expected)


if __name__ == "__main__":
    main()
