"""Staged queries whose source lost records before or after a batch was staged."""

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from spark_eos import BatchReport, ExactlyOnceSink, LostRecords
from spark_eos._kafka.offset_metadata import is_position
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import UnsupportedPipelineError
from spark_eos.testing import EmbeddedKafka, process_available
from support import staging
from support.apis import Queries, patiently
from support.flow import Flow
from support.members import deadline
from support.planting import remove
from support.queries import run_available
from support.sinks import arguments
from support.staging import Written, failing_once_staged, record, run_staged, totals_of

_BATCH = 30


def _produced(flow: Flow, batch: int) -> None:
    flow.produce(map(record, range(batch * _BATCH, (batch + 1) * _BATCH)))


def _run(
    spark: SparkSession,
    flow: Flow,
    transform: Callable[[DataFrame], DataFrame] = staging.totals,
    mode: str = "update",
    **options: Any,
) -> Written:
    place = {"progress_topic": f"progress-{flow.name}", "progress_partitions": 3}
    return run_staged(spark, flow, transform, mode, max_offsets=_BATCH, **place, **options)


def _totals(*counts: int) -> Counter[tuple[str, int]]:
    return Counter((f"c{customer}", count) for customer in range(5) for count in counts)


@pytest.mark.slow
def test_a_query_stopped_beyond_retention_keeps_its_state(flow: Flow, spark: SparkSession) -> None:
    _produced(flow, 0)
    _run(spark, flow)
    _produced(flow, 1)
    with failing_once_staged():
        _run(spark, flow)
    for partition in range(flow.partitions):
        remove(flow, flow.source, partition, _BATCH)
    with pytest.raises(Exception, match=r"RecordsLostError: .*missing from the query's state"):
        _run(spark, flow)
    assert totals_of(flow) == _totals(6, 12)
    _produced(flow, 2)
    written = _run(spark, flow, fail_on_data_loss=False)
    half = _BATCH // flow.partitions
    assert written.reports[0].lost == tuple(
        LostRecords(flow.source, partition, half, _BATCH, certain=False)
        for partition in range(flow.partitions)
    )
    assert [report.lost for report in written.reports[1:]] == [()] * (len(written.reports) - 1)
    # The state has batch 0 and 2: the records of batch 1 are gone, but what it wrote is not.
    assert totals_of(flow) == _totals(6, 12, 12)


@pytest.mark.slow
def test_losses_of_topics_that_a_pattern_of_java_chooses(flow: Flow, spark: SparkSession) -> None:
    read = {"subscribe": None, "subscribePattern": rf"\Q{flow.source}\E"}

    def run() -> list[BatchReport]:
        options: dict[str, Any] = {"progress_topic": f"progress-{flow.name}"}
        return run_available(
            spark, flow, staging.repartitioned, read=read, fail_on_data_loss=False, **options
        )

    _produced(flow, 0)
    run()
    _produced(flow, 1)
    half = _BATCH // flow.partitions
    remove(flow, flow.source, 0, half + 5)
    (report,) = run()
    assert report.delivery == "staged"
    assert report.lost == (LostRecords(flow.source, 0, half, half + 5),)


def _shared_by_readers(
    session: SparkSession, options: dict[str, Any], servers: str, source: str, other: str
) -> None:
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("kafka.isolation.level", "read_committed")
    others = reader.option("subscribePattern", rf"\Q{other}\E").option(
        "startingOffsets", "earliest"
    )
    with closing(ExactlyOnceSink(**arguments(**options))) as sink:
        both = sink.read(session, subscribe=source).select("key", "value")
        rows = both.union(others.load().select("key", "value")).repartition(2)
        patiently(process_available)(sink.write(rows), timeout=240)


@pytest.mark.slow
def test_positions_of_another_reader_are_not_published(queries: Queries, flow: Flow) -> None:
    other = f"other-{flow.name}"
    flow.broker.create_topic(other, 1)
    flow.produce(["a", "b"])
    options = {**flow.options(), "progress_topic": f"progress-{flow.name}"}
    queries.ask(_shared_by_readers, options, flow.bootstrap_servers, flow.source, other)
    with flow.connections() as connections:
        found = all_group_offsets(connections, flow.group_id, deadline(), positions=True)
    published = {partition for partition, one in found.items() if is_position(one.metadata)}
    assert published == {TopicPartition(flow.source, number) for number in (0, 1)}


def test_silent_losses_are_refused(flow: Flow, spark: SparkSession) -> None:
    """Spark skips them, and the sink checks only what it reads itself."""
    sink = ExactlyOnceSink(**flow.options(), delivery="staged")
    other = ExactlyOnceSink(**flow.options(), fail_on_data_loss=False)
    frame = other.read(spark, subscribe=flow.source)
    with pytest.raises(UnsupportedPipelineError, match="skipped silently"):
        sink.write(staging.repartitioned(frame))


@pytest.mark.slow
def test_a_source_compacted_between_a_copy_and_its_repetition(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is written; the state contains what the topic still has."""
    cleaning = {
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.dedupe.buffer.size": str(4 << 20),
    }
    with EmbeddedKafka(properties=cleaning) as broker:
        flow = Flow(broker, str(tmp_path / "checkpoint"), str(tmp_path / "workers"))
        broker.delete_topic(flow.source)
        compacted = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "segment.ms": "50",
        }
        broker.create_topic(flow.source, flow.partitions, compacted)

        def produce(numbers: range) -> None:
            producer = Producer({"bootstrap.servers": flow.source_servers})
            for number in numbers:
                customer = json.loads(record(number))["customer"]
                producer.produce(flow.source, record(number), customer, number % flow.partitions)
            assert producer.flush(60) == 0

        produce(range(_BATCH))
        with failing_once_staged():
            _run(spark, flow)
        time.sleep(0.1)
        # Only records outside the last segment are cleaned.
        produce(range(_BATCH, _BATCH + 10))
        _until_compacted(spark, flow, fewer_than=_BATCH)
        _run(spark, flow)
        found = totals_of(flow)
        assert found & _totals(6) == _totals(6)
        later = {customer: count for customer, count in found if count != 6}
        # With all records, each customer would have 8.
        assert later
        assert all(count < 8 for count in later.values())
    # There are as many rows as before, so it goes unnoticed that they are different rows.
    assert "computed again" not in caplog.text


def _until_compacted(spark: SparkSession, flow: Flow, fewer_than: int) -> None:
    until = time.monotonic() + 60
    while True:
        frame = spark.read.format("kafka").option("subscribe", flow.source)
        rows = frame.option("kafka.bootstrap.servers", flow.bootstrap_servers).load()
        if rows.count() < fewer_than:
            return
        assert time.monotonic() < until
        time.sleep(0.5)
