"""The queries of the demonstration, in a process: ``python -m spark_eos.demo.query``.

They copy orders, or count them, with `ExactlyOnceSink` or with Spark's own Kafka sink, and end when
they have processed everything available.
"""

import tempfile
from collections.abc import Callable
from functools import partial

import click
from pyspark.sql import DataFrame, SparkSession

from spark_eos.demo.counting import counts, expected_counts
from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions, job_options
from spark_eos.testing import spark_session


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


def _copy(orders: DataFrame) -> DataFrame:
    return orders.select("source", "key", "value")


def _sparks_copy(orders: DataFrame) -> DataFrame:
    return orders.select("key", "value")


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
    expected_counts(orders, minutes).write.parquet(path)


@click.command()
@job_options
@click.option("--sink", type=click.Choice(["exactly-once", "spark"]), required=True)
@click.option("--count-minutes", type=click.IntRange(min=1), help="Count in windows of this size.")
@click.option("--expected", help="Where to write the counts that are expected at the end.")
def main(options: JobOptions, sink: str, count_minutes: int | None, expected: str | None) -> None:
    """Copy orders from one topic to another, or count them."""
    counting = None if count_minutes is None else partial(counts, minutes=count_minutes)
    if sink == "spark":
        _run_sparks_sink(options, counting or _sparks_copy)
    else:
        run_job(options, counting or _copy, session=_session)
    if count_minutes is not None and expected is not None:
        _write_expected(options, count_minutes, expected)


if __name__ == "__main__":
    main()
