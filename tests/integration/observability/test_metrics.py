"""Prometheus metrics of a query's batches."""

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos.observability.listener import BatchListener, BatchProgress
from spark_eos.observability.prometheus import PrometheusMetrics
from support.flow import Flow
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


def test_a_query_that_has_nothing_to_read_is_seen_and_served(
    flow: Flow, spark_eos_session: SparkSession, registry: CollectorRegistry
) -> None:
    """Spark says so, here twice a second."""
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
