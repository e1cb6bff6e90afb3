"""The query of the demonstration, run in its own process: ``python -m spark_eos.demo.query``.

It copies orders with `ExactlyOnceSink` or with Spark's own Kafka sink, and ends when it has
processed everything available.
"""

import tempfile

import click
from pyspark.sql import DataFrame, SparkSession

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


def _run_sparks_sink(options: JobOptions) -> None:
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
        orders.select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", options.target)
        .option("checkpointLocation", options.checkpoint_location)
        .trigger(**options.trigger)
        .start()
    )
    query.awaitTermination()


@click.command()
@job_options
@click.option("--sink", type=click.Choice(["exactly-once", "spark"]), required=True)
def main(options: JobOptions, sink: str) -> None:
    """Copy orders from one topic to another."""
    if sink == "spark":
        _run_sparks_sink(options)
    else:
        run_job(options, _copy, session=_session)


if __name__ == "__main__":
    main()
