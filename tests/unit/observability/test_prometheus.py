"""Prometheus metrics of the batches, and the dashboard that shows them."""

import contextlib
import json
import pickle
import re
import socket
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from spark_eos import BatchReport, ConfigurationError, PartitionReport
from spark_eos.observability.listener import BatchProgress
from spark_eos.observability.prometheus import PrometheusMetrics
from support.jobs import ROOT
from support.pages import code_blocks
from support.reports import REPORT, progress


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def _value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"spark_eos_{name}", labels)


def test_metrics_count_what_was_skipped_and_written_again(registry: CollectorRegistry) -> None:
    PrometheusMetrics(registry=registry)(REPORT)
    group = {"group_id": REPORT.group_id}
    assert _value(registry, "retry_attempts_total", **group) == 1
    assert _value(registry, "rows_skipped_total", **group, source_topic="a") == 1
    assert _value(registry, "timestamps_adjusted_total", **group) == 4
    # How much of a new partition is in its first batch, nobody knows.
    assert _value(registry, "source_offsets_total", **group, source_topic="a") == 4


def _exposed(registry: CollectorRegistry) -> list[Metric]:
    metrics = PrometheusMetrics(registry=registry)
    metrics(REPORT)
    metrics.on_progress(BatchProgress(REPORT, progress({"a": {"0": 7}}, {"a": {"0": 10}})))
    # A strict parser: it refuses what OpenMetrics does not allow.
    text = openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def test_names_follow_the_conventions(registry: CollectorRegistry) -> None:
    families = _exposed(registry)
    assert len(families) == 17
    for family in families:
        assert family.samples, family.name
        assert re.fullmatch(r"spark_eos_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith(".")
        # Base units alone, and the type is not part of the name.
        words = set(family.name.split("_"))
        assert not words & {"ms", "milliseconds", "minutes", "kb", "kilobytes", "percent"}
        assert not words & {"counter", "gauge", "histogram", "summary", "total", "count", "sum"}
        assert ("duration" not in words) or family.name.endswith("_seconds")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (
                family.type == "counter" and not sample.name.endswith("_created")
            )
            assert sample.labels.keys() <= {"group_id", "source_topic", "step", "reason", "le"}
            assert not sample.labels.keys() & words


def test_the_number_of_series_does_not_grow_with_partitions(registry: CollectorRegistry) -> None:
    before = sum(len(family.samples) for family in _exposed(registry))
    many = tuple(PartitionReport("a", p, 0, 1, 1, 0, 1) for p in range(500))
    metrics = PrometheusMetrics(registry=registry)
    metrics(BatchReport(**{**vars(REPORT), "partitions": many, "batch_id": 8}))
    assert sum(len(family.samples) for family in registry.collect()) == before


def test_metrics_are_served_and_stop_being_served(registry: CollectorRegistry) -> None:
    metrics = PrometheusMetrics(registry=registry, port=0, address="127.0.0.1")
    assert metrics.port is None
    metrics(REPORT)
    # As when a notebook's cell is run again.
    again = PrometheusMetrics(registry=registry, port=metrics.port, address="127.0.0.1")
    again(REPORT)
    port = metrics.port
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    assert 'spark_eos_batches_total{group_id="orders and more"} 2.0' in text
    again.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    # What Spark still tells after the query's end does not start it again.
    again(REPORT)
    assert again.port is None


def test_a_taken_port_is_named(registry: CollectorRegistry) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        metrics = PrometheusMetrics(registry=registry, port=port, address="127.0.0.1")
        with pytest.raises(ConfigurationError, match=rf"127.0.0.1:{port} \(Address already in use"):
            metrics(REPORT)
    # It is tried again with the next batch, and no batch is left out.
    metrics(REPORT)
    assert metrics.port == port
    assert _value(registry, "batches_total", group_id=REPORT.group_id) == 2
    metrics.close()


def test_metrics_travel_without_what_was_started(registry: CollectorRegistry) -> None:
    metrics = PrometheusMetrics(port=0, address="127.0.0.1")
    metrics(REPORT)
    copy = pickle.loads(pickle.dumps(metrics))  # noqa: S301 - made here
    assert copy.port is None
    metrics.close()
    with pytest.raises(ConfigurationError, match="omit registry and give a port"):
        pickle.dumps(PrometheusMetrics(registry=registry))


def _dashboard() -> list[str]:
    board = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text())
    variables = {v["name"]: v["query"] for v in board["templating"]["list"]}
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*shown, variables["group_id"]["query"]]


