"""Queries that are refused with a helpful error before anything is written."""

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, errors
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._spark.classic import ClassicRuntime
from spark_eos.testing import EmbeddedKafka
from support import groups
from support.apis import Queries
from support.flow import Flow
from support.foreign_consumer import foreign_consumer
from support.mirroring import MirroredFlow
from support.queries import relay, run_available
from support.sinks import arguments
from support.writers import Writer


def _write(
    spark: SparkSession, flow: Flow, transform: Callable[[DataFrame], DataFrame], **options: Any
) -> Writer:
    sink = ExactlyOnceSink(**arguments(**{**flow.options(), "delivery": "direct", **options}))
    return sink.write(transform(sink.read(spark, subscribe=flow.source)))


@pytest.fixture(scope="module")
def refused(
    embedded_kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Flow]:
    """Topics for queries that are refused before anything is written; all of them are."""
    here = tmp_path_factory.mktemp("refused")
    flow = Flow(embedded_kafka, str(here / "checkpoint"), str(here / "workers"))
    yield flow
    assert flow.written() == []


FLAT = [f"source.{name} AS __source_{name}" for name in ("topic", "partition", "offset")]
REFUSED: list[tuple[Callable[[DataFrame], DataFrame], str]] = [
    (lambda f: f.select("source", "key"), "no `value` column"),
    (lambda f: f.select("key", "value"), "no `source` column"),
    (lambda f: f.select("source", F.lit(1).alias("value")), "`value` is int"),
    (lambda f: f.select("source", F.lit(None).alias("value")), r"F\.lit\(None\)\.cast\('binary'\)"),
    (lambda f: f.select("source", "value", F.lit(None).alias("key")), r"\.cast\('binary'\).*'key'"),
    (
        lambda f: f.select("source", "value", F.lit(None).alias("timestamp")),
        r"\.cast\('timestamp'\)",
    ),
    (lambda f: f.select("source", "value", F.lit(None).alias("headers")), r"\.cast\('array<struct"),
    (
        lambda f: f.select("source", "value", F.lit("a").alias("VALUE")),
        "`VALUE` and `value` differ only by case",
    ),
    (
        lambda f: f.select("value", F.struct("source.*", F.lit(0).alias("TOPIC")).alias("Source")),
        "fields `TOPIC` and `topic` differ only by case",
    ),
    (
        lambda f: f.select("source", "value", F.col("key").alias("value")),
        "more than one `value`",
    ),
    (lambda f: f.select("value", F.lit("x").alias("source")), "`source` is string"),
    # Users can't pass the columns that the sink itself makes from `source`.
    (lambda f: f.selectExpr("value", *FLAT), "no `source` column"),
    (
        lambda f: f.select(
            "value", F.struct("source.*", F.lit(0).cast("long").alias("offset")).alias("source")
        ),
        "`source` is struct<topic:string,partition:int,offset:bigint,offset:bigint>",
    ),
    (lambda f: f.select("source", "value", F.lit(1).alias("key")), "`key` is int"),
    (lambda f: f.select("source", "value", F.lit("h").alias("headers")), "`headers` is"),
    (lambda f: f.select("source", "value").repartition(2), "a shuffle"),
    (
        lambda f: f.groupBy("source").agg(F.max("value").alias("value")),
        "an aggregation|a shuffle|state",
    ),
    (lambda f: f.dropDuplicates(["key"]).select("source", "value"), "state|a shuffle"),
    (lambda f: f.select("source", "value").sortWithinPartitions("value"), "a sort"),
    # The plan comes before the columns, which the other delivery may not need.
    (lambda f: f.groupBy("key").count(), "an aggregation|a shuffle|state"),
    (
        lambda f: f.sparkSession.readStream.format("rate").load(),
        "reads from 'rate'.*read with sink.read",
    ),
    (
        lambda f: f.sparkSession.readStream.text(tempfile.mkdtemp()),
        "reads from 'text'.*read with sink.read",
    ),
]


