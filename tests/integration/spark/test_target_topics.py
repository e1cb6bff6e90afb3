"""Rows never go back to the topics that they were read from, whatever the query's delivery."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink
from spark_eos._spark.columns import SOURCES_OWN, check_target
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.testing import process_available
from support.apis import Queries, patiently
from support.flow import Flow
from support.mirroring import MirroredFlow
from support.queries import run_available
from support.sinks import arguments


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _own_reader(frame: DataFrame, servers: str, source: str) -> DataFrame:
    options = {"subscribe": source, "kafka.isolation.level": "read_committed"}
    reader = frame.sparkSession.readStream.format("kafka").options(**options)
    found = reader.option("kafka.bootstrap.servers", servers).load()
    return found.withColumn("source", F.struct("topic", "partition", "offset"))


def _as_read(frame: DataFrame, *_: str) -> DataFrame:
    return frame.drop("partition")


def _shuffled(frame: DataFrame, *_: str) -> DataFrame:
    return _as_read(frame).repartition(2, "key")


def _own_reader_shuffled(frame: DataFrame, servers: str, source: str) -> DataFrame:
    return _shuffled(_own_reader(frame, servers, source))


def _mapped_and_shuffled(frame: DataFrame, *_: str) -> DataFrame:
    rows = _as_read(frame)
    return _shuffled(rows.mapInArrow(_unchanged, rows.schema))


def _computed(frame: DataFrame, *_: str) -> DataFrame:
    return _as_read(frame).withColumn("topic", F.trim("topic"))


SHAPES: dict[str, Callable[..., DataFrame]] = {
    shape.__name__: shape
    for shape in (_as_read, _shuffled, _own_reader_shuffled, _mapped_and_shuffled, _computed)
}
IN_A_FUNCTION = "in a function"


def _error(
    session: SparkSession, options: dict[str, Any], servers: str, source: str, shape: str
) -> str:
    """The error that ends a query with the source's `topic` column."""
    sink = ExactlyOnceSink(**arguments(**options))
    read = sink.read(session, subscribe=source)
    with closing(sink):
        if shape == IN_A_FUNCTION:
            writer = sink.write(_as_read(read)).foreachBatch(lambda f, n: sink(_shuffled(f), n))
        else:
            writer = sink.write(SHAPES[shape](read, servers, source))
        with pytest.raises((UnsupportedPipelineError, StreamingQueryException)) as info:
            patiently(process_available)(writer, timeout=240)
    return str(info.value)


def _ends(servers: str, topic: str, partitions: int) -> int:
    settings = {"bootstrap.servers": servers, "group.id": "none"}
    with closing(Consumer(settings)) as consumer:
        ends = (
            consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=60)[1]
            for n in range(partitions)
        )
        return sum(ends)


def _check(flow: Flow, error: str) -> None:
    assert "the `topic` column is the source's" in error or (
        f"the row is for '{flow.source}', a topic that the query reads" in error
    ), error
    assert _ends(flow.source_servers, flow.source, flow.partitions) == 4
    # Not even in an aborted transaction.
    assert _ends(flow.bootstrap_servers, flow.target, flow.partitions) == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", [*SHAPES, IN_A_FUNCTION])
def test_the_sources_own_topic_is_no_target(flow: Flow, queries: Queries, shape: str) -> None:
    flow.produce(range(4), key=b"key")
    options = {**flow.options(), "progress_topic": f"progress-{flow.name}"}
    _check(flow, queries.ask(_error, options, flow.source_servers, flow.source, shape))


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["_as_read", "_shuffled", IN_A_FUNCTION])
def test_rows_do_not_go_back_in_another_cluster_either(
    mirrored_flow: MirroredFlow, spark_eos_session: SparkSession, shape: str
) -> None:
    """A topic of the same name may exist, and rows would go there instead of `topic`."""
    flow = mirrored_flow
    flow.broker.create_topic(flow.source, flow.partitions)
    flow.produce(range(4), key=b"key")
    error = _error(spark_eos_session, flow.options(), flow.source_servers, flow.source, shape)
    _check(flow, error)
    assert _ends(flow.bootstrap_servers, flow.source, flow.partitions) == 0


@pytest.mark.slow
def test_same_named_topics_of_another_cluster_need_an_alias(
    mirrored_flow: MirroredFlow, spark_eos_session: SparkSession
) -> None:
    flow = mirrored_flow
    flow.broker.create_topic(flow.source, flow.partitions)
    flow.produce(range(4), key=b"key")

    def of_the_same_name(frame: DataFrame) -> DataFrame:
        return frame.select("source", "key", "value", F.col("topic").alias("topic"))

    run_available(spark_eos_session, flow, of_the_same_name, topic=None)
    assert sorted(flow.values(flow.source)) == ["0", "1", "2", "3"]


def test_what_the_refusal_advises_works_in_a_function_too(
    spark_eos_session: SparkSession,
) -> None:
    """Only an alias keeps a column's metadata there."""
    frame = spark_eos_session.createDataFrame([("orders",)], "topic string")
    frame = frame.withMetadata("topic", dict(SOURCES_OWN))
    with pytest.raises(UnsupportedPipelineError) as info:
        check_target(frame.select(F.col("topic").alias("topic")).schema)
    (advice,) = re.findall(r"say so: (F\.col\(.*\))$", info.value.text)
    assert advice == "F.col('topic').cast('string').alias('topic')"
    check_target(frame.select(F.col("topic").cast("string").alias("topic")).schema)


@pytest.mark.slow
def test_rows_for_the_dead_letter_topic_are_refused(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """`replay` takes the records there for our own dead letters."""
    dlq = f"dlq-{flow.name}"
    flow.broker.create_topic(dlq)
    flow.produce(["a"], partition=0)

    def to_dlq(frame: DataFrame) -> DataFrame:
        return frame.select("source", "value", F.lit(dlq).alias("topic"))

    with pytest.raises(StreamingQueryException, match=f"the row is for '{dlq}', the query's"):
        run_available(spark_eos_session, flow, to_dlq, dead_letter_topic=dlq)
    assert _ends(flow.bootstrap_servers, dlq, 1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["direct", pytest.param("staged", marks=pytest.mark.slow)])
def test_rows_older_than_the_retention_are_warned_of_once(
    flow: Flow,
    spark_eos_session: SparkSession,
    caplog: pytest.LogCaptureFixture,
    delivery: str,
) -> None:
    days = 86_400_000
    topic = f"keeping-{flow.name}"
    flow.broker.create_topic(topic, 1, {"retention.ms": str(7 * days)})
    flow.produce(["old", "old", "old", "new"], partition=0)

    def timed(frame: DataFrame) -> DataFrame:
        age = F.when(F.col("value").cast("string") == "old", F.expr("INTERVAL 8 DAYS"))
        time = F.current_timestamp() - F.coalesce(age, F.expr("INTERVAL 0 DAYS"))
        return frame.select("source", "value", time.alias("timestamp"))

    reports = run_available(
        spark_eos_session,
        flow,
        timed,
        read={"options": {"maxOffsetsPerTrigger": "2"}},
        topic=topic,
        delivery=delivery,
    )
    assert [report.rows_written for report in reports] == [2, 2]
    (warned,) = [text for text in caplog.messages if "retention.ms" in text]
    assert f"group {flow.group_id}" in warned
    assert f": 2 rows of {topic}. " in warned
    assert warned.endswith("[more: spark-eos explain EOS72]")
