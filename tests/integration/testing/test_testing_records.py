"""`spark_eos.testing`: producing and consuming records, with queries in between."""

import datetime
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos.errors import TopicNotFoundError
from spark_eos.testing import consume_committed, process_available, produce, spark_session
from support.flow import Flow


def _found(frame: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.collect()]


def test_what_is_produced_is_consumed(flow: Flow, spark_eos_session: SparkSession) -> None:
    hour_ago = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    hour_ago = hour_ago.replace(microsecond=123_000)
    rows: list[dict[str, Any]] = [
        {"value": "b0", "partition": 1, "timestamp": hour_ago},
        {"value": b"a0", "key": "k", "partition": 0, "headers": [("h", b"1"), ("h", None)]},
        {"value": None, "key": b"k", "partition": 1},
    ]
    produced = produce(spark_eos_session, flow.broker, flow.source, rows)
    places = produced.select("partition", "offset")
    assert _found(places) == [(1, 0), (0, 0), (1, 1)]
    consumed = consume_committed(spark_eos_session, flow.broker, flow.source)
    assert consumed.columns == produced.columns
    assert _found(consumed.select("partition", "offset", "key", "value")) == [
        (0, 0, b"k", b"a0"),
        (1, 0, None, b"b0"),
        (1, 1, b"k", None),
    ]
    assert sorted(_found(consumed), key=str) == sorted(_found(produced), key=str)
    first, second, _third = consumed.select("headers", F.unix_millis("timestamp")).collect()
    assert [tuple(header) for header in first.headers] == [("h", b"1"), ("h", None)]
    assert (second.headers, second[1]) == (None, round(hour_ago.timestamp() * 1000))


@pytest.mark.slow
def test_a_frame_is_produced_where_java_would(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow = new_flow(partitions=5)
    spark, kafka = spark_eos_session, flow.kafka
    # Spark's own sink uses Kafka's Java producer.
    keys = spark.range(20).selectExpr("cast(id as string) as key", "'v' as value")
    java = {"kafka.bootstrap.servers": flow.bootstrap_servers, "topic": flow.source}
    keys.write.format("kafka").options(**java).save()
    records = consume_committed(spark, kafka, flow.source)
    produced = produce(spark, kafka, flow.target, records.drop("partition", "offset"))
    copied = consume_committed(spark, kafka, flow.target)
    assert produced.count() == copied.count() == 20
    assert _found(copied) == _found(records)
    places = _found(copied.select("partition", "offset"))
    assert len({partition for partition, _offset in places}) > 2
    assert places == sorted(places)


@pytest.mark.slow
def test_only_committed_records_are_consumed(flow: Flow, spark_eos_session: SparkSession) -> None:
    settings = {**flow.kafka, "transactional.id": f"writer-{flow.name}", "log_level": 0}
    with closing(Producer(settings)) as producer:
        producer.init_transactions(60)
        for value, end in (("a", "commit"), ("b", "abort"), ("c", "commit"), ("d", "")):
            producer.begin_transaction()
            producer.produce(flow.target, value, partition=0)
            producer.flush()
            if end:
                getattr(producer, f"{end}_transaction")(20)
        consumed = consume_committed(spark_eos_session, flow.broker, flow.target, settle=0.1)
        assert [row.value for row in consumed.collect()] == [b"a", b"c"]
        ending = threading.Timer(0.5, producer.commit_transaction, [20])
        ending.start()
        # A transaction that is ending is waited for.
        now = consume_committed(spark_eos_session, flow.broker, flow.target, settle=20)
        ending.join()
        assert [row.value for row in now.collect()] == [b"a", b"c", b"d"]
        # What was asked for once stays what it is.
        assert [row.value for row in consumed.collect()] == [b"a", b"c"]


def test_mistakes_are_named(flow: Flow, spark_eos_session: SparkSession) -> None:
    spark, broker = spark_eos_session, flow.broker
    with pytest.raises(TopicNotFoundError, match="topic 'no-such' does not exist"):
        produce(spark, broker, "no-such", [{"value": "a"}])
    with pytest.raises(TopicNotFoundError, match="topic 'no-such' does not exist"):
        consume_committed(spark, broker, "no-such")
    with pytest.raises(ValueError, match="no column offset, val; allowed are headers, key,"):
        produce(spark, broker, flow.source, [{"value": "a"}, {"val": "b", "offset": 1}])
    # Nothing of it was produced.
    assert consume_committed(spark, broker, flow.source).count() == 0
    with pytest.raises(KafkaException, match="Unknown partition"):
        produce(spark, broker, flow.source, [{"value": "a", "partition": 9}])


@pytest.mark.slow
def test_a_query_that_takes_too_long_is_stopped(spark_eos_session: SparkSession) -> None:
    def slow(_frame: DataFrame, _batch_id: int) -> None:
        time.sleep(3)

    # A source that is never done, and does not know availableNow.
    rate = spark_eos_session.readStream.format("rate").load()
    with pytest.raises(TimeoutError, match=r"not ended within 1 s \(timeout\)"):
        process_available(rate.writeStream.foreachBatch(slow), timeout=1)
    assert not spark_eos_session.streams.active


@pytest.mark.slow
def test_a_query_that_can_not_be_stopped_is_reported(spark_eos_session: SparkSession) -> None:
    released = threading.Event()

    def hanging(_frame: DataFrame, _batch_id: int) -> None:
        released.wait(60)

    spark_eos_session.conf.set("spark.sql.streaming.stopTimeout", "2s")
    rate = spark_eos_session.readStream.format("rate").load()
    try:
        with pytest.raises(TimeoutError, match=r"within 1 s .timeout., and could not be stopped"):
            process_available(rate.writeStream.foreachBatch(hanging), timeout=1)
    finally:
        spark_eos_session.conf.set("spark.sql.streaming.stopTimeout", "60s")
        released.set()
        for query in spark_eos_session.streams.active:
            query.stop()


def test_the_first_millisecond_is_not_today(flow: Flow, spark_eos_session: SparkSession) -> None:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    moments = [epoch, epoch + datetime.timedelta(microseconds=1_999)]
    rows = [{"value": "a", "timestamp": moment, "partition": 0} for moment in moments]
    produced = produce(spark_eos_session, flow.broker, flow.source, rows)
    found = produced.select(F.unix_millis("timestamp")).collect()
    assert [row[0] for row in found] == [1, 1]


def test_an_active_session_is_returned_unchanged(spark_eos_session: SparkSession) -> None:
    conf = spark_eos_session.conf
    settings = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.shuffle.partitions": "7"}
    before = {name: str(conf.get(name)) for name in settings}
    for name, text in settings.items():
        conf.set(name, text)
    try:
        found = spark_session(config={"spark.sql.shuffle.partitions": "3"})
        assert found is spark_eos_session
        assert {name: conf.get(name) for name in settings} == settings
    finally:
        for name, text in before.items():
            conf.set(name, text)


def test_each_process_has_its_own_tables() -> None:
    script = "from spark_eos.testing.spark import _warehouse; print(_warehouse())"
    found = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert found[0] != found[1]
    assert not any(Path(name).exists() for name in found)