@pytest.mark.parametrize(
    ("transform", "words"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_pipelines(
    refused: Flow,
    spark_eos_session: SparkSession,
    transform: Callable[[DataFrame], DataFrame],
    words: str,
) -> None:
    with pytest.raises(errors.UnsupportedPipelineError, match=words):
        _write(spark_eos_session, refused, transform)


@pytest.mark.parametrize("hint", ["merge", "shuffle_hash", "shuffle_replicate_nl"])
def test_a_join_that_shuffles_is_refused_with_a_remedy(
    refused: Flow, spark_eos_session: SparkSession, hint: str
) -> None:
    """The user wrote neither the sort nor the shuffle."""
    small = spark_eos_session.range(10).select(F.col("id").cast("string").alias("name"))

    def joined(frame: DataFrame) -> DataFrame:
        on = F.col("value").cast("string") == F.col("name")
        return frame.join(small.hint(hint), on).select("name")

    with pytest.raises(errors.UnsupportedPipelineError) as failure:
        _write(spark_eos_session, refused, joined)
    assert re.search(r"join .*shuffles.*F\.broadcast\(", str(failure.value))
    assert "a sort" not in str(failure.value)


def test_no_topic_anywhere(refused: Flow, spark_eos_session: SparkSession) -> None:
    with pytest.raises(errors.UnsupportedPipelineError, match="no target topic"):
        _write(spark_eos_session, refused, relay, topic=None)


@pytest.mark.parametrize("option", ["maxRecordsPerPartition", "MINPARTITIONS", "failOnDataLoss"])
def test_source_options_that_the_sink_sets_or_split_partitions(
    refused: Flow, spark_eos_session: SparkSession, option: str
) -> None:
    sink = ExactlyOnceSink(**refused.options(), delivery="direct")
    with pytest.raises(errors.UnsupportedPipelineError, match=option):
        sink.read(spark_eos_session, subscribe=refused.source, options={option: "4"})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, errors.ConfigurationError, "exactly one of subscribe"),
        ({"subscribe": "a", "assign": "{}"}, errors.ConfigurationError, "exactly one"),
        ({"subscribe": "nowhere"}, errors.TopicNotFoundError, "nowhere"),
        ({"assign": "[1]"}, errors.ConfigurationError, "must be JSON"),
        ({"subscribe": "a", "starting_offsets": "now"}, errors.ConfigurationError, "earliest"),
        (
            {"subscribe": "a", "options": {"kafka.bootstrap.servers": "x"}},
            errors.ConfigurationError,
            "kafka=",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sources(
    refused: Flow,
    spark_eos_session: SparkSession,
    arguments: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    sink = ExactlyOnceSink(**refused.options(), delivery="direct")
    with pytest.raises(error, match=words):
        sink.read(spark_eos_session, **arguments)


def _read_from(frame: DataFrame, servers: str, topic: str) -> DataFrame:
    """A user's own reader, not the sink's."""
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "kafka.bootstrap.servers": servers,
    }
    reader = frame.sparkSession.readStream.format("kafka").options(**options)
    return relay(reader.load().withColumn("source", F.struct("topic", "partition", "offset")))


@pytest.mark.parametrize("delivery", ["direct", "mirrored"])
def test_a_reader_of_ones_own_in_another_cluster(
    flow: Flow, mirrored_flow: MirroredFlow, spark_eos_session: SparkSession, delivery: str
) -> None:
    here, elsewhere = mirrored_flow.bootstrap_servers, mirrored_flow.source_servers
    own, right, wrong = flow, f"localhost:{here.rpartition(':')[2]}", elsewhere
    if delivery == "mirrored":
        own, right, wrong = mirrored_flow, elsewhere, here
    options = {"delivery": delivery, "source_kafka": own.source_kafka}
    read = partial(_read_from, topic=own.source)
    _write(spark_eos_session, own, partial(read, servers=right), **options)
    with pytest.raises(
        errors.UnsupportedPipelineError, match=f"'{wrong}', which are not addresses"
    ):
        _write(spark_eos_session, own, partial(read, servers=wrong), **options)


@pytest.mark.slow
def test_what_a_reader_of_ones_own_reads_elsewhere_may_be_staged(
    flow: Flow, mirrored_flow: MirroredFlow, spark_eos_session: SparkSession
) -> None:
    mirrored_flow.produce(range(5))
    read = partial(_read_from, servers=mirrored_flow.source_servers, topic=mirrored_flow.source)
    (report,) = run_available(spark_eos_session, flow, read)
    assert (report.delivery, report.rows_written) == ("staged", 5)
    assert sorted(flow.values()) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("delivery", ["direct", "staged"])
def test_what_the_sink_of_another_group_has_read(
    queries: Queries, flow: Flow, delivery: str
) -> None:
    flow.produce(range(5))
    text = queries.ask(_written_by_another, flow.options(), flow.source, delivery)
    assert f"the query reads with the sink of group '{flow.group_id}'" in text


def _written_by_another(
    session: SparkSession, options: dict[str, Any], source: str, delivery: str
) -> str:
    """The error of a sink that writes another sink's source, unless it is of its own group."""
    reader = ExactlyOnceSink(**arguments(**options))
    more = {"delivery": delivery, "checkpoint_location": f"{options['checkpoint_location']}-b"}
    frame = relay(reader.read(session, subscribe=source))
    with closing(reader), closing(ExactlyOnceSink(**arguments(**{**options, **more}))) as same:
        same.write(frame)
        other = {**options, **more, "group_id": f"{options['group_id']}-b"}
        with (
            closing(ExactlyOnceSink(**arguments(**other))) as another,
            pytest.raises(errors.UnsupportedPipelineError) as refused,
        ):
            another.write(frame)
    return str(refused.value)


def test_target_topics(refused: Flow, spark_eos_session: SparkSession) -> None:
    with pytest.raises(errors.TopicNotFoundError, match=r"target topic 'nowhere'.*create it"):
        _write(spark_eos_session, refused, relay, topic="nowhere")
    with pytest.raises(errors.ConfigurationError, match="feed itself"):
        _write(spark_eos_session, refused, relay, topic=refused.source)


def test_a_transaction_timeout_above_the_brokers_maximum(
    refused: Flow, spark_eos_session: SparkSession
) -> None:
    with pytest.raises(
        errors.ConfigurationError, match=r"transactions\.timeout_ms=9000000.*transaction\.max\."
    ):
        _write(spark_eos_session, refused, relay, transaction_timeout_ms=9_000_000)


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.slow)])
def test_a_foreign_live_member_of_the_group(
    flow: Flow, spark_eos_session: SparkSession, protocol: str
) -> None:
    with (
        foreign_consumer(flow, protocol),
        pytest.raises(errors.ForeignMemberError, match=r"somebody-else.*127\.0\.0\.1"),
    ):
        _write(spark_eos_session, flow, relay)


