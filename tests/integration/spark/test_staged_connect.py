"""Queries on Spark Connect whose batches are staged."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._spark import staged_copies
from spark_eos.errors import UnsupportedPipelineError
from support import staging
from support.apis import ReportFile, started
from support.connect_server import ConnectService
from support.flow import Flow
from support.sinks import arguments
from support.staging import record

pytestmark = pytest.mark.slow


def _let_sessions_idle(_: BatchReport) -> None:
    """Makes each batch find that the session that reads copies was idle for long."""
    staged_copies._SESSION_IDLE = 0.0  # type: ignore[misc]


def _run(session: SparkSession, options: dict[str, Any], source: str, reports: Path) -> None:
    sink = ExactlyOnceSink(
        **arguments(**options, on_batch=[ReportFile(reports), _let_sessions_idle])
    )
    frame = sink.read(session, subscribe=source, options={"maxOffsetsPerTrigger": "30"})
    writer = sink.write(staging.totals(frame)).outputMode("update")
    query = started(writer.trigger(availableNow=True))
    assert query.awaitTermination(240)


def test_batches_are_staged_where_sessions_end(
    connect_service: ConnectService, flow: Flow, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    for first in (0, 90):
        flow.produce(map(record, range(first, first + 90)))
        connect_service.queries.ask(_run, flow.options(), flow.source, reports)
    found = [json.loads(value) for value in flow.values()]
    each = Counter((row["customer"], row["count"]) for row in found)
    assert set(each.values()) == {1}
    assert set(each) == {(f"c{c}", n) for c in range(5) for n in range(6, 37, 6)}
    assert {report["delivery"] for report in ReportFile(reports).reports()} == {"staged"}
    left = (Path(flow.checkpoint) / "spark-eos" / "staged").iterdir()
    assert {path.name.partition("-")[0] for path in left} == {"5"}


def _behind_a_view(session: SparkSession, options: dict[str, Any], source: str) -> str:
    read = {
        "kafka.bootstrap.servers": options["kafka"]["bootstrap.servers"],
        "subscribe": source,
    }
    session.readStream.format("kafka").options(**read).load().createOrReplaceTempView("hidden")
    sink = ExactlyOnceSink(**arguments(**options))
    hidden = session.table("hidden").select("value")
    seen = sink.read(session, subscribe=source).select("value")
    for frame in (hidden, session.sql("select value from hidden"), seen.union(hidden)):
        with pytest.raises(UnsupportedPipelineError) as failure:
            sink.write(frame.repartition(2))
    return str(failure.value)


def test_a_stream_that_the_client_does_not_see(connect_service: ConnectService, flow: Flow) -> None:
    """It may read uncommitted records, which only the options of its source tell."""
    error = connect_service.queries.ask(_behind_a_view, flow.options(), flow.source)
    assert "not through a view or SQL" in error
