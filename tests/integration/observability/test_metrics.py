"""Prometheus metrics of a query's batches."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos.observability.listener import BatchListener, BatchProgress
from spark_eos.observability.prometheus import PrometheusMetrics
from support.flow import Flow
from support.pipelines import waiting
from support.queries import relay, run_available, until


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"spark_eos_{name}", labels)


def test_metrics_and_progress_say_what_the_reports_say(
    flow: Flow, spark_eos_session: SparkSession, registry: CollectorRegistry
) -> None:
    metrics = PrometheusMetrics(registry=registry)
    joined: list[BatchProgress] = []
    listener = BatchListener(joined.append)

    def observe(report: BatchReport) -> None:
        metrics(report)
        listener(report)

    flow.produce(range(30))
    spark_eos_session.streams.addListener(listener)
    try:
        reports = run_available(
            spark_eos_session,
            flow,
            read={"options": {"maxOffsetsPerTrigger": "10"}},
            on_batch=observe,
        )
        until(lambda: len(joined) == 3, lambda: "Spark's progress")
    finally:
        spark_eos_session.streams.removeListener(listener)
    assert [j.report for j in joined] == reports
    for each in joined:
        assert str(each.progress.id) == each.report.query_id
        assert str(each.progress.runId) == each.report.query_run
        assert each.progress.numInputRows == each.report.rows_written
    assert [sum(j.lag.values()) for j in joined] == [20, 10, 0]
    assert joined[0].lag == {(flow.source, 0): 10, (flow.source, 1): 10}
    group, source = {"group_id": flow.group_id}, {"source_topic": flow.source}
    assert _value(registry, "batches_total", **group) == len(reports) == 3
    assert _value(registry, "retry_attempts_total", **group) == 0
    transactions = sum(report.transactions for report in reports)
    assert _value(registry, "transactions_total", **group) == transactions >= 3
    assert _value(registry, "written_bytes_total", **group) == sum(r.bytes_written for r in reports)
    assert _value(registry, "rows_written_total", **group, **source) == 30
    assert _value(registry, "rows_skipped_total", **group, **source) == 0
    assert _value(registry, "source_offsets_total", **group, **source) == 30
    assert _value(registry, "source_partitions", **group, **source) == 2
    total = sum(r.milliseconds["total"] for r in reports) / 1000
    assert _value(registry, "batch_duration_seconds_count", **group) == 3
    assert _value(registry, "batch_duration_seconds_sum", **group) == pytest.approx(total)
    job = sum(r.milliseconds["job"] for r in reports) / 1000
    assert _value(registry, "driver_duration_seconds_sum", **group, step="job") == pytest.approx(
        job
    )
    commit = sum(r.milliseconds["commit"] for r in reports) / 1000
    assert _value(registry, "task_duration_seconds_total", **group, step="commit") == pytest.approx(
        commit
    )


@pytest.mark.slow
def test_a_query_that_has_nothing_to_read_is_seen_and_served(
    flow: Flow, spark_eos_session: SparkSession, registry: CollectorRegistry
) -> None:
    """Spark reports this, here twice a second."""
    metrics = PrometheusMetrics(registry=registry)
    # As those of a new driver, which has had no batch.
    fresh = CollectorRegistry()
    served = PrometheusMetrics(registry=fresh, port=0)
    listeners = [BatchListener(one.on_progress, one.on_idle) for one in (metrics, served)]
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    spark_eos_session.conf.set(interval, "500ms")
    for listener in listeners:
        spark_eos_session.streams.addListener(listener)
    flow.produce(range(10))
    sink = ExactlyOnceSink(**flow.options(), on_batch=[metrics, listeners[0]])
    query = sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source))).start()
    listeners[1].on_query(query, flow.group_id)
    group = {"group_id": flow.group_id}

    def seen(found: CollectorRegistry) -> float:
        return _value(found, "last_seen_timestamp_seconds", **group) or 0.0

    try:
        query.processAllAvailable()
        last = _value(registry, "last_batch_timestamp_seconds", **group) or 0.0
        until(
            lambda: min(map(seen, (registry, fresh))) > last + 2 and served.port is not None,
            lambda: "Spark's idle events",
        )
        assert _value(registry, "last_batch_timestamp_seconds", **group) == last > 0
        assert _value(registry, "source_lag_records", **group, source_topic=flow.source) == 0
        assert _value(fresh, "batches_total", **group) is None
    finally:
        query.stop()
        sink.close()
        for listener in listeners:
            spark_eos_session.streams.removeListener(listener)
        spark_eos_session.conf.unset(interval)
        served.close()


@pytest.fixture
def often_idle(spark_eos_session: SparkSession) -> Iterator[SparkSession]:
    """A session in which Spark reports twice a second that a query has nothing to read."""
    name = "spark.sql.streaming.noDataProgressEventInterval"
    spark_eos_session.conf.set(name, "500ms")
    yield spark_eos_session
    spark_eos_session.conf.unset(name)


@contextmanager
def _running(
    spark: SparkSession, flow: Flow, metrics: PrometheusMetrics, go: Path
) -> Iterator[StreamingQuery]:
    """A query whose task waits at the value "poison"."""
    listener = BatchListener(metrics.on_progress, metrics.on_idle)
    spark.streams.addListener(listener)
    sink = ExactlyOnceSink(**flow.options(), on_batch=[metrics, listener])
    frame = waiting(relay(sink.read(spark, subscribe=flow.source)), str(go), "poison")
    query = sink.write(frame).start()
    try:
        yield query
    finally:
        go.touch()
        query.stop()
        sink.close()
        spark.streams.removeListener(listener)
        metrics.close()


@pytest.mark.slow
def test_a_query_that_hangs_is_not_seen(
    flow: Flow, often_idle: SparkSession, registry: CollectorRegistry, tmp_path: Path
) -> None:
    group: Any = {"group_id": flow.group_id}

    def seen() -> float:
        return _value(registry, "last_seen_timestamp_seconds", **group) or 0.0

    metrics = PrometheusMetrics(registry=registry)
    flow.produce(range(10))
    with _running(often_idle, flow, metrics, tmp_path / "go") as query:
        query.processAllAvailable()
        last = _value(registry, "last_batch_timestamp_seconds", **group)
        assert last is not None
        # It has nothing to read.
        until(lambda: seen() > last + 2, lambda: "Spark's idle events")
        assert _value(registry, "last_batch_timestamp_seconds", **group) == last
        # It hangs; there is more and more to read.
        flow.produce(["poison"])
        until((tmp_path / "go.waiting").exists, lambda: "the task")
        before = seen()
        flow.produce(range(10))
        time.sleep(3)
        assert seen() == before
        # All had been read when the last batch ended: the lag does not show it.
        assert _value(registry, "source_lag_records", **group, source_topic=flow.source) == 0
        (tmp_path / "go").touch()
        query.processAllAvailable()