@pytest.mark.slow
def test_transaction_version_below_2(tmp_path: Path, spark_eos_session: SparkSession) -> None:
    with EmbeddedKafka(features={"transaction.version": 1}) as broker:
        flow = Flow(broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        with pytest.raises(
            errors.UnsupportedBrokerError,
            match=r"transaction\.version=1.*kafka-features\.sh.*transaction\.version=2",
        ):
            _write(spark_eos_session, flow, relay)


@pytest.mark.slow
def test_a_group_offset_behind_the_checkpoint(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(20))
    run_available(spark_eos_session, flow)
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 5})
    flow.produce(["new"], partition=0)
    with pytest.raises(StreamingQueryException) as failure:
        run_available(spark_eos_session, flow)
    assert f"{flow.source}-0 up to 5, but batch 1 starts at 10" in str(failure.value)
    assert "Delete the checkpoint" in str(failure.value)
    assert "new" not in flow.values()
    # What it says helps.
    flow.checkpoint += "-anew"
    run_available(spark_eos_session, flow)
    assert flow.values().count("new") == 1


@pytest.mark.slow
def test_group_offsets_that_were_deleted(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(4))
    run_available(spark_eos_session, flow)
    # The checkpoint proves what they were: its last batch is finished, and no other begun.
    groups.delete_group(flow.bootstrap_servers, flow.group_id)
    flow.produce(["new"])
    run_available(spark_eos_session, flow)
    assert sorted(flow.values()) == ["0", "1", "2", "3", "new"]
    # Now one is begun, which may have written.
    groups.delete_group(flow.bootstrap_servers, flow.group_id)
    Path(flow.checkpoint, "commits", "1").unlink()
    with pytest.raises(StreamingQueryException, match="has no committed offset for"):
        run_available(spark_eos_session, flow)
    assert sorted(flow.values()) == ["0", "1", "2", "3", "new"]


