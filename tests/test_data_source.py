"""``format("kafka-eos")`` on the real broker and real Spark; `test_keeper.py` has its processes."""

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos.errors import UnsupportedPipelineError
from support.flow import Flow
from support.queries import QueryProcess, relay, until
from support.versions import HAS_DATA_SOURCES, NO_DATA_SOURCES

if not HAS_DATA_SOURCES:
    pytest.skip(NO_DATA_SOURCES, allow_module_level=True)

# What Spark 4.0 does not have.
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from spark_eos import KafkaEosDataSource, write_stream
from support.data_sources import (
    end_keepers,
    keepers,
    options,
    read,
    until_kept_no_more,
    write_available,
    writer,
)

# The main cases are in test_fronts.py.
pytestmark = pytest.mark.slow


@pytest.fixture
def flow(new_flow: Callable[..., Flow]) -> Iterator[Flow]:
    """A flow of the test's own, whose keeper ends with it."""
    flow = new_flow()
    yield flow
    end_keepers(flow)


def _written_once(flow: Flow, count: int) -> None:
    assert sorted(map(int, flow.values())) == list(range(count))
    assert flow.committed() == {0: count // 2, 1: count // 2}
    assert flow.open_transactions() == []


def test_rows_of_several_batches_arrive_once_each(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(40))
    write_available(spark_eos_session, flow, reading={"options": {"maxOffsetsPerTrigger": "10"}})
    _written_once(flow, 40)
    # One keeper for all of them; it goes on when the query is started again.
    kept = keepers(flow)
    assert len(kept) == 1
    flow.produce(range(40, 60))
    write_available(spark_eos_session, flow)
    _written_once(flow, 60)
    assert keepers(flow) == kept


def test_every_column_reaches_the_record(flow: Flow, spark_eos_session: SparkSession) -> None:
    # Not so long ago that the broker's retention would take the records away.
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp = now.replace(microsecond=123_999) - datetime.timedelta(hours=1)
    headers: list[Any] = [("first", b"1"), ("none", None), ("first", b"2")]
    milliseconds = int(stamp.timestamp() * 1000)
    for value in ("plain", None, "elsewhere"):
        flow.produce([value], partition=0, key=b"key", headers=headers, timestamp=milliseconds)
    other = f"other-{flow.name}"
    flow.broker.create_topic(other, 3)

    def transform(frame: DataFrame) -> DataFrame:
        elsewhere = F.col("value") == F.lit(b"elsewhere")
        return frame.select(
            "source",
            F.col("key").cast("string").alias("key"),
            F.col("value").cast("string").alias("value"),
            "headers",
            F.lit(stamp).alias("timestamp"),
            F.when(elsewhere, other).alias("topic"),
            F.when(elsewhere, 2).alias("partition"),
            F.lit(1).alias("ignored"),
        )

    write_available(spark_eos_session, flow, transform, reading={"include_headers": True})
    records = {(m.value() or b"").decode(): m for m in [*flow.written(), *flow.written(other)]}
    assert records.keys() == {"plain", "", "elsewhere"}
    plain, elsewhere = records["plain"], records["elsewhere"]
    assert records[""].value() is None
    assert (plain.key(), plain.timestamp()[1]) == (b"key", milliseconds)
    assert plain.headers() == headers
    assert (elsewhere.topic(), elsewhere.partition()) == (other, 2)


def test_a_batch_is_replayed_without_writing_twice(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(20))
    # Rows without output, at the end and in between: the group reaches the end all the same.
    write_available(spark_eos_session, flow, lambda f: relay(f.where("offset % 2 = 0")))
    assert flow.committed() == {0: 10, 1: 10}
    end_keepers(flow)
    # As if the driver had died between the tasks' commits and Spark's commit log.
    for name in ("0", ".0.crc"):
        Path(flow.checkpoint, "commits", name).unlink()
    write_available(spark_eos_session, flow)
    # The rows of the batch are the group's already, whatever the query makes of them now.
    assert sorted(map(int, flow.values())) == [n for n in range(20) if n // 2 % 2 == 0]


def test_a_commit_that_fails_after_its_effect(flow: Flow, spark_eos_session: SparkSession) -> None:
    class Failing(KafkaEosDataSource):
        def streamWriter(self, schema: Any, overwrite: Any) -> DataSourceStreamArrowWriter:  # noqa: N802
            found = super().streamWriter(schema, overwrite)
            commit = found.commit

            def fail(messages: Any, batch: int) -> None:
                commit(messages, batch)
                raise OSError("lost on its way")

            if not self._plans:
                setattr(found, "commit", fail)  # noqa: B010 - a method, to mypy
            return found

    flow.produce(range(20))
    failing = writer(relay(read(spark_eos_session, flow)), flow)
    spark_eos_session.dataSource.register(Failing)
    with pytest.raises(StreamingQueryException, match="lost on its way"):
        failing.start().awaitTermination()
    # The batch is committed, and Spark's abort takes nothing back.
    _written_once(flow, 20)
    until_kept_no_more(flow)
    write_available(spark_eos_session, flow)
    _written_once(flow, 20)


def _slowly(frame: DataFrame) -> DataFrame:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            time.sleep(20)
            yield rows

    return frame.mapInArrow(wait, frame.schema)


def test_a_query_stopped_in_a_batch_goes_on_when_it_is_started_again(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(20))
    query = writer(_slowly(relay(read(spark_eos_session, flow))), flow).start()
    jobs = spark_eos_session.sparkContext.statusTracker()
    try:
        until(lambda: jobs.getJobIdsForGroup(str(query.runId)), lambda: "the batch's job")
    finally:
        query.stop()
    assert query.exception() is None
    write_available(spark_eos_session, flow)
    _written_once(flow, 20)


def test_a_task_that_fails_ends_the_query_and_its_keeper(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(20))

    def broken(frame: DataFrame) -> DataFrame:
        return relay(frame).withColumn(
            "value", F.when(F.expr("source.offset = 9"), F.raise_error(F.lit("bad"))).otherwise("7")
        )

    with pytest.raises(StreamingQueryException, match="bad"):
        write_available(spark_eos_session, flow, broken)
    until_kept_no_more(flow)
    write_available(spark_eos_session, flow)
    _written_once(flow, 20)


def test_two_queries_of_one_session(
    flow: Flow, new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    other = new_flow()
    other.checkpoint += "-other"
    both = [flow, other]
    queries = []
    for one in both:
        frame = relay(read(spark_eos_session, one))
        queries.append(writer(frame, one).queryName(one.name).start())
        one.produce(range(20))
    until(lambda: all(len(one.values()) == 20 for one in both), lambda: "rows of both")
    for query in queries:
        query.stop()
    for one in both:
        _written_once(one, 20)
        end_keepers(one)


@pytest.mark.parametrize("transform", [relay, lambda f: relay(f).repartition(2)])
def test_rows_that_were_not_checked_are_not_written(
    flow: Flow, spark_eos_session: SparkSession, transform: Callable[[DataFrame], DataFrame]
) -> None:
    flow.produce(range(40))
    frame = transform(read(spark_eos_session, flow))
    unchecked = frame.writeStream.format("kafka-eos").options(**options(flow))
    with pytest.raises(StreamingQueryException, match=r"start the query from write_stream"):
        unchecked.trigger(availableNow=True).start().awaitTermination()
    assert flow.written() == []
    assert flow.committed() == {}
    until_kept_no_more(flow)


def _joined(frame: DataFrame, table: DataFrame) -> DataFrame:
    return frame.join(table, F.col("id") == F.col("offset")).select("source", "key", "value")


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (lambda f: relay(f).repartition(2), "a shuffle"),
        (lambda f: relay(f).where("source.offset > 3").union(relay(f)), "more than once"),
        # Spark broadcasts so small a table by itself, and may do otherwise in a later batch.
        (lambda f: _joined(f, f.sparkSession.range(9)), r"F\.broadcast\(table\)"),
        (
            lambda f: relay(
                f.sparkSession.range(9).join(F.broadcast(f), F.col("id") == F.col("offset"))
            ),
            "the stream itself",
        ),
        (
            lambda f: relay(f.withWatermark("timestamp", "1 minute").dropDuplicates(["key"])),
            "state",
        ),
        (lambda f: f.select("key", "value"), "no `source` column"),
    ],
    ids=["shuffle", "union", "join", "broadcast stream", "state", "no source"],
)
def test_pipelines_that_are_refused(
    flow: Flow,
    spark_eos_session: SparkSession,
    transform: Callable[[DataFrame], DataFrame],
    words: str,
) -> None:
    with pytest.raises(UnsupportedPipelineError, match=words):
        write_stream(transform(read(spark_eos_session, flow)))


def test_source_options_that_are_refused(flow: Flow, spark_eos_session: SparkSession) -> None:
    own = spark_eos_session.readStream.format("kafka").option("subscribe", flow.source)
    frame = own.option("kafka.bootstrap.servers", flow.bootstrap_servers).load()
    frame = frame.withColumn("source", F.struct("topic", "partition", "offset"))
    with pytest.raises(UnsupportedPipelineError, match=r"'kafka\.isolation\.level' is missing"):
        write_stream(relay(frame))


def test_a_join_with_a_hint(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(40))
    table = F.broadcast(spark_eos_session.range(5).groupBy("id").count())
    write_available(spark_eos_session, flow, lambda f: _joined(f, table))
    assert len(flow.values()) == 10
    assert flow.committed() == {0: 20, 1: 20}


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"grupId": "g"}, "no option 'grupid': did you mean groupId?"),
        ({"topic": None}, "no target topic"),
    ],
)
def test_options_that_are_refused(
    flow: Flow, spark_eos_session: SparkSession, chosen: dict[str, Any], words: str
) -> None:
    flow.produce(range(2))
    with pytest.raises(StreamingQueryException, match=words):
        write_available(spark_eos_session, flow, **chosen)
    assert flow.written() == []
    until_kept_no_more(flow)


