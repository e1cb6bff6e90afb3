"""Copies records from topics to a topic exactly once, with key, value, headers and timestamp.

spark-submit --properties-file conf/spark-defaults.conf --jars "$(spark-eos jars)" jobs/relay.py \
    --bootstrap-servers localhost:9092 --group-id relay --source orders --target orders-copy \
    --checkpoint-location checkpoints/relay
"""

import click
from pyspark.sql import DataFrame

from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions, job_options


def relay(records: DataFrame) -> DataFrame:
    """Keeps everything but the partition, which the producer chooses by the key again."""
    return records.select("source", "key", "value", "headers", "timestamp")


@click.command(context_settings={"max_content_width": 100})
@job_options
def main(options: JobOptions) -> None:
    """Copy records from topics to a topic, exactly once.

    Key, value, headers and timestamp are copied. Ctrl-C and SIGTERM stop the query cleanly;
    started again, it continues where it stopped.
    """
    run_job(options, relay, include_headers=True)


if __name__ == "__main__":
    main(prog_name="relay.py")
