"""Copies records from topics to a topic exactly once, also from one cluster to another.

Key, value, headers and timestamp are kept, and with --keep-partitions the partition.

spark-submit --properties-file conf/spark-defaults.conf --jars "$(spark-eos jars)" jobs/relay.py \
    --source-bootstrap-servers east:9092 --bootstrap-servers west:9092 --group-id relay \
    --source orders --target orders --keep-partitions --checkpoint-location checkpoints/relay
"""

import functools

import click
from pyspark.sql import DataFrame

from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions, job_options


def relay(records: DataFrame, *, keep_partitions: bool = False) -> DataFrame:
    """Keeps everything; the producer chooses the partition by the key again, unless it is kept."""
    kept = ["partition"] if keep_partitions else []
    return records.select("source", "key", "value", "headers", "timestamp", *kept)


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="Write each record to the partition it comes from. By default the key decides.",
)
@job_options
def main(options: JobOptions, *, keep_partitions: bool) -> None:
    """Copy records from topics to a topic, exactly once.

    Key, value, headers and timestamp are copied. Ctrl-C and SIGTERM stop the query cleanly;
    started again, it continues where it stopped.

    With --source-bootstrap-servers the source topics are in another cluster; the consumer group,
    and with it the progress, is in the cluster of --bootstrap-servers.
    """
    transform = functools.partial(relay, keep_partitions=keep_partitions)
    run_job(options, transform, include_headers=True)


if __name__ == "__main__":
    main(prog_name="relay.py")
