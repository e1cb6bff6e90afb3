"""Writes dead letters back to the topic they come from, or to another topic, exactly once.

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
    """Turn dead letters back into their original records.

    Args:
        records: Dead letters, with columns ``source``, ``key``, ``value``, ``headers`` and
            ``timestamp``.
        target: Topic to write to.
        every: Whether to include dead letters of other topics and clusters, and dead letters that
            hold a row; otherwise, only dead letters whose record was in ``target`` are written.
        where: SQL condition for the dead letters to write.
        by_key: Whether keys determine partitions even if the original partition is known.
        dead_letters: Whether dead letters that don't hold their whole record become dead letters
            of this query; otherwise, the query fails at the first one.

    Returns:
        Columns ``source``, ``key``, ``value``, ``headers``, ``timestamp``, ``partition`` and
        ``error``.
    """
    dead_letter = F.col("dead_letter")
    here = dead_letter.cluster.isNull() & dead_letter.record.isNull()
    original = here & (dead_letter.topic == target)
    chosen = original_records(records)
    if not every:
        chosen = chosen.where(original)
    if where is not None:
        try:
            chosen = chosen.where(where)
            chosen.schema  # noqa: B018 - Spark Connect checks the condition only now
        except PySparkException as cause:
            raise ConfigurationError(f"--where: {str(cause).strip().splitlines()[0]}") from cause
    error = F.when(dead_letter.incomplete.isNotNull(), _incomplete())
    value = F.col("value")
    if not dead_letters:
        value = F.when(error.isNull(), value).otherwise(F.raise_error(error))
    # With a null partition, the key decides.
    partition = F.lit(None).cast("int") if by_key else F.when(original, dead_letter.partition)
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
    help="Also write dead letters of other topics and clusters, and of rows. By default, a "
    "dead letter's record must have been in the target.",
)
@click.option(
    "--where",
    metavar="CONDITION",
    help="SQL condition for the dead letters to write, such as \"dead_letter.reason = 'error'\".",
)
@click.option(
    "--by-key",
    is_flag=True,
    help="Let keys determine partitions. By default, a record goes back to its original partition.",
)
@job_options
def main(options: JobOptions, *, every: bool, where: str | None, by_key: bool) -> None:
    """Write dead letters back to the topic they come from, or to another topic, exactly once.

    --source is the dead-letter topic. The query processes the dead letters that are there when it
    starts, and then ends. If it is killed or started again with the same group and checkpoint, it
    continues where it stopped. Dead letters that it does not select stay in the topic. To write
    them later, use another --group-id and checkpoint.

    Key, value, headers, timestamp and partition are the original record's. Conditions may use
    these columns, the dead letter's own position (source.topic, source.partition, source.offset),
    and dead_letter: topic, partition, offset, cluster, group, reason, message, exception,
    stacktrace, record, incomplete.
    """
    if click.get_current_context().get_parameter_source("trigger") is not ParameterSource.DEFAULT:
        raise click.UsageError(
            "A replay ends after the dead letters that are there when it starts: leave --trigger "
            "out."
        )
    if options.starting_offsets != "earliest":
        raise click.UsageError(
            "A replay begins at the first dead letter: leave --starting-offsets out."
        )
    # Records of aborted transactions are not dead letters.
    committed = {"isolation.level": "read_committed"}
    source_kafka = options.source_kafka
    options = dataclasses.replace(
        options,
        kafka={**options.kafka, **committed},
        source_kafka=None if source_kafka is None else {**source_kafka, **committed},
        # Without an end, a replay would forever repeat records that fail again.
        trigger={"availableNow": True},
        # Records that retention has deleted can't be replayed; the gap is logged.
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
