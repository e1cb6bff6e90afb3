"""The streaming queries compared, which all read the same topic in one Spark session."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos import BatchReport, ExactlyOnceSink, ExactlyOnceWriter
from spark_eos._client.settings import ClientSettings

Writer = DataStreamWriter | ExactlyOnceWriter

_COUNT_DDL = "rows long"
_NOTHING = {"batchId": -1}


@dataclass(frozen=True)
class Arena:
    """A contestant's topics and options.

    Attributes:
        spark: The session.
        bootstrap_servers: The broker's address.
        source: Topic to read, from its beginning.
        target: Topic to write, empty.
        directory: Directory for checkpoints.
        header: Whether headers are copied.
        timestamp: Whether spark-eos copies timestamps, which Spark's own sink can't write.
        most: Maximum number of records per trigger; None for no limit.
        batches: Number of triggers measured. None of them should reach the end of the topic,
            where Spark's source waits (`spark_eos._client.settings` explains why).
        asynchronous: Whether Spark tracks the query's progress asynchronously.
        other_servers: The address of another cluster with the same records, if there is one.
        other_topic: Creates a topic for dead letters, and returns its name.
        registry: The address of the schema registry, if records have a schema.
        warmed: Called once the first batch is done.
    """

    spark: SparkSession
    bootstrap_servers: str
    source: str
    target: str
    directory: Path
    header: bool
    most: int | None
    batches: int
    asynchronous: bool = False
    timestamp: bool = False
    other_servers: str = ""
    other_topic: Callable[[], str] = str
    registry: str = ""
    warmed: Callable[[], None] = lambda: None

    @property
    def checkpoint(self) -> str:
        """The checkpoint, one per target."""
        return str(self.directory / f"checkpoint-{self.target}")

    @property
    def reading(self) -> dict[str, str]:
        """Options of the source other than servers and topics."""
        return {} if self.most is None else {"maxOffsetsPerTrigger": str(self.most)}

    @property
    def columns(self) -> list[str]:
        """The columns copied."""
        return ["key", "value", *(["headers"] if self.header else [])]

    def read(self, *, as_we_do: bool) -> DataFrame:
        """Read the source with Spark's defaults or spark-eos's client settings."""
        servers = {"bootstrap.servers": self.bootstrap_servers}
        options = {
            **(
                ClientSettings(servers).for_spark_source()
                if as_we_do
                else {f"kafka.{name}": value for name, value in servers.items()}
            ),
            "subscribe": self.source,
            "startingOffsets": "earliest",
            "includeHeaders": str(self.header).lower(),
            **self.reading,
        }
        frame = self.spark.readStream.format("kafka").options(**options).load()
        return frame.select(*self.columns)


@dataclass
class Trial:
    """One run of one contestant.

    Attributes:
        progress: Spark's progress for batches with rows.
        reports: spark-eos's reports.
    """

    progress: list[dict[str, Any]]
    reports: list[BatchReport] = field(default_factory=list)

    @property
    def trigger_ms(self) -> list[float]:
        """Milliseconds of each trigger."""
        return [float(p["durationMs"]["triggerExecution"]) for p in self.progress]

    def rows(self, first: int) -> int:
        """Return the number of records read from trigger ``first`` on."""
        return sum(int(p["numInputRows"]) for p in self.progress[first:])

    def rows_per_second(self, first: int) -> float:
        """Return rows per second over all triggers from ``first`` on."""
        return self.rows(first) / sum(self.trigger_ms[first:]) * 1000


def run_and_stop(writer: Writer, arena: Arena) -> Trial:
    """Run a query; stop before the last batch, which waits 1 s per partition by default."""
    query = writer.option("checkpointLocation", arena.checkpoint).start()
    for last, warmed in ((0, arena.warmed), (arena.batches - 1, lambda: None)):
        while query.isActive and (query.lastProgress or _NOTHING)["batchId"] < last:
            time.sleep(0.02)
        warmed()
    if (error := query.exception()) is not None:
        raise error
    query.stop()
    return _trial(query, arena)


def _trial(query: StreamingQuery, arena: Arena) -> Trial:
    return Trial([_plain(p) for p in query.recentProgress if p["numInputRows"]][: arena.batches])


def _plain(progress: Any) -> dict[str, Any]:
    return {"numInputRows": progress["numInputRows"], "durationMs": dict(progress["durationMs"])}


def our_sink(
    arena: Arena, on_batch: Callable[[BatchReport], None] | None = None, **more: Any
) -> ExactlyOnceSink:
    """Return the measured sink, with further arguments if there are any."""
    return ExactlyOnceSink(
        kafka={"bootstrap.servers": arena.bootstrap_servers},
        group_id=arena.target,
        topic=arena.target,
        checkpoint_location=arena.checkpoint,
        asynchronous_progress=arena.asynchronous,
        on_batch=on_batch,
        **more,
    )


def our_writer(
    sink: ExactlyOnceSink, arena: Arena, shape: Callable[[DataFrame], DataFrame] | None = None
) -> ExactlyOnceWriter:
    """Return spark-eos's query without a trigger: a relay, or a query of another shape."""
    frame = sink.read(
        arena.spark,
        subscribe=arena.source,
        include_headers=arena.header,
        options=arena.reading,
    )
    own = ["timestamp"] if arena.timestamp else []
    relay = frame.select("source", *arena.columns, *own)
    return sink.write(relay if shape is None else shape(frame))


