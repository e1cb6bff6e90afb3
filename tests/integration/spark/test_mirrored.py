"""Mirrored queries: the source in one cluster, target and progress in another."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink, errors
from spark_eos.testing import process_available
from support import staging
from support.apis import ReportFile, started
from support.connect_server import ConnectService
from support.mirroring import MirroredFlow
from support.sinks import arguments


def _run(
    spark: SparkSession, flow: MirroredFlow, transform: Any = None, **options: Any
) -> list[BatchReport]:
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**arguments(**{**flow.options(), **options}, on_batch=reports.append))
    frame = sink.read(spark, subscribe=flow.source, options={"maxOffsetsPerTrigger": "30"})
    rows = frame.select("source", "key", "value") if transform is None else transform(frame)
    try:
        process_available(sink.write(rows), timeout=240)
    finally:
        sink.close()
    return reports


@pytest.mark.proves("mirrored-checkpoint-lost")
def test_a_narrow_query_is_mirrored(spark_eos_session: SparkSession, mirrored_flow: Any) -> None:
    flow = mirrored_flow
    flow.produce(range(100))
    reports = _run(spark_eos_session, flow)
    assert {report.delivery for report in reports} == {"mirrored"}
    assert {part.topic for report in reports for part in report.partitions} == {flow.source}
    flow.produce(range(100, 120))
    # The checkpoint continues it; so does an empty one, without a record written again.
    _run(spark_eos_session, flow)
    shutil.rmtree(flow.checkpoint)
    flow.produce(range(120, 150))
    (report,) = _run(spark_eos_session, flow)
    assert (report.rows_written, report.rows_skipped) == (30, 0)
    assert sorted(flow.values(), key=int) == [str(n) for n in range(150)]
    assert sum(flow.committed().values()) == 150
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_a_transactional_source_leaves_no_lag(
    spark_eos_session: SparkSession, mirrored_flow: Any
) -> None:
    flow = mirrored_flow
    flow.produce_in_transaction("ab")
    for _ in range(2):
        flow.produce_in_transaction(["aborted"], commit=False)
        _run(spark_eos_session, flow)
        assert flow.committed() == dict(enumerate(flow.ends()))
    assert sorted(flow.values()) == ["a", "a", "b", "b"]


@pytest.mark.slow
def test_what_is_not_narrow_is_staged(spark_eos_session: SparkSession, mirrored_flow: Any) -> None:
    flow = mirrored_flow
    flow.produce(map(staging.record, range(60)))
    with pytest.raises(errors.UnsupportedPipelineError):
        _run(spark_eos_session, flow, staging.repartitioned, delivery="mirrored")
    reports = _run(spark_eos_session, flow, staging.repartitioned)
    assert {report.delivery for report in reports} == {"staged"}
    assert len(flow.values()) == 60
    # Its offsets mean something else: not to be mirrored from now on.
    flow.produce([staging.record(60)])
    with pytest.raises(StreamingQueryException, match="set delivery='staged'"):
        _run(spark_eos_session, flow, delivery="mirrored")


@pytest.mark.slow
def test_a_row_to_blame_is_named_by_its_source(
    spark_eos_session: SparkSession, mirrored_flow: Any
) -> None:
    flow = mirrored_flow
    flow.produce(["a", "b", "c"], partition=1)

    def inflated(frame: DataFrame) -> DataFrame:
        text = F.col("value").cast("string")
        long = F.when(text == "c", F.expr("repeat('x', 2000000)")).otherwise(text)
        return frame.select("source", long.alias("value"))

    with pytest.raises(StreamingQueryException, match=f"source {flow.source}-1 offset 2"):
        _run(spark_eos_session, flow, inflated)
    assert flow.values() == []


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"delivery": "direct"}, "use delivery='mirrored'"),
        (
            {"delivery": "mirrored", "source_kafka": None},
            "give its client settings as source_kafka",
        ),
        ({"source_kafka": {}}, "source_kafka: kafka needs 'bootstrap.servers'"),
        ({"source_kafka": {"bootstrap.servers": "a:1", "group.id": "g"}}, "source_kafka: "),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], cure: str) -> None:
    given = {
        "kafka": {"bootstrap.servers": "localhost:1"},
        "source_kafka": {"bootstrap.servers": "localhost:2"},
        "group_id": "g",
        "checkpoint_location": "c",
    }
    with pytest.raises(errors.ConfigurationError, match=cure):
        ExactlyOnceSink(**arguments(**{**given, **options}))


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
