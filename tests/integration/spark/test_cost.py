"""Costs that a batch must avoid: unnecessary requests, tasks and waits in Spark."""

import gc
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from pyspark.sql import DataFrame, SparkSession

from spark_eos import ExactlyOnceSink
from spark_eos._kafka.cluster import topics
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from support.flow import Flow
from support.proxy import KafkaProxy
from support.queries import run_available


def _fetch_waits(flow: Flow, proxy: KafkaProxy) -> set[int]:
    """``fetch.max.wait.ms`` of Spark's source consumers; others may still be fetching."""
    with flow.connections() as connections:
        topic_id = topics(connections, [flow.source], Deadline(60, "test"))[flow.source].topic_id
    fetches = [
        request.message()
        for request in proxy.requests
        if request.api_key == FetchRequest.API_KEY and request.client_id.startswith("consumer-")
    ]
    named = [(f.max_wait_ms, topic.topic_id) for f in fetches for topic in f.topics]
    return {wait for wait, found in named if found == topic_id}


@pytest.mark.slow
def test_reading_rarely_asks_for_the_ends_of_partitions(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    """With Kafka's defaults, Spark asks twice for every 500 records."""
    proxied_flow.produce(range(10_000))
    run_available(spark_eos_session, proxied_flow)
    assert len(proxied_flow.values()) == 10_000
    # It asks while the next fetch waits at the end of the topic.
    assert _fetch_waits(proxied_flow, proxy) == {1}
    assert proxy.count(ListOffsetsRequest, "consumer-") < 20


@pytest.mark.slow
def test_the_users_own_source_settings_come_first(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    proxied_flow.produce(range(10))
    own = {"kafka.fetch.max.wait.ms": "7", "kafka.max.poll.records": "2"}
    run_available(spark_eos_session, proxied_flow, read={"options": own})
    assert _fetch_waits(proxied_flow, proxy) == {7}
    assert proxy.count(ListOffsetsRequest, "consumer-") >= 10


@pytest.mark.slow
def test_a_transaction_commits_its_offsets_with_one_request(
    proxied_flow: Flow, proxy: KafkaProxy, spark_eos_session: SparkSession
) -> None:
    flow = replace(proxied_flow, partitions=6, name=uuid.uuid4().hex[:10])
    assert spark_eos_session.sparkContext.defaultParallelism == 2
    for until in (12, 24):
        for partition in range(6):
            flow.produce(range(until - 12 + partition, until, 6), partition=partition)
        before = proxy.count(TxnOffsetCommitRequest)
        (report,) = run_available(spark_eos_session, flow)
        assert report.rows_written == 12
    # Of the second batch, in which no partition is new.
    assert report.transactions == 2
    assert proxy.count(TxnOffsetCommitRequest) - before == 2
    assert sorted(map(int, flow.values())) == list(range(24))
    assert set(flow.committed().values()) == {4}


@pytest.mark.slow
def test_loaded_modules_are_excluded_from_garbage_collection(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(4))
    run_available(spark_eos_session, flow)

    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    cores = spark_eos_session.sparkContext.defaultParallelism
    frame = spark_eos_session.range(cores, numPartitions=cores).mapInArrow(frozen, "frozen long")
    assert max(row.frozen for row in frame.collect()) > 10_000


@pytest.mark.slow
def test_columns_may_change_from_batch_to_batch(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    """In a user's function that calls the sink."""
    flow.produce(range(4), key=b"key")

    def batch(sink: ExactlyOnceSink, frame: DataFrame, batch_id: int) -> None:
        sink(frame.select("source", "value", *(["key"] if batch_id else [])), batch_id)

    read = {"options": {"maxOffsetsPerTrigger": "2"}}
    run_available(spark_eos_session, flow, read=read, function=batch)
    keys = [m.key() for m in flow.written()]
    assert sorted(key or b"" for key in keys) == [b"", b"", b"key", b"key"]
