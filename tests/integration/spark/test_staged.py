"""Staged queries: each shape writes the same rows as a plain batch query, once."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink, errors
from spark_eos._delivery import staged_files as staged_files_module
from support import staging
from support.apis import ReportFile, started
from support.connect_server import ConnectService
from support.flow import Flow
from support.queries import Transform, relay, run_available
from support.sinks import arguments
from support.staging import failing_once_staged, record, run_staged, staged_files

_RECORDS = 100


def _produced(flow: Flow, numbers: Any = range(_RECORDS)) -> None:
    flow.produce(map(record, numbers))


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (staging.repartitioned, Counter(range(_RECORDS))),
        pytest.param(staging.joined, Counter(range(_RECORDS)), marks=pytest.mark.slow),
        pytest.param(
            staging.both_branches,
            Counter([*range(_RECORDS), *(-n for n in range(_RECORDS))]),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rows_that_move(
    flow: Flow,
    spark: SparkSession,
    transform: Callable[[DataFrame], DataFrame],
    expected: Counter[int],
) -> None:
    _produced(flow)
    written = run_staged(spark, flow, transform)
    assert Counter(row["n"] for row in written.rows) == expected
    assert {report.delivery for report in written.reports} == {"staged"}
    assert sum(report.rows_written for report in written.reports) == sum(expected.values())
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_counts_by_window(flow: Flow, spark: SparkSession) -> None:
    _produced(flow)
    run_staged(spark, flow, staging.windows)
    # A record far ahead closes all windows; its own stays open.
    _produced(flow, [10_000])
    written = run_staged(spark, flow, staging.windows)
    found = Counter((row["started"] - 1_700_000_000, row["customer"]) for row in written.rows)
    expected = {(10 * w, f"c{c}") for w in range(_RECORDS // 10) for c in range(5)}
    assert found == Counter(expected)
    assert {row["count"] for row in written.rows} == {2}


@pytest.mark.slow
def test_a_function_of_the_users_own_with_two_branches(flow: Flow, spark: SparkSession) -> None:
    _produced(flow)

    def both(sink: ExactlyOnceSink, rows: DataFrame, batch_id: int) -> None:
        other = rows.withColumn("value", F.lit(b"again"))
        sink(rows.union(other), batch_id)

    read = {"options": {"maxOffsetsPerTrigger": "40"}}
    reports = run_available(spark, flow, read=read, function=both)
    # It keeps its delivery when it is started again, also where a batch could be written directly.
    _produced(flow, range(_RECORDS, _RECORDS + 5))
    reports += run_available(spark, flow, read=read, function=both)
    assert {report.delivery for report in reports} == {"staged"}
    found = Counter(flow.values())
    assert found == Counter({**{record(n): 1 for n in range(105)}, "again": 105})


@pytest.mark.slow
def test_earlier_copies_are_swept(flow: Flow, spark: SparkSession) -> None:
    _produced(flow)
    reports = run_staged(spark, flow, staging.repartitioned, max_offsets=30).reports
    assert len(reports) > 2
    (left,) = staged_files(flow)
    assert left.startswith(f"{reports[-1].batch_id}-")


@pytest.mark.slow
def test_files_are_there_once_all_tasks_are_done(flow: Flow, spark: SparkSession) -> None:
    """Otherwise, an attempt that Spark has given up may replace a file after the staged commit."""

    def slow_in_one(frame: DataFrame) -> DataFrame:
        slow = F.expr(
            "CASE WHEN source.partition = 1 THEN CAST(concat(java_method('java.lang.Thread', "
            "'sleep', bigint(3000)), raise_error('the second task')) AS BINARY) ELSE value END"
        )
        return frame.select("source", slow.alias("value"))

    flow.produce(range(10))
    name = "mapreduce.fileoutputcommitter.algorithm.version"
    spark.conf.set(name, "2")
    try:
        with pytest.raises(StreamingQueryException, match="the second task"):
            run_available(spark, flow, slow_in_one, delivery="staged")
    finally:
        spark.conf.unset(name)
    copies = Path(flow.checkpoint) / "spark-eos" / "staged"
    assert [*copies.iterdir()]
    assert not [*copies.glob("*/part-*")]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "then"), [("direct", "staged"), ("staged", "direct")])
def test_the_delivery_of_a_checkpoint_can_not_change(
    flow: Flow, spark: SparkSession, before: str, then: str
) -> None:
    _produced(flow)

    def narrow(frame: DataFrame) -> DataFrame:
        return frame.select("source", "key", "value")

    run_staged(spark, flow, narrow, delivery=before)
    _produced(flow, range(_RECORDS, _RECORDS + 5))
    with pytest.raises(Exception, match=f"written with delivery='{before}'") as failure:
        run_staged(spark, flow, narrow, delivery=then)
    assert "CheckpointError" in str(failure.value)
    assert len(flow.values()) == _RECORDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then", "advice"),
    [
        (
            "staged",
            relay,
            (
                "with delivery='direct'. The offsets of the two deliveries mean different things: "
                "set delivery='staged', with the checkpoint it had;"
            ),
        ),
        pytest.param(
            "direct",
            staging.repartitioned,
            (
                "with delivery='staged', since the query has a shuffle (Exchange in its plan). "
                "The offsets of the two deliveries mean different things: change the query back, "
                "so that its delivery can be 'direct';"
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_query_does_not_start_over_with_another_delivery(
    flow: Flow, spark: SparkSession, before: str, then: Transform, advice: str
) -> None:
    _produced(flow)
    run_staged(spark, flow, relay, delivery=before)
    flow.checkpoint += "-empty"
    with pytest.raises(Exception, match=f"written with delivery='{before}'") as failure:
        run_staged(spark, flow, then)
    assert "CheckpointError" in str(failure.value)
    assert advice in str(failure.value)
    assert len(flow.values()) == _RECORDS


@pytest.mark.slow
def test_a_query_does_not_start_over_in_another_progress_topic(
    flow: Flow, spark: SparkSession
) -> None:
    _produced(flow)
    run_staged(spark, flow, staging.repartitioned, progress_topic=f"progress-{flow.name}")
    flow.checkpoint += "-empty"
    with pytest.raises(Exception, match=f"set progress_topic='progress-{flow.name}'") as failure:
        run_staged(spark, flow, staging.repartitioned)
    assert "CheckpointError" in str(failure.value)
    assert len(flow.values()) == _RECORDS


@pytest.mark.slow
def test_a_copy_without_topics_needs_the_sinks_topic(flow: Flow, spark: SparkSession) -> None:
    _produced(flow, range(5))

    def with_topic(frame: DataFrame) -> DataFrame:
        return staging.repartitioned(frame).withColumn("topic", F.lit(flow.target))

    with failing_once_staged():
        run_available(spark, flow, staging.repartitioned)
    with pytest.raises(StreamingQueryException, match=r"batch 0 was staged for the sink's topic="):
        run_available(spark, flow, with_topic, topic=None)
    assert flow.values() == []
    run_available(spark, flow, staging.repartitioned)
    assert sorted(json.loads(row)["n"] for row in flow.values()) == [*range(5)]
    # From here on, rows may name their topics.
    _produced(flow, range(5, 9))
    run_available(spark, flow, with_topic, topic=None)
    assert sorted(json.loads(row)["n"] for row in flow.values()) == [*range(9)]


def test_direct_refuses_what_must_be_staged(flow: Flow, spark: SparkSession) -> None:
    with pytest.raises(errors.UnsupportedPipelineError, match="a shuffle"):
        run_staged(
            spark, flow, lambda f: f.select("source", "value").repartition(2), delivery="direct"
        )


def _staged_on_connect(
    session: SparkSession, options: dict[str, Any], source: str, mode: str, transform: str
) -> list[str]:
    delivered: list[str] = []
    sink = ExactlyOnceSink(**arguments(**options))
    frame = sink.read(session, subscribe=source, options={"maxOffsetsPerTrigger": "30"})
    writer = sink.write(getattr(staging, transform)(frame)).outputMode(mode)
    query = started(writer.trigger(availableNow=True))
    assert query.awaitTermination(240)
    assert sink._written is not None
    delivered.append(sink._written.delivery.name)
    return delivered


@pytest.mark.slow
def test_spark_connect_with_a_checkpoint_on_another_file_system(
    connect_service: ConnectService, flow: Flow
) -> None:
    flow.checkpoint = f"viewfs://tests/files/{flow.name}/check point"
    _produced(flow)
    deliveries = connect_service.queries.ask(
        _staged_on_connect, flow.options(), flow.source, "append", "repartitioned"
    )
    assert deliveries == ["staged"]
    rows = [json.loads(value) for value in flow.values()]
    assert Counter(row["n"] for row in rows) == Counter(range(_RECORDS))
    copies = connect_service.files / flow.name / "check point" / "spark-eos" / "staged"
    with_rows = {path.parent.name for path in copies.glob("*/part-*.parquet")}
    assert len(with_rows) == 1


def _let_sessions_idle(_: BatchReport) -> None:
    """Makes each batch find that the session that reads copies was idle for long."""
    staged_files_module._SESSION_IDLE = 0.0  # type: ignore[misc]


def _totals_on_connect(
    session: SparkSession, options: dict[str, Any], source: str, reports: Path
) -> None:
    sink = ExactlyOnceSink(
        **arguments(**options, on_batch=[ReportFile(reports), _let_sessions_idle])
    )
    frame = sink.read(session, subscribe=source, options={"maxOffsetsPerTrigger": "30"})
    writer = sink.write(staging.totals(frame)).outputMode("update")
    query = started(writer.trigger(availableNow=True))
    assert query.awaitTermination(240)


@pytest.mark.slow
def test_batches_are_staged_where_sessions_end(
    connect_service: ConnectService, flow: Flow, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    for first in (0, 90):
        flow.produce(map(record, range(first, first + 90)))
        connect_service.queries.ask(_totals_on_connect, flow.options(), flow.source, reports)
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
        with pytest.raises(errors.UnsupportedPipelineError) as failure:
            sink.write(frame.repartition(2))
    return str(failure.value)


@pytest.mark.slow
def test_a_stream_that_the_client_does_not_see(connect_service: ConnectService, flow: Flow) -> None:
    """It may read uncommitted records, which only its source's options show."""
    error = connect_service.queries.ask(_behind_a_view, flow.options(), flow.source)
    assert "not through a view or SQL" in error
