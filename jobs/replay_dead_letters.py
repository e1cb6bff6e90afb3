"""Writes dead letters to the topic that they come from, or to another one, exactly once.

spark-submit --jars "$(spark-eos jars)" jobs/replay_dead_letters.py \
    --bootstrap-servers localhost:9092 --group-id replay-orders-raw \
    --source orders-dlq --target orders-raw --checkpoint-location checkpoints/replay-orders-raw

``spark-eos dead-letters count`` prints this command.
"""

import dataclasses
from functools import partial

import click
from click.core import ParameterSource
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_eos import ConfigurationError, original_records
from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions, job_options


def replay(
    records: DataFrame,
    *,
    target: str,
    every: bool = False,
    where: str | None = None,
    by_key: bool = False,
    dead_letters: bool = False,
) -> DataFrame:
    """Turns dead letters into the records they were made of.

    Args:
        records: Dead letters, with columns ``source``, ``key``, ``value``, ``headers`` and
            ``timestamp``.
        target: Topic to write to.
        every: Whether to write dead letters of other topics and clusters, too, and those that hold
            a row; if not, only those whose record was in ``target``.
        where: SQL condition of the dead letters to write.
        by_key: Whether keys decide on partitions, too, where the original one is known.
        dead_letters: Whether dead letters that don't hold their whole record become dead letters
            of this query; if not, the query fails at the first one.

    Returns:
        Columns ``source``, ``key``, ``value``, ``headers``, ``timestamp``, ``partition`` and
        ``error``.
    """
    letter = F.col("dead_letter")
    here = letter.cluster.isNull() & letter.record.isNull()
    original = here & (letter.topic == target)
    chosen = original_records(records)
    if not every:
        chosen = chosen.where(original)
    if where is not None:
        try:
            chosen = chosen.where(where)
            chosen.schema  # noqa: B018 - Spark Connect checks the condition only now
        except PySparkException as cause:
            raise ConfigurationError(f"--where: {str(cause).splitlines()[0]}") from cause
    error = F.when(letter.incomplete.isNotNull(), _incomplete())
    value = F.col("value")
    if not dead_letters:
        value = F.when(error.isNull(), value).otherwise(F.raise_error(error))
    # Null is by key.
    partition = F.lit(None).cast("int") if by_key else F.when(original, letter.partition)
    names = ("source", "key", value.alias("value"), "headers", "timestamp")
    return chosen.select(*names, partition.alias("partition"), error.alias("error"))


def _incomplete() -> Column:
    return F.format_string(
        "dead letter %s-%d offset %d does not hold its whole record (%s): read the record at "
        "%s-%d offset %d yourself, and leave the dead letter out (--where 'dead_letter.incomplete "
        "is null')",
        *(F.col(f"source.{name}") for name in ("topic", "partition", "offset")),
        F.col("dead_letter.incomplete"),
        *(F.col(f"dead_letter.{name}") for name in ("topic", "partition", "offset")),
    )


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Write dead letters of other topics and clusters, and of rows, too. By default only "
    "those whose record was in the target.",
)
@click.option(
    "--where",
    metavar="CONDITION",
    help="SQL condition of the dead letters to write, such as \"dead_letter.reason = 'error'\".",
)
@click.option(
    "--by-key",
    is_flag=True,
    help="Let keys decide on partitions. By default a record goes back to its own partition.",
)
@job_options
def main(options: JobOptions, *, every: bool, where: str | None, by_key: bool) -> None:
    """Write dead letters to the topic that they come from, or to another one, exactly once.

    --source is the dead-letter topic. The query ends at the dead letters that are there when it
    starts. Killed or started again with the same group and checkpoint, it continues where it
    stopped. Dead letters that it does not choose stay in the topic: another --group-id, with
    another checkpoint, can write them.

    Key, value, headers, timestamp and partition are the original record's. Conditions may use
    these columns, the dead letter's own position (source.topic, source.partition, source.offset),
    and dead_letter: topic, partition, offset, cluster, group, reason, message, exception,
    stacktrace, record, incomplete.
    """
    if click.get_current_context().get_parameter_source("trigger") is not ParameterSource.DEFAULT:
        raise click.UsageError(
            "A replay ends at the dead letters that are there when it starts: leave --trigger out."
        )
    # Aborted records are no dead letters.
    committed = {"isolation.level": "read_committed"}
    source_kafka = options.source_kafka
    options = dataclasses.replace(
        options,
        kafka={**options.kafka, **committed},
        source_kafka=None if source_kafka is None else {**source_kafka, **committed},
        # A replay that did not end would repeat for ever what fails again.
        trigger={"availableNow": True},
        # What retention has deleted can't be replayed; the gap is logged.
        sink={**options.sink, "fail_on_data_loss": False},
    )
    transform = partial(
        replay,
        target=options.target,
        every=every,
        where=where,
        by_key=by_key,
        dead_letters="dead_letters" in options.sink,
    )
    run_job(options, transform, include_headers=True)


if __name__ == "__main__":
    main(prog_name="replay_dead_letters.py")
