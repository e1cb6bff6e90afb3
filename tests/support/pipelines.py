"""Pipelines of test queries, by name, since another process may start the query.

Each pipeline turns its sources, which are read with headers, into the DataFrame to write.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def relay(frame: DataFrame) -> DataFrame:
    return frame.select("source", "key", "value", "headers", "timestamp", "partition")


def positioned(frame: DataFrame) -> DataFrame:
    """Adds a header with the source record's position, for the verifier."""
    position = F.format_string("%s:%d:%d", "source.topic", "source.partition", "source.offset")
    header = F.struct(F.lit("src").alias("key"), F.encode(position, "UTF-8").alias("value"))
    return frame.select("source", "key", "value", F.array(header).alias("headers"))


def long_words(frame: DataFrame) -> DataFrame:
    """Values of more than two bytes, in upper case."""
    text = F.col("value").cast("string")
    return frame.where(F.length(text) > 2).select("source", F.upper(text).alias("value"))


def letters(frame: DataFrame) -> DataFrame:
    """A row for each character of a value."""
    return frame.select(
        "source", F.explode(F.split(F.col("value").cast("string"), "")).alias("value")
    )


def united(*frames: DataFrame) -> DataFrame:
    """All sources' rows, in one task."""
    first, *others = [frame.select("source", "key", "value") for frame in frames]
    for other in others:
        first = first.unionByName(other)
    return first.coalesce(1)


def held(frame: DataFrame, go: str) -> DataFrame:
    """Waits at the value "hold" until a file appears; see `waiting`."""
    return waiting(frame.select("source", "key", "value"), go, "hold")


def failing(frame: DataFrame, tripped: str, go: str | None = None) -> DataFrame:
    """Raises at the first value "fail" and leaves a file; waits for another file before that."""

    def fail() -> None:
        if not Path(tripped).exists():
            while go is not None and not Path(go).exists():
                time.sleep(0.02)
            Path(tripped).touch()
            raise ValueError("the user's own error")

    return _at_row(frame.select("source", "key", "value"), b"fail", fail)


def forgotten(frame: DataFrame, *, fails: bool = False) -> DataFrame:
    """Drops the source column; fails in each attempt if requested."""
    value = F.raise_error(F.lit("the user's own error")).cast("string") if fails else F.col("value")
    return frame.select("key", value.alias("value"))


def routed(frame: DataFrame, to: str, *, shuffled: bool = False) -> DataFrame:
    """Rows for the topic that an expression names."""
    rows = frame.select("source", "key", "value", F.expr(to).cast("string").alias("topic"))
    return rows.repartition(2) if shuffled else rows


def rejected(frame: DataFrame) -> DataFrame:
    """Rows that must all become dead letters."""
    return frame.select("source", "key", "value", F.lit("no").alias("error"))


def waiting(frame: DataFrame, go: str, value: str, *, once: bool = False) -> DataFrame:
    """Makes the task that reaches a value wait until a file appears.

    While it waits, it touches ``<go>.waiting``. With ``once``, only the first task that reaches the
    value waits, but no copy of a task: on a slow machine, a copy may be there first.
    """

    def wait() -> None:
        context = TaskContext.get()
        is_copy = context is not None and context.attemptNumber() > 0
        if once and (is_copy or Path(f"{go}.waiting").exists()):
            return
        while not Path(go).exists():
            Path(f"{go}.waiting").touch()
            time.sleep(0.02)

    return _at_row(frame, value.encode(), wait)


def _at_row(frame: DataFrame, value: bytes, act: Callable[[], None]) -> DataFrame:
    def watch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if value in batch.column("value").to_pylist():
                act()
            yield batch

    return frame.mapInArrow(watch, frame.schema)


def priced(
    frame: DataFrame,
    url: str,
    subject: str,
    to: str,
    message: str | None = None,
    errors: str | None = None,
) -> DataFrame:
    """Reads orders and writes prices with schemas of a registry."""
    from spark_eos.schemas import SchemaRegistry

    registry = SchemaRegistry({"url": url})
    orders = registry.decode(frame, subject=subject, message=message, errors=errors)
    price = F.struct("value.id", F.round(F.col("value.amount") * 100).cast("long").alias("cents"))
    rows = orders.withColumn("value", F.when(F.col("value").isNotNull(), price))
    asked = ["error"] if errors == "column" else []
    return registry.encode(rows.select("source", "key", "value", *asked), subject=to)


def viewed(frame: DataFrame, text: str = "FROM {view}") -> DataFrame:
    """Rows as SQL of a temporary view."""
    name = f"v{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    return frame.sparkSession.sql(text.format(view=name))


PIPELINES: dict[str, Callable[..., Any]] = {
    pipeline.__name__: pipeline
    for pipeline in (
        relay,
        positioned,
        long_words,
        letters,
        united,
        held,
        failing,
        forgotten,
        routed,
        rejected,
        priced,
    )
}
