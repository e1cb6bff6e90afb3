"""Loads that must be staged; a plain batch query computes their expected output.

Each load writes a header with a value that differs in each attempt at a batch, so that rows of two
attempts can be distinguished.
"""

import random
import uuid
import zlib
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.loads import Load, Record, enlarged, fault, refuse, spoiled, with_faults
from spark_eos import guarded

ATTEMPT = "attempt"
# The event time of record 0; each record is one second later. Far enough in the past.
_EPOCH = 1_700_000_000
_CLOSING = 9_999_999_999
_WINDOW = 100
_KEYS_OF_A_WINDOW = 10
# Partitions differ by at most the records produced ahead of the query, a third of this.
_LATENESS = 90_000


def _shuffled_record(chosen: random.Random, number: int, partitions: int) -> Record:
    partition = chosen.randrange(partitions)
    # Each key has one source partition, so that its records have an order.
    value = b"%012d" % number + b"x" * chosen.randrange(20, 150)
    return Record(0, partition, b"%d-%d" % (partition, number % 300), value, 1)


def _shuffled(frame: DataFrame, targets: list[str]) -> DataFrame:
    topic = F.when(F.crc32("key") % 2 == 0, targets[0]).otherwise(targets[1])
    return frame.select("key", "value", topic.alias("topic")).repartition(3, "key")


def _spoiled_record(chosen: random.Random, number: int, partitions: int) -> Record:
    good = _shuffled_record(chosen, number, partitions)
    return replace(good, value=spoiled(good.value, number))


def _spoiled(frame: DataFrame, targets: list[str]) -> DataFrame:
    rows = guarded(frame, refuse, "key binary, value binary", kind="arrow", errors="column")
    error = F.coalesce("error.message", F.when(fault() == "error", F.lit("judged so")))
    # With the source column, dead letters of refused rows contain their records.
    return with_faults(rows, targets, error).repartition(3, "key")


def expected_rows(
    load: str, frame: DataFrame, targets: list[str], dead_letter_topics: list[str]
) -> DataFrame:
    """The expected output of a load's query for all of its input: key, value and topic."""
    if not dead_letter_topics:
        return STAGED[load].transform(frame, targets).select("key", "value", "topic")
    topic = F.when(fault() == "good.", targets[0]).otherwise(dead_letter_topics[0])
    return frame.select("key", enlarged().cast("binary").alias("value"), topic.alias("topic"))


def in_another_order(frame: DataFrame, batch_id: int) -> DataFrame:
    """Each attempt has other partitions and another order of keys, but each key's order stays."""
    attempt = uuid.uuid4().hex[:8]
    moved = frame.repartition(2 + zlib.crc32(attempt.encode()) % 3, "key")
    ordered = moved.sortWithinPartitions(F.xxhash64("key", F.lit(attempt)), "key", "value")
    return ordered.withColumn(
        "headers", F.array(_header(ATTEMPT, F.lit(f"{batch_id}:{attempt}")), _random())
    )


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), F.encode(value, "UTF-8").alias("value"))


def _random() -> Column:
    return _header("random", F.rand().cast("string"))


def _windows_record(chosen: random.Random, number: int, partitions: int) -> Record:
    key = b"k%d" % chosen.randrange(_KEYS_OF_A_WINDOW)
    return Record(0, chosen.randrange(partitions), key, b"%012d" % number, 1)


def _windows_closed(partition: int) -> Record:
    return Record(0, partition, b"closing", b"%012d" % _CLOSING, 1)


def _windows(frame: DataFrame, targets: list[str]) -> DataFrame:
    numbered = frame.select("key", F.col("value").cast("string").cast("long").alias("n"))
    rows = numbered.withColumn("at", F.timestamp_seconds(F.col("n") + _EPOCH))
    counts = (
        rows.withWatermark("at", f"{_LATENESS} seconds")
        .groupBy(F.window("at", f"{_WINDOW} seconds"), "key")
        .agg(F.count(F.lit(1)).alias("count"), F.sum("n").alias("sum"))
    )
    found = counts.withColumn("started", F.unix_timestamp("window.start")).filter(
        F.col("started") < _EPOCH + _CLOSING - _WINDOW
    )
    value = F.to_json(F.struct("started", "count", "sum"))
    return _row(found, value, targets)


def _totals_record(chosen: random.Random, number: int, partitions: int) -> Record:
    key = b"k%d" % (number % 1_500)
    return Record(0, chosen.randrange(partitions), key, b"%012d" % number, 1)


def _totals(frame: DataFrame, targets: list[str]) -> DataFrame:
    numbered = frame.select("key", F.col("value").cast("string").cast("long").alias("n"))
    found = numbered.groupBy("key").agg(
        F.count(F.lit(1)).alias("count"), F.sum("n").alias("sum"), F.max("n").alias("most")
    )
    return _row(found, F.to_json(F.struct("count", "sum", "most")), targets)


def _row(found: DataFrame, value: Column, targets: list[str]) -> DataFrame:
    return found.select(
        "key",
        value.alias("value"),
        F.lit(targets[0]).alias("topic"),
        F.array(_random()).alias("headers"),
    )


STAGED = {
    "shuffled": Load(
        1,
        2,
        3,
        4_000,
        1_000,
        24_000,
        {"max_transaction_records": 400, "progress_partitions": 6},
        _shuffled_record,
        _shuffled,
        of_batch=in_another_order,
    ),
    "spoiled": Load(
        1,
        2,
        3,
        4_000,
        1_000,
        24_000,
        {"max_transaction_records": 400, "progress_partitions": 6, "max_block_ms": 3_000},
        _spoiled_record,
        _spoiled,
        of_batch=in_another_order,
        dead_letters=True,
        small=True,
    ),
    "windows": Load(
        1,
        1,
        3,
        6_000,
        1_500,
        20_000,
        {"max_transaction_records": 100, "progress_partitions": 3},
        _windows_record,
        _windows,
        closing=_windows_closed,
    ),
    "totals": Load(
        1,
        1,
        3,
        4_000,
        1_000,
        20_000,
        {"max_transaction_records": 200, "progress_partitions": 4},
        _totals_record,
        _totals,
        mode="update",
        by_key=True,
    ),
}
