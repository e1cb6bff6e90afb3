"""Mirrored queries: the source in one cluster, target and progress in another."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos import ExactlyOnceSink
from support.apis import ReportFile, started
from support.connect_server import ConnectService
from support.mirroring import MirroredFlow
from support.queries import run_available
from support.sinks import arguments

_BATCHES = {"options": {"maxOffsetsPerTrigger": "30"}}


@pytest.mark.proves("mirrored-checkpoint-lost")
def test_a_narrow_query_is_mirrored(spark_eos_session: SparkSession, mirrored_flow: Any) -> None:
    flow = mirrored_flow
    flow.produce(range(100))
    reports = run_available(spark_eos_session, flow, read=_BATCHES)
    assert {report.delivery for report in reports} == {"mirrored"}
    assert {part.topic for report in reports for part in report.partitions} == {flow.source}
    flow.produce(range(100, 120))
    # The checkpoint continues it; so does an empty one, without a record written again.
    run_available(spark_eos_session, flow, read=_BATCHES)
    shutil.rmtree(flow.checkpoint)
    flow.produce(range(120, 150))
    (report,) = run_available(spark_eos_session, flow, read=_BATCHES)
    assert (report.rows_written, report.rows_skipped) == (30, 0)
    assert sorted(flow.values(), key=int) == [str(n) for n in range(150)]
    assert sum(flow.committed().values()) == 150
    assert flow.open_transactions() == []


def _copy(session: SparkSession, options: dict[str, Any], source: str, reports: Path) -> None:
    sink = ExactlyOnceSink(**arguments(**options, on_batch=ReportFile(reports)))
    frame = sink.read(session, subscribe=source, options={"maxOffsetsPerTrigger": "30"})
    rows = frame.select("source", "key", "value")
    assert started(sink.write(rows).trigger(availableNow=True)).awaitTermination(240)


@pytest.mark.slow
def test_on_spark_connect(
    connect_service: ConnectService, mirrored_flow: MirroredFlow, tmp_path: Path
) -> None:
    flow, reports = mirrored_flow, tmp_path / "reports"
    for first in (0, 60):
        flow.produce(range(first, first + 60))
        connect_service.queries.ask(_copy, flow.options(), flow.source, reports)
    assert sorted(map(int, flow.values())) == list(range(120))
    assert {report["delivery"] for report in ReportFile(reports).reports()} == {"mirrored"}
    assert sum(flow.committed().values()) == 120
