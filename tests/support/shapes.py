"""Queries of every shape that must be staged, and a batch query's results for the same input.

`support.shapes_main` runs each shape in its own process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_eos import ExactlyOnceSink
from support import staging
from support.staging import parsed

Transform = Callable[..., DataFrame]
# Streams that a shape reads, given the session, its sink, the topic or directory, and options.
Frames = Callable[[SparkSession, ExactlyOnceSink, str, dict[str, str]], list[DataFrame]]


def _one(
    spark: SparkSession, sink: ExactlyOnceSink, source: str, options: dict[str, str]
) -> list[DataFrame]:
    return [sink.read(spark, subscribe=source, options=options)]


def _two(
    spark: SparkSession, sink: ExactlyOnceSink, source: str, options: dict[str, str]
) -> list[DataFrame]:
    return _one(spark, sink, source, options) + _one(spark, sink, source, options)


def _split(
    spark: SparkSession, sink: ExactlyOnceSink, source: str, options: dict[str, str]
) -> list[DataFrame]:
    """Uses more tasks than partitions, which the sink's own reader refuses."""
    given = {
        "kafka.bootstrap.servers": sink._settings.client.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": source,
        "startingOffsets": "earliest",
        "minPartitions": "5",
        **options,
    }
    return [spark.readStream.format("kafka").options(**given).load()]


def _files(
    spark: SparkSession, sink: ExactlyOnceSink, source: str, options: dict[str, str]
) -> list[DataFrame]:
    del sink, options
    reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", "1")
    return [reader.text(source)]


def _made_up(
    spark: SparkSession, sink: ExactlyOnceSink, source: str, options: dict[str, str]
) -> list[DataFrame]:
    del sink, source, options
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 30)
    return [reader.option("numPartitions", 2).load()]


def counted(frame: DataFrame) -> DataFrame:
    counts = parsed(frame).groupBy("customer").agg(F.count(F.lit(1)).alias("count"))
    return staging.as_json(counts)


def distinct_keys(frame: DataFrame) -> DataFrame:
    """The output of `support.staging.deduplicated`, without its watermark."""
    return staging.as_json(parsed(frame).select((F.col("n") % 20).alias("key")).distinct(), "key")


def as_they_are(frame: DataFrame) -> DataFrame:
    """The number and customer of each record."""
    return staging.as_json(parsed(frame).select("n", "customer"))


def some(frame: DataFrame) -> DataFrame:
    """The first hundred records."""
    return as_they_are(frame).limit(100)


def numbers(frame: DataFrame) -> DataFrame:
    """The numbers of generated rows, shuffled."""
    return staging.as_json(frame.select(F.col("value").alias("n")).repartition(2), "n")


class _Counting(StatefulProcessor):
    """Counts a customer's records, for ``transformWithState``."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Any]:
        import pandas as pd  # type: ignore[import-untyped]

        del timerValues
        (known,) = self._count.get() or (0,)
        known += sum(len(each) for each in rows)
        self._count.update((known,))
        yield pd.DataFrame({"customer": [key[0]], "count": [known]})

    def close(self) -> None:
        pass


def processed(frame: DataFrame) -> DataFrame:
    """Each customer's number of records so far, from a processor's state."""
    counts = (
        parsed(frame)
        .groupBy("customer")
        .transformWithStateInPandas(_Counting(), "customer string, count long", "update", "none")
    )
    return staging.as_json(counts)


@dataclass(frozen=True)
class Shape:
    transform: Transform  # turns the shape's streams into rows
    # Makes the same rows from all input at once; None for ``transform`` itself.
    batch: Transform | None = None
    mode: str = "append"  # the query's output mode
    by_key: bool = False  # whether a row replaces the previous row with its key
    frames: Frames = _one  # the streams that it reads
    config: dict[str, str] = field(default_factory=dict)  # further settings of Spark
    windows: bool = False  # whether rows are written when windows are closed

    @property
    def reads_files(self) -> bool:
        """True if the source is a directory instead of a topic."""
        return self.frames is _files

    def expected(self, frame: DataFrame) -> DataFrame:
        number = 2 if self.frames is _two and self.batch is None else 1
        return (self.batch or self.transform)(*[frame] * number)


_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
SHAPES = {
    "aggregation, append": Shape(staging.windows, windows=True),
    "aggregation, update": Shape(counted, mode="update", by_key=True),
    "aggregation in order, complete": Shape(staging.ranking, mode="complete", by_key=True),
    "join with a table": Shape(staging.joined),
    "join of streams": Shape(staging.joined_streams, frames=_two),
    "duplicates dropped": Shape(staging.deduplicated, distinct_keys),
    "state in pandas": Shape(staging.running_counts, counted, mode="update", by_key=True),
    "state of a processor": Shape(processed, counted, mode="update", by_key=True, config=_ROCKSDB),
    "repartition": Shape(staging.repartitioned),
    "two branches": Shape(staging.both_branches),
    "split partitions": Shape(as_they_are, frames=_split),
    "files": Shape(as_they_are, frames=_files),
}
# These shapes have rows that can't be predicted.
UNFORESEEN = {
    "limit": Shape(some),
    "rate": Shape(numbers, frames=_made_up),
}