@pytest.mark.slow
def test_a_checkpoint_of_another_query(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(4))
    run_available(spark_eos_session, flow)
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    frame = sink.read(spark_eos_session, subscribe=flow.source).select("source", "value")
    sink.write(frame)  # which starts nothing
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", flow.checkpoint + "-other")
        .trigger(availableNow=True)
        .start()
    )
    flow.produce(["new"])
    with pytest.raises(StreamingQueryException, match=r"start the query from sink\.write"):
        query.awaitTermination()


def test_a_shuffle_before_foreach_batch(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(10))
    sink = ExactlyOnceSink(**flow.options(), delivery="direct")
    frame = sink.read(spark_eos_session, subscribe=flow.source).select("source", "value")

    def run() -> None:
        writer = frame.repartition(2, "value").writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", flow.checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match=r"start the query from sink\.write"):
        run()
    sink.write(frame)  # which starts nothing
    with pytest.raises(StreamingQueryException, match=r"start the query from sink\.write"):
        run()
    assert flow.written() == []
    assert flow.committed() == {}


def test_two_calls_for_one_batch(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(4))

    def twice(sink: ExactlyOnceSink, batch: DataFrame, batch_id: int) -> None:
        sink(batch.where("source.offset = 0"), batch_id)
        with pytest.raises(errors.UnsupportedPipelineError, match="a second time"):
            sink(batch, batch_id - 1)
        sink(batch.where("source.offset > 0"), batch_id)

    with pytest.raises(
        StreamingQueryException,
        match=r"called a second time for batch 0.*several rows of one record, .*explode",
    ):
        run_available(spark_eos_session, flow, function=twice)
    assert flow.members() == []


@pytest.mark.slow
def test_two_calls_for_one_batch_at_a_time(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(4))
    refused: list[str] = []

    def twice(sink: ExactlyOnceSink, batch: DataFrame, batch_id: int) -> None:
        def write(rows: DataFrame) -> None:
            try:
                sink(rows, batch_id)
            except errors.UnsupportedPipelineError as error:
                refused.append(str(error))

        parts = [batch.where("source.offset = 0"), batch.where("source.offset > 0")]
        # They have the stream's thread's properties, which tell the query.
        threads = [InheritableThread(target=write, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run_available(spark_eos_session, flow, function=twice)
    (text,) = refused
    assert "called a second time for batch 0" in text
    assert len(flow.values()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["direct", "staged"])
def test_reports_that_do_not_arrive(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    flow.produce(range(4))
    collect = ClassicRuntime.collect

    def some(*arguments: Any, **options: Any) -> list[Row]:
        # As when the JVM fails while it sends them.
        return collect(*arguments, **options)[1:]

    with monkeypatch.context() as patch:
        patch.setattr(ClassicRuntime, "collect", some)
        words = r"1 of \d task reports did not arrive"
        with pytest.raises(StreamingQueryException, match=words):
            run_available(spark_eos_session, flow, delivery=delivery)
    run_available(spark_eos_session, flow, delivery=delivery)
    assert sorted(flow.values()) == ["0", "1", "2", "3"]


def test_a_reader_of_ones_own_that_would_read_nothing(
    refused: Flow, spark_eos_session: SparkSession
) -> None:
    """Spark's query would write nothing and end successfully."""

    def read(frame: DataFrame) -> DataFrame:
        reader = frame.sparkSession.readStream.format("kafka")
        found = reader.options(
            **{
                "subscribe": refused.source,
                "kafka.isolation.level": "read_committed",
                "kafka.bootstrap.servers": refused.bootstrap_servers,
                "MaxOffsetsPerTrigger": "0",
            }
        ).load()
        return relay(found.withColumn("source", F.struct("topic", "partition", "offset")))

    for delivery in ("direct", "staged"):
        with pytest.raises(errors.ConfigurationError, match="'maxOffsetsPerTrigger' must be"):
            _write(spark_eos_session, refused, read, delivery=delivery)
