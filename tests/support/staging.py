"""Pipelines that move rows between tasks, and their expected output."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._exactly_once.batch import Run
from spark_eos.testing import process_available
from support.flow import Flow
from support.sinks import arguments

# Far enough in the past for every watermark, and a multiple of the windows' seconds.
_EPOCH = 1_700_000_000
_WINDOW = 10


def record(number: int) -> str:
    """Record ``number``: one second after the previous record, of one of five customers."""
    return json.dumps({"n": number, "customer": f"c{number % 5}", "at": _EPOCH + number})


def parsed(frame: DataFrame) -> DataFrame:
    """A source's records as columns ``n``, ``customer`` and ``at``."""
    fields = F.from_json(F.col("value").cast("string"), "n long, customer string, at long")
    rows = frame.select(fields.alias("r")).select("r.*")
    return rows.withColumn("at", F.timestamp_seconds("at"))


def as_json(frame: DataFrame, key: str = "customer") -> DataFrame:
    """Rows with one column as key and all columns as value."""
    value = F.to_json(F.struct(*frame.columns))
    return frame.select(F.col(key).cast("string").alias("key"), value.alias("value"))


def windows(frame: DataFrame) -> DataFrame:
    rows = parsed(frame).withWatermark("at", "1 second")
    counts = rows.groupBy(F.window("at", f"{_WINDOW} seconds"), "customer").count()
    started = F.unix_timestamp("window.start").alias("started")
    return as_json(counts.select(started, "customer", "count"))


def totals(frame: DataFrame) -> DataFrame:
    """Each customer's number of records, and something random."""
    counts = parsed(frame).groupBy("customer").agg(F.count(F.lit(1)).alias("count"))
    return as_json(counts.withColumn("random", F.rand()))


def ranking(frame: DataFrame) -> DataFrame:
    """Like `totals`, sorted, for complete mode."""
    counts = parsed(frame).groupBy("customer").agg(F.count(F.lit(1)).alias("count"))
    return as_json(counts.orderBy(F.desc("count"), "customer"))


def deduplicated(frame: DataFrame) -> DataFrame:
    """One record for each value of ``n`` modulo 20."""
    rows = parsed(frame).withWatermark("at", "1 hour").withColumn("key", F.col("n") % 20)
    return as_json(rows.dropDuplicatesWithinWatermark(["key"]).select("key"), "key")


def repartitioned(frame: DataFrame) -> DataFrame:
    return as_json(parsed(frame).select("n", "customer").repartition(3))


def slowly(frame: DataFrame) -> DataFrame:
    """Like `repartitioned`, but slow, so that each file of a copy takes a while."""

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            time.sleep(0.3)

    rows = repartitioned(frame)
    return rows.mapInArrow(wait, rows.schema)


def limited(frame: DataFrame) -> DataFrame:
    """The first twelve records."""
    return as_json(parsed(frame).select("n", "customer").limit(12))


def both_branches(frame: DataFrame) -> DataFrame:
    """Two rows for each record, from a union of two selections."""
    rows = parsed(frame).select("n", "customer")
    return as_json(rows).union(as_json(rows.withColumn("n", -F.col("n"))))


def joined(frame: DataFrame) -> DataFrame:
    """All records with a table's column, from a join that shuffles them."""
    session = frame.sparkSession
    table = session.range(5).select(F.concat(F.lit("c"), "id").alias("customer"), "id")
    rows = parsed(frame).select("n", "customer").join(table.hint("merge"), "customer")
    return as_json(rows.select("n", "customer", "id"))


def joined_streams(one: DataFrame, other: DataFrame) -> DataFrame:
    """Records of two streams with the same number, within a minute of each other."""
    left = parsed(one).withWatermark("at", "1 hour").alias("l")
    right = parsed(other).withWatermark("at", "1 hour").alias("r")
    near = "l.n = r.n and r.at between l.at - interval 1 minute and l.at + interval 1 minute"
    return as_json(left.join(right, F.expr(near)).select("l.n", "l.customer"))


def running_counts(frame: DataFrame) -> DataFrame:
    """Each customer's number of records so far, from the state of a user's function."""

    def count(key: Any, batches: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]

        known = state.get[0] if state.exists else 0
        known += sum(len(batch) for batch in batches)
        state.update((known,))
        yield pd.DataFrame({"customer": [key[0]], "count": [known]})

    counted = (
        parsed(frame)
        .groupBy("customer")
        .applyInPandasWithState(
            count, "customer string, count long", "count long", "update", "NoTimeout"
        )
    )
    return as_json(counted)


@dataclass(frozen=True)
class Written:
    rows: list[dict[str, Any]]  # the values, decoded, in order of partition and offset
    reports: list[BatchReport]  # one for each batch


def run_staged(
    spark: SparkSession,
    flow: Flow,
    transform: Callable[[DataFrame], DataFrame],
    mode: str = "append",
    *,
    max_offsets: int = 50,
    **options: Any,
) -> Written:
    """Runs a query over everything available."""
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**arguments(**{**flow.options(), **options}, on_batch=reports.append))
    read = {"maxOffsetsPerTrigger": str(max_offsets)}
    frame = sink.read(spark, subscribe=flow.source, options=read)
    try:
        process_available(sink.write(transform(frame)).outputMode(mode), timeout=240)
    finally:
        sink.close()
    return Written([json.loads(value) for value in flow.values()], reports)


@contextmanager
def failing_once_staged() -> Iterator[None]:
    """Makes batches fail once the staged commit names their copy."""

    def run(*_: Any) -> Any:
        raise RuntimeError("out of order")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_write_rows", run)
        with pytest.raises(Exception, match="out of order"):
            yield


def totals_of(flow: Flow) -> Counter[tuple[str, int]]:
    """The output of `totals`: the number of rows for each pair of customer and count."""
    rows = map(json.loads, flow.values())
    return Counter((row["customer"], row["count"]) for row in rows)


def staged_files(flow: Flow) -> Iterator[str]:
    from pathlib import Path

    directory = Path(flow.checkpoint) / "spark-eos" / "staged"
    return iter(sorted(path.name for path in directory.iterdir()))