def test_a_checkpoint_that_only_a_setting_names(
    flow: Flow, spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    flow.produce(range(2))
    setting = "spark.sql.streaming.checkpointLocation"
    spark_eos_session.conf.set(setting, str(tmp_path / "by-conf"))
    try:
        with pytest.raises(StreamingQueryException, match="set it as an option of the query"):
            write_available(spark_eos_session, flow, checkpointLocation=None)
    finally:
        spark_eos_session.conf.unset(setting)
    assert flow.written() == []


@pytest.mark.timeout(400)
def test_a_query_killed_with_its_driver_goes_on_elsewhere(flow: Flow, tmp_path: Path) -> None:
    flow.produce(range(2_000))
    settings: dict[str, Any] = {"main": "support.data_source_main", "max_offsets": 40}
    with QueryProcess(flow, tmp_path / "first.log", **settings) as first:
        first.until(lambda: len(flow.values()) > 200, "some batches", timeout=120)
        (kept,) = keepers(flow)
        first.kill()
    until_kept_no_more(flow)
    with QueryProcess(flow, tmp_path / "second.log", **settings) as second:
        second.until(lambda: keepers(flow), "its own keeper", timeout=120)
        assert kept not in keepers(flow)
        assert second.wait(120) == 0, second.output()
    _written_once(flow, 2_000)
    until_kept_no_more(flow)


@pytest.mark.timeout(400)
def test_through_spark_connect(flow: Flow, tmp_path: Path) -> None:
    flow.produce(range(200))
    settings: dict[str, Any] = {
        "main": "support.data_source_main",
        "max_offsets": 50,
        "remote": True,
    }
    with QueryProcess(flow, tmp_path / "log", **settings) as query:
        assert query.wait(300) == 0, query.output()
    _written_once(flow, 200)
    # The server goes with the client that has started it.
    until_kept_no_more(flow)
