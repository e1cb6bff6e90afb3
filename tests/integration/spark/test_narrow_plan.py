"""Rows of one source partition in two tasks: refused before anything is committed, in any batch."""

import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, errors
from spark_eos._spark.classic import ClassicRuntime
from spark_eos.testing import process_available
from support.flow import Flow
from support.pipelines import viewed
from support.queries import relay, run_available, until

_EVEN, _ODD = "source.offset % 2 = 0", "source.offset % 2 = 1"


def _names(frame: DataFrame, hint: str = "broadcast") -> DataFrame:
    """A small table with the values 0 to 9, in three tasks."""
    numbers = frame.sparkSession.range(10, numPartitions=3)
    return numbers.select(F.col("id").cast("string").alias("name")).hint(hint)


def _joined(frame: DataFrame, table: DataFrame, how: str = "inner") -> DataFrame:
    on = F.col("name") == F.col("value").cast("string")
    return frame.join(table, on, how).select(*frame.columns)


def _persisted(frame: DataFrame) -> DataFrame:
    return frame.persist()


def _counted(frame: DataFrame) -> DataFrame:
    """A persisted frame that has run, so that its plan shows how Spark has adapted it."""
    frame.persist().count()
    return frame


def _foreign(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame([((_topic(frame), 0, 9**9), b"x")], frame.schema)


def _topic(frame: DataFrame) -> str:
    return str(frame.first()["source"]["topic"])  # type: ignore[index]


WIDE: Mapping[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "union": (lambda f: f.where(_EVEN).union(f.where(_ODD)), "more than once.*explode"),
    "union in one task": (
        lambda f: f.where(_EVEN).union(f.where(_ODD)).coalesce(1),
        "more than once.*explode",
    ),
    "union of what is persisted": (
        lambda f: _persisted(f).where(_EVEN).union(f.where(_ODD)),
        "more than once.*explode",
    ),
    "repartition": (lambda f: f.repartition(2), "ShuffledRowRDD"),
    "partitionBy": (
        lambda f: f.rdd.keyBy(lambda row: row.source.offset).partitionBy(3).values().toDF(f.schema),
        "ShuffledRDD|PythonRDD",
    ),
    "rdd": (lambda f: f.rdd.map(lambda row: row).toDF(f.schema), "PythonRDD.*mapInArrow"),
    "limit": (lambda f: f.limit(3), "ShuffledRowRDD"),
    "limit in one task": (lambda f: f.coalesce(1).limit(3), "Limit"),
    "aggregation in one task": (
        lambda f: (
            f.coalesce(1).groupBy("value").agg(F.max("source").alias("source")).orderBy("source")
        ),
        "aggregation|sort",
    ),
    "window in one task": (
        lambda f: f.coalesce(1).withColumn(
            "source", F.max("source").over(Window.partitionBy("value"))
        ),
        "window|sort",
    ),
    "dropDuplicates in one task": (
        lambda f: f.coalesce(1).dropDuplicates(["value"]),
        "aggregation",
    ),
    "sort in one task": (lambda f: f.coalesce(1).orderBy("value"), "a sort"),
    "aggregation that was persisted": (
        lambda f: _persisted(f.coalesce(1).groupBy("value").agg(F.max("source").alias("source"))),
        "aggregation",
    ),
    "sort-merge join": (lambda f: _joined(f, _names(f, "merge")), r"F\.broadcast"),
    "cross join": (lambda f: f.crossJoin(_names(f, "shuffle_replicate_nl")), r"F\.broadcast"),
    "the batch broadcast": (
        lambda f: _names(f, "none").join(
            F.broadcast(f), F.col("name") == F.col("value").cast("string")
        ),
        "lineage",
    ),
    "checkpoint": (lambda f: f.localCheckpoint(), "LocalCheckpointRDD.*persist"),
    "rows of elsewhere": (lambda f: f.union(_foreign(f)), "not the batch's"),
}

NARROW: list[Callable[[DataFrame], DataFrame]] = [
    lambda f: f,
    _persisted,
    lambda f: f.coalesce(1),
    lambda f: _joined(f, _names(f)),
    lambda f: _joined(f, _names(f).groupBy("name").count().hint("broadcast"), "left"),
    lambda f: f.mapInArrow(lambda batches: batches, f.schema),
    lambda f: f.withColumn("value", F.udf(lambda value: value, "binary")("value")),
    lambda f: f.select("source", F.explode(F.array("value")).alias("value")),
    lambda f: _counted(_joined(f, _names(f))),
    lambda f: f.where("1 = 0"),
]


def _written_by(
    spark: SparkSession,
    flow: Flow,
    rows_of_a_batch: int,
    function: Callable[[ExactlyOnceSink, DataFrame, int], None],
) -> None:
    """Runs a query whose batches a function is to write."""
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    options = {"maxOffsetsPerTrigger": str(rows_of_a_batch)}
    frame = sink.read(spark, subscribe=flow.source, options=options).select("source", "value")

    def batch(rows: DataFrame, batch_id: int) -> None:
        function(sink, rows, batch_id)

    try:
        process_available(sink.write(frame).foreachBatch(batch), timeout=240)
    finally:
        sink.close()


def _refusal(write: Callable[[], None], flow: Flow) -> str:
    # Not pytest.raises, whose failure would end the thread that Spark waits for.
    try:
        write()
    except errors.UnsupportedPipelineError as error:
        return f"{flow.committed()}: {error}"
    return "written"


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


SEEN = pytest.mark.parametrize("seen", [_as_it_is, viewed])
View = Callable[[DataFrame], DataFrame]


@pytest.mark.slow
@SEEN
def test_wide_batches_after_a_narrow_one(
    flow: Flow, spark_eos_session: SparkSession, seen: View
) -> None:
    flow.produce(range(16))
    refused: dict[str, str] = {}

    def function(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            for name, (transform, _) in WIDE.items():
                refused[name] = _refusal(partial(sink, seen(transform(rows)), batch_id), flow)
        sink(rows, batch_id)

    _written_by(spark_eos_session, flow, 8, function)
    for name, (_, words) in WIDE.items():
        assert re.search(rf"^\{{0: 4, 1: 4}}: .*(?:{words})", refused[name]), name
    assert sorted(map(int, flow.values())) == list(range(16))
    assert flow.open_transactions() == []


@SEEN
def test_narrow_batches_of_many_kinds(
    flow: Flow, spark_eos_session: SparkSession, seen: View
) -> None:
    flow.produce([n % 10 for n in range(2 * len(NARROW))])

    def function(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        sink(seen(NARROW[batch_id](rows)), batch_id)

    _written_by(spark_eos_session, flow, 2, function)
    # All but the last batch's.
    written = [n % 10 for n in range(2 * len(NARROW) - 2)]
    assert sorted(map(int, flow.values())) == sorted(written)
    assert flow.committed() == {0: len(NARROW), 1: len(NARROW)}


def test_a_batch_of_a_query_that_was_not_checked(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """What runs counts, not what `sink.write` was shown."""
    flow.produce(range(8))
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source)))
    split = relay(_own(spark_eos_session, flow, minPartitions="4"))
    writer = split.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query = writer.option("checkpointLocation", flow.checkpoint).start()
    with pytest.raises(StreamingQueryException, match="minPartitions"):
        query.awaitTermination()
    assert flow.written() == []


SQL = {
    "a view": "SELECT source, upper(CAST(value AS STRING)) AS value FROM {view} WHERE value <> ''",
    "a WITH clause": "WITH g AS (FROM {view}) SELECT source, value FROM g",
}


@pytest.mark.parametrize("name", [*SQL, "a table", "an argument"])
def test_streams_of_sql(flow: Flow, spark_eos_session: SparkSession, name: str) -> None:
    """They are narrow as the same DataFrames are, so they continue without a checkpoint."""

    def transform(frame: DataFrame) -> DataFrame:
        if name == "an argument":
            return frame.sparkSession.sql("SELECT source, value FROM {rows}", rows=frame)
        if name == "a table":
            relay(frame).createOrReplaceTempView("of_test_streams_of_sql")
            return frame.sparkSession.table("of_test_streams_of_sql")
        return viewed(frame, SQL[name])

    for start in range(2):
        flow.produce([f"{start}"], partition=0)
        (report,) = run_available(spark_eos_session, flow, transform)
        assert report.delivery == "direct"
        shutil.rmtree(flow.checkpoint)
    assert sorted(flow.values()) == ["0", "1"]


def test_a_clause_that_is_read_twice(flow: Flow, spark_eos_session: SparkSession) -> None:
    text = "WITH g AS (FROM {view}) SELECT * FROM g WHERE 1 = 1 UNION ALL SELECT * FROM g"
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    frame = relay(sink.read(spark_eos_session, subscribe=flow.source))
    with pytest.raises(errors.UnsupportedPipelineError, match="more than once"):
        sink.write(viewed(frame, text))
    sink.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.maxPlanStringLength": "500"},
        {"spark.sql.maxPlanStringLength": "4k", "spark.sql.debug.maxToStringFields": "1"},
    ],
)
def test_plans_that_spark_prints_in_part(
    flow: Flow, spark_eos_session: SparkSession, settings: dict[str, str]
) -> None:
    flow.produce(["a"], partition=0)
    for name, text in settings.items():
        spark_eos_session.conf.set(name, text)
    try:
        (report,) = run_available(spark_eos_session, flow)
        sink = ExactlyOnceSink(**flow.options(), delivery="direct")
        frame = relay(sink.read(spark_eos_session, subscribe=flow.source))
        with pytest.raises(errors.UnsupportedPipelineError, match="a sort"):
            sink.write(frame.sortWithinPartitions("value"))
        sink.close()
        assert {name: spark_eos_session.conf.get(name) for name in settings} == settings
    finally:
        for name in settings:
            spark_eos_session.conf.unset(name)
    assert (report.delivery, flow.values()) == ("direct", ["a"])


