"""docs/observability.md: its code runs, and its tables are correct."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from pyspark.sql import SparkSession

from spark_eos.observability.prometheus import PrometheusMetrics
from spark_eos.testing.broker_properties import free_ports
from support.flow import Flow
from support.pages import code_blocks, page, run_block
from support.queries import relay, until
from support.reports import REPORT

LOGGING, METRICS, JOINED = code_blocks("observability", "python")


def test_the_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    run_block(LOGGING, {})
    logging.getLogger("spark_eos").info("%s", REPORT, extra=REPORT.fields())
    assert json.loads(capsys.readouterr().err)["batch_id"] == REPORT.batch_id


def _first_column(heading: str) -> set[str]:
    table = page("docs/observability.md").table(heading)
    cells = [row[table.columns[0]] for row in table.rows]
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_table_of_fields() -> None:
    steps = {"total", "range", "start", "stage", "plan", "job", "fence", "commit_end"}
    tasks = {"wait", "produce", "flush", "offsets", "commit"}
    fields = {name for name in REPORT.fields() if not name.endswith("_ms")}
    assert _first_column("The log") == fields | {f"{step}_ms" for step in steps | tasks}


def test_the_table_of_metrics() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry=registry)(REPORT)
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in registry.collect()
    }
    assert _first_column("Prometheus") == names


@contextmanager
def _running(
    code: str, flow: Flow, spark: SparkSession, **instead: str
) -> Iterator[dict[str, Any]]:
    """A block's variables, after a query with its sink; its listener stays until the end."""
    words = {
        "localhost:9092": flow.bootstrap_servers,
        "orders-observed": flow.group_id,
        "orders-watched": flow.target,
        "checkpoints/observed": flow.checkpoint,
        **instead,
    }
    names = run_block(code, words, spark=spark)
    try:
        frame = relay(names["sink"].read(spark, subscribe=flow.source))
        query = names["sink"].write(frame).trigger(availableNow=True).start()
        query.awaitTermination()
        names["sink"].close()
        yield names
    finally:
        spark.streams.removeListener(names["listener"])


@pytest.mark.slow
def test_the_metrics_with_lag(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(10))
    labels = {"group_id": flow.group_id, "source_topic": flow.source}
    port = {"9464": str(free_ports().client)}
    with _running(METRICS, flow, spark_eos_session, **port) as names:
        assert REGISTRY.get_sample_value("spark_eos_rows_written_total", labels) == 10
        until(
            lambda: REGISTRY.get_sample_value("spark_eos_source_lag_records", labels) == 0,
            lambda: "the lag",
        )
        names["metrics"].close()


@pytest.mark.slow
def test_the_joined_progress(
    flow: Flow, spark_eos_session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.produce(range(10))
    with _running(JOINED, flow, spark_eos_session):
        line = until(lambda: capsys.readouterr().out, lambda: "Spark's progress")
    assert re.match(r"batch 0: 10 rows, 0 behind,", line)
