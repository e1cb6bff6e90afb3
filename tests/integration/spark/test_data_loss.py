"""Source records deleted before they were read cause spark-eos' own error, or are reported."""

import logging

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_eos import BatchReport, LostRecords
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.observability.prometheus import PrometheusMetrics
from support import groups
from support.flow import Flow
from support.planting import remove
from support.queries import run_available


def test_records_deleted_before_they_were_read_end_the_query(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(10), partition=0)
    run_available(spark_eos_session, flow)
    flow.produce(range(10, 30), partition=0)
    flow.produce(["other"], partition=1)
    remove(flow, flow.source, 0, 14)
    with pytest.raises(StreamingQueryException) as failure:
        run_available(spark_eos_session, flow)
    text = str(failure.value)
    assert f"RecordsLostError: batch 1 of group {flow.group_id!r}" in text
    assert f"{flow.source}-0 offsets 10 to 13" in text
    assert f"--topic {flow.source}:0 --to-offset 14" in text
    assert "fail_on_data_loss=False" in text
    # Spark's own words are 20,000 characters long.
    assert len(text) < 6_000
    assert "other" not in flow.values()
    # What it advises, without the checkpoint.
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 14})
    flow.checkpoint += "-anew"
    run_available(spark_eos_session, flow)
    assert sorted(flow.values()) == sorted([*map(str, [*range(10), *range(14, 30)]), "other"])


@pytest.mark.slow
def test_a_log_that_was_cut_ends_the_query(flow: Flow, spark_eos_session: SparkSession) -> None:
    """Like an unclean leader election: here, another topic's offsets stand in for it."""
    flow.produce(range(10), partition=0)
    run_available(spark_eos_session, flow)
    groups.set_offsets(
        flow.bootstrap_servers,
        flow.group_id,
        {TopicPartition(flow.source, 0): 15},
    )
    flow.checkpoint += "-anew"
    flow.produce(["other"], partition=1)
    with pytest.raises(StreamingQueryException) as failure:
        run_available(spark_eos_session, flow, fail_on_data_loss=False)
    text = str(failure.value)
    assert f"{flow.source}-0 ends at 10, and group {flow.group_id!r} has read it up to 15" in text
    assert f"--topic {flow.source}:0 --to-offset 10" in text
    # What it advises.
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 10})
    flow.checkpoint += "-again"
    flow.produce(range(10, 15), partition=0)
    run_available(spark_eos_session, flow, fail_on_data_loss=False)
    assert sorted(flow.values()) == sorted([*map(str, range(15)), "other"])


@pytest.mark.slow
def test_what_was_deleted_is_reported_if_the_user_says_so(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    flow.produce(range(10), partition=0)
    run_available(spark_eos_session, flow)
    flow.produce(range(10, 30), partition=0)
    remove(flow, flow.source, 0, 14)
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)
    seen: list[BatchReport] = []

    def on_batch(report: BatchReport) -> None:
        seen.append(report)
        metrics(report)

    with caplog.at_level(logging.WARNING, "spark_eos"):
        run_available(spark_eos_session, flow, on_batch=on_batch, fail_on_data_loss=False)
    assert [report.lost for report in seen] == [(LostRecords(flow.source, 0, 10, 14),)]
    (warned,) = [r.getMessage() for r in caplog.records if "deleted" in r.getMessage()]
    assert f"{flow.source}-0 offsets 10 to 13 were deleted before they were read" in warned
    labels = {"group_id": flow.group_id, "source_topic": flow.source}
    assert registry.get_sample_value("spark_eos_source_offsets_lost_total", labels) == 4
    assert sorted(flow.values()) == sorted(map(str, [*range(10), *range(14, 30)]))
    # Once is enough.
    flow.produce(["new"], partition=0)
    run_available(spark_eos_session, flow, on_batch=on_batch, fail_on_data_loss=False)
    assert seen[-1].lost == ()


@pytest.mark.slow
def test_records_deleted_from_an_added_partition(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(4), partition=0)
    run_available(spark_eos_session, flow)
    flow.broker.add_partitions(flow.source, 3)
    flow.produce(range(10, 15), partition=2)
    remove(flow, flow.source, 2, 3)
    # As docs/errors.md has it: Spark refuses it before the batch begins.
    with pytest.raises(StreamingQueryException, match=r"Added partition .* starts from 3 instead"):
        run_available(spark_eos_session, flow)
    assert sorted(flow.values()) == ["0", "1", "2", "3"]
    (report,) = run_available(spark_eos_session, flow, fail_on_data_loss=False)
    assert report.lost == (LostRecords(flow.source, 2, 0, 3),)
    assert sorted(flow.values()) == ["0", "1", "13", "14", "2", "3"]
    assert flow.committed() == {0: 4, 1: 0, 2: 5}
