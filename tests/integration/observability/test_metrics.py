"""Prometheus metrics of a query's batches."""

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from spark_eos.observability.prometheus import PrometheusMetrics
from support.flow import Flow
from support.queries import run_available


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"spark_eos_{name}", labels)


def test_metrics_say_what_the_reports_say(
    flow: Flow, spark_eos_session: SparkSession, registry: CollectorRegistry
) -> None:
    metrics = PrometheusMetrics(registry=registry)
    flow.produce(range(30))
    reports = run_available(
        spark_eos_session,
        flow,
        read={"options": {"maxOffsetsPerTrigger": "10"}},
        on_batch=metrics,
    )
    group, source = {"group_id": flow.group_id}, {"source_topic": flow.source}
    assert _value(registry, "batches_total", **group) == len(reports) == 3
    assert _value(registry, "retry_rounds_total", **group) == 0
    assert _value(registry, "transactions_total", **group) == 6
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