def own_writer(arena: Arena, *, as_we_do: bool = False) -> DataStreamWriter:
    """Return the same query with Spark's own Kafka sink, at-least-once."""
    options = {
        "kafka.bootstrap.servers": arena.bootstrap_servers,
        "topic": arena.target,
        "asyncProgressTrackingEnabled": str(arena.asynchronous).lower(),
    }
    return arena.read(as_we_do=as_we_do).writeStream.format("kafka").options(**options)


def spark_eos(
    arena: Arena, shape: Callable[[DataFrame], DataFrame] | None = None, **more: Any
) -> Trial:
    """Run spark-eos, with further arguments for the sink if there are any."""
    reports: list[BatchReport] = []
    sink = our_sink(arena, reports.append, **more)
    trial = run_and_stop(our_writer(sink, arena, shape), arena)
    sink.close()
    return Trial(trial.progress, reports[: arena.batches])


def sparks_own(arena: Arena, *, as_we_do: bool = False) -> Trial:
    """Run Spark's own Kafka sink, at-least-once."""
    return run_and_stop(own_writer(arena, as_we_do=as_we_do), arena)


def _asynchronously(run: Callable[[Arena], Trial], arena: Arena) -> Trial:
    return run(replace(arena, asynchronous=True))


def read_only(arena: Arena) -> Trial:
    """Write nothing: the lower bound for everything that reads with Spark."""
    return run_and_stop(arena.read(as_we_do=True).writeStream.format("noop"), arena)


def empty_batch(arena: Arena) -> Trial:
    """Read rows in a foreachBatch function that drops them: what any such function costs."""

    def batch(frame: DataFrame, _batch_id: int) -> None:
        frame.write.format("noop").mode("append").save()

    return run_and_stop(arena.read(as_we_do=True).writeStream.foreachBatch(batch), arena)


def arrow_only(arena: Arena) -> Trial:
    """Send rows to Python and drop them: the lower bound for everything that writes from Python."""

    def drop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    def batch(frame: DataFrame, _batch_id: int) -> None:
        frame.mapInArrow(drop, _COUNT_DDL).collect()

    return run_and_stop(arena.read(as_we_do=True).writeStream.foreachBatch(batch), arena)


EQUAL: Final = "Spark's own sink, equal read settings"
SHIPPED: Final = "Spark's own sink, as shipped"
OURS: Final = "spark-eos"
EMPTY: Final = "foreachBatch, nothing written"
BASES: Final = (EQUAL, SHIPPED)
"""The bases of comparison; the first one is the fair one."""
BATCHES: Final[dict[str, Callable[[Arena], Trial]]] = {
    EQUAL: partial(sparks_own, as_we_do=True),
    SHIPPED: sparks_own,
    OURS: spark_eos,
}
SMALL_BATCHES: Final[dict[str, Callable[[Arena], Trial]]] = {
    **BATCHES,
    EMPTY: empty_batch,
    "Spark's own sink, asynchronous": partial(_asynchronously, partial(sparks_own, as_we_do=True)),
    "spark-eos, asynchronous_progress": partial(_asynchronously, spark_eos),
}
BOUNDS: Final[dict[str, Callable[[Arena], Trial]]] = {
    "Spark, nothing written": read_only,
    "Arrow, nothing written": arrow_only,
}
