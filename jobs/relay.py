"""Copies records from topics to a topic exactly once, even from one cluster to another.

Key, value, headers and timestamp are kept, and with --keep-partitions the partition too. Keys and
values can be rewritten with the schemas of another registry.

spark-submit --properties-file conf/spark-defaults.conf --jars "$(spark-eos jars)" jobs/relay.py \
    --source-bootstrap-servers east:9092 --bootstrap-servers west:9092 --group-id relay \
    --source orders --target orders --keep-partitions --checkpoint-location checkpoints/relay
"""

import functools

import click
from pyspark.sql import DataFrame

from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions, job_options
from spark_eos.jobs.schema_options import Recoding, schema_options


def relay(
    records: DataFrame,
    *,
    keep_partitions: bool = False,
    recoding: Recoding | None = None,
    dead_letters: bool = False,
) -> DataFrame:
    """Copy records; unless partitions are kept, the producer chooses them by key.

    Args:
        records: Columns ``source``, ``key``, ``value``, ``headers``, ``timestamp``, ``partition``.
        keep_partitions: Whether to keep the partition.
        recoding: How to rewrite keys and values; None to copy them.
        dead_letters: Whether records that can't be read become dead letters; otherwise, the query
            fails at the first one.

    Returns:
        The columns to write.
    """
    kept = ["partition"] if keep_partitions else []
    if recoding is not None:
        records = recoding(records, errors="column" if dead_letters else "raise")
        kept += ["error"] if dead_letters else []
    return records.select("source", "key", "value", "headers", "timestamp", *kept)


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="Write each record to the partition it comes from. By default, the key decides.",
)
@schema_options
@job_options
def main(options: JobOptions, *, keep_partitions: bool, recoding: Recoding | None) -> None:
    """Copy records from topics to a topic, exactly once.

    Key, value, headers and timestamp are copied. Ctrl-C and SIGTERM stop the query cleanly. When
    it is started again, it continues where it stopped.

    With --source-bootstrap-servers, the source topics are in another cluster. The consumer group,
    and with it the progress, is in the cluster of --bootstrap-servers.

    With --schema-registry and --value-subject or --key-subject, records are written with a schema
    from the target's registry, whose schema ids differ from those in the source's registry.
    """
    transform = functools.partial(
        relay,
        keep_partitions=keep_partitions,
        recoding=recoding,
        dead_letters="dead_letters" in options.sink,
    )
    run_job(options, transform, include_headers=True)


if __name__ == "__main__":
    main(prog_name="relay.py")