def _alerts() -> list[str]:
    rules = code_blocks("observability", "yaml")
    pattern = r"- alert: \w+\n +expr: (?:>-\n)?((?:.+\n)+?)(?= +- alert|\Z)"
    return re.findall(pattern, "".join(rules))


@pytest.mark.parametrize("expression", [*_dashboard(), *_alerts()])
def test_panels_and_alerts_use_exported_metrics(
    expression: str, registry: CollectorRegistry
) -> None:
    exported = {s.name: s.labels.keys() for family in _exposed(registry) for s in family.samples}
    names = set(re.findall(r"\bspark_eos_\w+", expression))
    assert names
    assert names <= exported.keys()
    grouped = re.findall(r"\bby \(([^)]*)\)\s*\((?:\w+\()?(\w+)", expression)
    assert len(grouped) == len(re.findall(r"\bby\b", expression))
    selected = re.findall(r"\b(spark_eos_\w+)\{(\w+)", expression)
    for labels, name in [*grouped, *((label, name) for name, label in selected)]:
        assert set(labels.split(", ")) <= exported[name]


def test_the_dashboard_and_the_alerts_are_complete(registry: CollectorRegistry) -> None:
    shown = " ".join(_dashboard())
    # All of them, but what has a panel in another form.
    assert {family.name for family in _exposed(registry) if family.name not in shown} == {
        "spark_eos_source_partitions",
        "spark_eos_source_offsets_lost",
        "spark_eos_timestamps_adjusted",
    }
    assert [re.findall(r"spark_eos_\w+", alert) for alert in _alerts()] == [
        ["spark_eos_last_seen_timestamp_seconds"],
        ["spark_eos_retry_attempts_total"],
    ]


def test_only_this_host_reaches_metrics_by_default(registry: CollectorRegistry) -> None:
    for address, reached in ({}, False), ({"address": "0.0.0.0"}, True):  # noqa: S104
        metrics = PrometheusMetrics(registry=registry, port=0, **address)
        metrics(REPORT)
        assert metrics.port is not None
        try:
            socket.create_connection(("127.0.0.1", metrics.port), 5).close()
            # Another address of this host: only whoever listens on all of them answers there.
            with contextlib.ExitStack() as refused:
                if not reached:
                    refused.enter_context(pytest.raises(ConnectionRefusedError))
                socket.create_connection(("127.0.0.2", metrics.port), 5).close()
        finally:
            metrics.close()


def test_a_staged_batch_without_rows_is_counted(registry: CollectorRegistry) -> None:
    empty = replace(REPORT, attempts=0, transactions=0, milliseconds={"total": 5.0})
    PrometheusMetrics(registry=registry)(empty)
    labels = {"group_id": REPORT.group_id}
    assert _value(registry, "retry_attempts_total", **labels) == 0
    assert _value(registry, "last_seen_timestamp_seconds", **labels)


def test_metrics_are_served_again_if_another_object_has_stopped(
    registry: CollectorRegistry,
) -> None:
    first = PrometheusMetrics(registry=registry, port=0)
    first(REPORT)
    second = PrometheusMetrics(registry=registry, port=first.port)
    second(REPORT)
    first.close()
    second(REPORT)
    with urllib.request.urlopen(f"http://127.0.0.1:{second.port}/metrics", timeout=60) as answer:
        assert answer.status == 200
    second.close()
