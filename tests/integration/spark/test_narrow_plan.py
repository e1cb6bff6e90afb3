"""Rows of one source partition in two tasks are refused before anything is committed."""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink, errors
from spark_eos._spark.classic import ClassicRuntime
from spark_eos._spark.columns import SOURCES_OWN
from spark_eos._spark.narrow_plan import check_stream, explained, with_own_topic_marked
from spark_eos.testing import process_available
from support.flow import Flow
from support.queries import Function, relay, run_available, until

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
    """A persisted frame that has run, so that its plan shows Spark's adaptive changes."""
    frame.persist().count()
    return frame


def _foreign(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame([((_topic(frame), 0, 9**9), b"x")], frame.schema)


def _by_sql(frame: DataFrame, query: str = "SELECT * FROM {v}") -> DataFrame:
    """The same rows, from a temporary view."""
    name = f"view_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    return frame.sparkSession.sql(query.replace("{v}", name))


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


def _written_by(spark: SparkSession, flow: Flow, rows_of_a_batch: int, function: Function) -> None:
    """Runs a query whose batches are written by a function."""
    read = {"options": {"maxOffsetsPerTrigger": str(rows_of_a_batch)}}
    run_available(
        spark,
        flow,
        lambda frame: frame.select("source", "value"),
        read=read,
        function=function,
        delivery="direct",
    )


def _refusal(write: Callable[[], None], flow: Flow) -> str:
    # Not pytest.raises, whose failure would end the thread that Spark waits for.
    try:
        write()
    except errors.UnsupportedPipelineError as error:
        return f"{flow.committed()}: {error}"
    return "written"


@pytest.mark.slow
def test_wide_batches_after_a_narrow_one(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(16))
    refused: dict[str, str] = {}

    def function(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            for name, (transform, _) in WIDE.items():
                refused[name] = _refusal(partial(sink, transform(rows), batch_id), flow)
                made = _by_sql(transform(_by_sql(rows)))
                refused[f"{name}, by SQL"] = _refusal(partial(sink, made, batch_id), flow)
        sink(rows, batch_id)

    _written_by(spark_eos_session, flow, 8, function)
    for name, text in refused.items():
        words = WIDE[name.removesuffix(", by SQL")][1]
        assert re.search(rf"^\{{0: 4, 1: 4}}: .*(?:{words})", text), name
    assert sorted(map(int, flow.values())) == list(range(16))
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_narrow_batches_of_many_kinds(flow: Flow, spark_eos_session: SparkSession) -> None:
    batches = 2 * len(NARROW)
    flow.produce([n % 10 for n in range(2 * batches)])

    def function(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        transform = NARROW[batch_id // 2]
        by_sql = batch_id % 2 == 1
        sink(_by_sql(transform(_by_sql(rows))) if by_sql else transform(rows), batch_id)

    _written_by(spark_eos_session, flow, 2, function)
    # All but the last two batches'.
    written = [n % 10 for n in range(2 * batches - 4)]
    assert sorted(map(int, flow.values())) == sorted(written)
    assert flow.committed() == {0: batches, 1: batches}


def test_a_query_that_the_sink_has_not_started(flow: Flow, spark_eos_session: SparkSession) -> None:
    """Its plan is not the one that `sink.write` has seen."""
    flow.produce(range(8))
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source)))
    split = relay(_own(spark_eos_session, flow, minPartitions="4"))
    writer = split.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query = writer.option("checkpointLocation", flow.checkpoint).start()
    with pytest.raises(StreamingQueryException, match=r"start the query from sink\.write"):
        query.awaitTermination()
    assert flow.written() == []


def test_single_partition_steps_are_seen_even_in_short_plans(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(4))
    refused: list[str] = []

    def function(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        with _printing_little(rows.sparkSession):
            ordered = rows.coalesce(1).orderBy("value").where("source.offset >= 0")
            refused.append(_refusal(partial(sink, ordered, batch_id), flow))
            sink(rows, batch_id)

    _written_by(spark_eos_session, flow, 4, function)
    assert "a sort" in refused[0]
    assert len(flow.values()) == 4


# Plans of streams ---------------------------------------------------------------------------------

_UPPER = (
    "SELECT source, key, upper(CAST(value AS STRING)) AS value FROM {v} WHERE value IS NOT NULL"
)
STREAMS: Mapping[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "as it is": (lambda f: f, ""),
    "SELECT": (lambda f: _by_sql(f, _UPPER), ""),
    "WITH": (
        lambda f: _by_sql(f, "WITH w AS (SELECT * FROM {v}) SELECT * FROM w WHERE key IS NULL"),
        "",
    ),
    "a parameter": (lambda f: f.sparkSession.sql("SELECT * FROM {v}", v=f), ""),
    "a table": (lambda f: f.sparkSession.table(_named(f)), ""),
    "a view of SQL": (lambda f: _by_sql(f, "SELECT * FROM {v}").where("value > 'a'"), ""),
    "explode": (lambda f: f.select("source", F.explode(F.array("value")).alias("value")), ""),
    "mapInArrow": (lambda f: f.mapInArrow(lambda batches: batches, f.schema), ""),
    "coalesce": (lambda f: f.coalesce(1), ""),
    "a broadcast join": (lambda f: _joined(f, _names(f)), ""),
    "a branch that yields no row": (
        lambda f: f.union(_kafka(f.sparkSession, "u").select(*f.columns).where("1 = 0")),
        "",
    ),
    "a hint": (
        lambda f: _by_sql(
            f,
            "SELECT /*+ BROADCAST(t) */ source, value FROM {v} JOIN VALUES ('a') AS t(n) "
            "ON CAST(value AS STRING) = n",
        ),
        "",
    ),
    "ORDER BY": (lambda f: _by_sql(f, "SELECT * FROM {v} ORDER BY value"), r"a (shuffle|sort)"),
    "GROUP BY": (
        lambda f: _by_sql(f, "SELECT max(source) AS source, value FROM {v} GROUP BY value"),
        "(StateStore|Aggregate|Exchange)",
    ),
    "DISTINCT": (lambda f: _by_sql(f, "SELECT DISTINCT value FROM {v}"), "a shuffle|state|aggr"),
    "repartition": (lambda f: f.repartition(2), "a shuffle"),
    "a merge join": (lambda f: _joined(f, _names(f, "merge")), r"F\.broadcast"),
    "a union": (lambda f: _by_sql(f, "SELECT * FROM {v} UNION ALL SELECT * FROM {v}"), "than once"),
    "WITH, twice": (
        lambda f: _by_sql(
            f, "WITH w AS (SELECT * FROM {v}) SELECT * FROM w UNION ALL SELECT * FROM w"
        ),
        "more than once",
    ),
}


def _named(frame: DataFrame) -> str:
    frame.createOrReplaceTempView("a_stream_of_a_test")
    return "a_stream_of_a_test"


@contextmanager
def _printing_little(spark: SparkSession) -> Iterator[None]:
    """With settings that truncate the plans that Spark prints."""
    settings = {"spark.sql.maxPlanStringLength": "100", "spark.sql.debug.maxToStringFields": "1"}
    for name, text in settings.items():
        spark.conf.set(name, text)
    try:
        yield
        assert {name: spark.conf.get(name) for name in settings} == settings
    finally:
        for name in settings:
            spark.conf.unset(name)


def _kafka(spark: SparkSession, topic: str = "t", **more: str) -> DataFrame:
    """A stream that is never started, so it needs no broker."""
    options = {"subscribe": topic, "kafka.isolation.level": "read_committed", **more}
    reader = spark.readStream.format("kafka").options(**options)
    frame = reader.option("kafka.bootstrap.servers", "127.0.0.1:1").load()
    return frame.withColumn("source", F.struct("topic", "partition", "offset"))


def _judged(frame: DataFrame) -> str:
    try:
        check_stream(frame, explained(frame), lineage_follows=True)
    except errors.UnsupportedPipelineError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", STREAMS)
def test_a_frame_of_sql_is_judged_as_one_by_methods(
    spark_eos_session: SparkSession, pipeline: str
) -> None:
    transform, words = STREAMS[pipeline]
    rows = _kafka(spark_eos_session).select("source", "key", "value")
    by_methods = _judged(transform(rows))
    assert re.search(words, by_methods) if words else by_methods == "", by_methods
    viewed = _by_sql(transform(_by_sql(rows)))
    assert _judged(viewed) == by_methods
    with _printing_little(spark_eos_session):
        assert _judged(viewed) == by_methods


@pytest.mark.parametrize("by", ["methods", "SQL", "a view of SQL", "WITH"])
def test_the_sources_topic_is_known_by_sql_too(spark_eos_session: SparkSession, by: str) -> None:
    frame = _kafka(spark_eos_session)
    if by == "SQL":
        frame = _by_sql(frame, "SELECT source, value, topic FROM {v}")
    if by == "WITH":
        frame = _by_sql(frame, "WITH w AS (SELECT * FROM {v}) SELECT topic, value FROM w")
    if by == "a view of SQL":
        create = "CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM {v}"
        for name in ("first_of_a_test", "second_of_a_test"):
            _by_sql(frame, create.replace("{name}", name))
            frame = spark_eos_session.table(name)
    with _printing_little(spark_eos_session):
        assert with_own_topic_marked(frame).schema["topic"].metadata == SOURCES_OWN
    chosen = _by_sql(frame, "SELECT value, CAST(topic AS STRING) AS topic FROM {v}")
    assert with_own_topic_marked(chosen).schema["topic"].metadata == {}


def test_the_sources_topic_is_known_after_an_option_of_several_lines(
    spark_eos_session: SparkSession,
) -> None:
    pem = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
    frame = _kafka(spark_eos_session, **{"kafka.ssl.truststore.certificates": pem})
    assert with_own_topic_marked(frame).schema["topic"].metadata == SOURCES_OWN


# What is read -------------------------------------------------------------------------------------


def _own(spark: SparkSession, flow: Flow, **options: str) -> DataFrame:
    """The source topic as a user may read it without spark-eos."""
    chosen = {
        "kafka.bootstrap.servers": flow.bootstrap_servers,
        "subscribe": flow.source,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        **options,
    }
    frame = spark.readStream.format("kafka").options(**chosen).load()
    return frame.withColumn("source", F.struct("topic", "partition", "offset"))


# One sink, one query ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_query_of_a_sink_is_refused_while_one_is_active(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    """Spark would consider it the first query's next run, and stop that one without an error."""
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


@pytest.mark.slow
def test_a_start_is_the_start_of_its_own_writer(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow, other = new_flow(), new_flow()
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**flow.options(), on_batch=reports.append)
    first = sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source)))
    shuffled = relay(sink.read(spark_eos_session, subscribe=other.source)).repartition(2)
    flow.produce(range(4))
    query = first.trigger(availableNow=True).start()
    # As when a notebook's next cell runs before the first batch.
    sink.write(shuffled)
    with closing(sink):
        assert query.awaitTermination(60)
    assert [report.delivery for report in reports] == ["direct"]
    assert sorted(map(int, flow.values())) == list(range(4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "whose", [pytest.param("the query's", marks=pytest.mark.slow), "the sink's"]
)
def test_a_first_batch_without_rows_in_one_task(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """For a frame without partitions, coalesce makes one."""
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


@pytest.mark.slow
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