# What is read -------------------------------------------------------------------------------------


def _own(spark: SparkSession, flow: Flow, **options: str) -> DataFrame:
    """The source topic as a user may read it, without spark-eos."""
    chosen = {
        "kafka.bootstrap.servers": flow.bootstrap_servers,
        "subscribe": flow.source,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        **options,
    }
    frame = spark.readStream.format("kafka").options(**chosen).load()
    return frame.withColumn("source", F.struct("topic", "partition", "offset"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.isolation.level": "read_uncommitted"}, "'kafka.isolation.level' is 'read_uncom"),
        ({"minPartitions": "4"}, "'minPartitions'"),
        ({"MAXRECORDSPERPARTITION": "4"}, "'maxRecordsPerPartition'"),
        ({"failOnDataLoss": "FALSE"}, r"'failOnDataLoss'.*sink\.read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_source_options(
    flow: Flow, spark_eos_session: SparkSession, options: dict[str, str], words: str
) -> None:
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    with pytest.raises(errors.UnsupportedPipelineError, match=words):
        sink.write(relay(_own(spark_eos_session, flow, **options)))


def test_a_source_that_is_not_kafkas(flow: Flow, spark_eos_session: SparkSession) -> None:
    rate = spark_eos_session.readStream.format("rate").load()
    source = F.struct(
        F.lit(flow.source).alias("topic"),
        F.lit(0).alias("partition"),
        F.col("value").alias("offset"),
    )
    frame = rate.select(source.alias("source"), F.lit("x").alias("value"))
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    with pytest.raises(errors.UnsupportedPipelineError, match=r"from 'rate.*sink\.read"):
        sink.write(frame)


@pytest.mark.parametrize("twice", ["one DataFrame", "two of one topic", "a pattern beside it"])
def test_a_topic_that_is_read_twice(
    flow: Flow, spark_eos_session: SparkSession, twice: str
) -> None:
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    one = relay(sink.read(spark_eos_session, subscribe=flow.source))
    other = {
        "one DataFrame": lambda: one.where("source.offset > 3"),
        "two of one topic": lambda: relay(
            sink.read(spark_eos_session, subscribe=f"{flow.target},{flow.source}")
        ),
        "a pattern beside it": lambda: relay(
            sink.read(spark_eos_session, subscribePattern=f"{flow.target}.*")
        ),
    }[twice]()
    with pytest.raises(errors.UnsupportedPipelineError, match="more than once"):
        sink.write(one.union(other))


def test_aborted_records_of_the_source(flow: Flow, spark_eos_session: SparkSession) -> None:
    producer = Producer({**flow.kafka, "transactional.id": f"aborting-{flow.name}"})
    producer.init_transactions(60)
    for value, end in (("a", producer.abort_transaction), ("c", producer.commit_transaction)):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(flow.source, value, partition=0)
        producer.flush(60)
        end(20)
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    frame = _own(spark_eos_session, flow, **{"kafka.isolation.level": "read_committed"})
    process_available(sink.write(relay(frame)), timeout=240)
    sink.close()
    assert flow.values() == ["c"] * 5

    reader: Any = spark_eos_session.readStream.format("kafka").option("subscribe", flow.source)
    uncommitted = reader.option("kafka.bootstrap.servers", flow.bootstrap_servers).load()
    uncommitted = uncommitted.withColumn("source", F.struct("topic", "partition", "offset"))
    with pytest.raises(
        errors.UnsupportedPipelineError, match=r"'kafka\.isolation\.level' is missing"
    ):
        sink.write(relay(uncommitted))


# One sink, one query ------------------------------------------------------------------------------


def test_a_sinks_second_query_is_refused_while_the_first_is_active(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    """Spark would take it for the first one's next run, and stop that without an error."""
    flow, other = new_flow(), new_flow()
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    first = sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source)))
    second = sink.write(relay(sink.read(spark_eos_session, subscribe=other.source)))
    flow.produce(range(4))
    query = first.start()
    try:
        with pytest.raises(errors.UnsupportedPipelineError, match="a sink serves one query"):
            second.start()
        until(lambda: len(flow.values()) == 4, lambda: "the first query's rows")
        assert query.isActive
        query.stop()
        flow.produce(range(4, 8))
        query = first.start()
        until(lambda: len(flow.values()) == 8, lambda: "its rows after a second start")
    finally:
        query.stop()
        sink.close()
    run_available(spark_eos_session, flow)
    assert sorted(map(int, flow.values())) == list(range(8))


@pytest.mark.parametrize("whose", ["the query's", "the sink's"])
def test_a_first_batch_without_rows_in_one_task(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Of no partitions at all, coalesce makes one."""
    if whose == "the sink's":
        # As with local[1].
        monkeypatch.setattr(ClassicRuntime, "cores", lambda _: 1)

    def pipeline(frame: DataFrame) -> DataFrame:
        return relay(frame).coalesce(1) if whose == "the query's" else relay(frame)

    flow.produce(range(4))
    latest = {"starting_offsets": "latest"}
    run_available(spark_eos_session, flow, pipeline, read=latest)
    assert flow.committed() == {0: 2, 1: 2}
    flow.produce(range(4, 8))
    run_available(spark_eos_session, flow, pipeline, read=latest)
    assert sorted(flow.values()) == ["4", "5", "6", "7"]
