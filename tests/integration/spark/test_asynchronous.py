"""Asynchronous progress tracking: Spark's logs lag behind, but the group's offsets do not."""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._checkpoint.files import ArrowFiles
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import (
    CheckpointError,
    OffsetsLostError,
    UnsupportedPipelineError,
)
from spark_eos.testing.broker_admin import admin_client
from support import groups
from support.connect_server import ConnectService
from support.flow import Flow
from support.queries import QueryProcess, relay, run_available, running, until
from support.sinks import arguments


@contextmanager
def _running(
    spark: SparkSession, flow: Flow, *, interval_ms: int, rows: int = 10
) -> Iterator[tuple[StreamingQuery, list[BatchReport]]]:
    """A query that runs until the block ends, and logs only some batches."""
    reports: list[BatchReport] = []
    with running(
        spark,
        flow,
        read={"options": {"maxOffsetsPerTrigger": str(rows)}},
        started_with={"asyncProgressTrackingCheckpointIntervalMs": str(interval_ms)},
        asynchronous_progress=True,
        on_batch=reports.append,
    ) as query:
        yield query, reports


def _logged(flow: Flow) -> list[int]:
    """The batches in the offset log."""
    names = [path.name for path in Path(flow.checkpoint, "offsets").iterdir()]
    return sorted(int(name) for name in names if name.isdecimal())


def _await(query: StreamingQuery, reports: list[BatchReport], count: int) -> None:
    def reached() -> bool:
        error = query.exception()
        assert error is None, error
        return sum(report.rows_written for report in reports) == count

    until(reached, lambda: f"{count} records, have {reports}", 240)


def _once(flow: Flow, count: int) -> None:
    assert sorted(map(int, flow.values())) == list(range(count))
    assert flow.open_transactions() == []


def _write_unlogged(spark: SparkSession, flow: Flow, new: range) -> None:
    """Writes new records in a run of which only the first batch is logged."""
    flow.produce(new)
    with _running(spark, flow, interval_ms=600_000) as (query, reports):
        _await(query, reports, len(new))


@pytest.mark.slow
@pytest.mark.parametrize(
    "delivery", ["flow", pytest.param("mirrored_flow", marks=pytest.mark.slow)]
)
def test_batches_that_are_not_logged_are_written_once(
    delivery: str, request: pytest.FixtureRequest, spark_eos_session: SparkSession
) -> None:
    flow: Flow = request.getfixturevalue(delivery)
    for new in (range(100), range(100, 150)):
        _write_unlogged(spark_eos_session, flow, new)
        _once(flow, new.stop)
    # The first run had a batch 1 as well, and more.
    assert _logged(flow) == [0, 1]


@pytest.mark.slow
def test_a_gap_in_the_log_is_closed_where_spark_needs_all_of_it(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_eos")
    flow.produce(range(200))
    with _running(spark_eos_session, flow, interval_ms=1) as (query, reports):
        _await(query, reports, 200)
    logged = _logged(flow)
    # As after batches that took less than the interval.
    for number in logged[1:-1]:
        Path(flow.checkpoint, "offsets", str(number)).unlink()
        Path(flow.checkpoint, "offsets", f".{number}.crc").unlink()
    flow.produce(range(200, 300))
    # Spark can't track this one's progress asynchronously.
    run_available(spark_eos_session, flow, asynchronous_progress=True)
    assert f"batch {logged[-1] - 1} added to the offset log" in caplog.text
    _once(flow, 300)
    flow.produce(range(300, 350))
    run_available(spark_eos_session, flow)
    _once(flow, 350)
    flow.produce(range(350, 400))
    with _running(spark_eos_session, flow, interval_ms=1_000) as (query, reports):
        _await(query, reports, 50)
    _once(flow, 400)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [[0], pytest.param([0, 1], marks=pytest.mark.slow)])
def test_a_log_that_lies_behind_restores_no_offset(
    partitions: list[int], flow: Flow, spark_eos_session: SparkSession
) -> None:
    _write_unlogged(spark_eos_session, flow, range(100))
    lost = [TopicPartition(flow.source, partition) for partition in partitions]
    groups.delete_offsets(flow.bootstrap_servers, flow.group_id, lost)
    # By the log only batch 0 is finished, and the next one begins after it.
    for wanted in (False, True):
        with pytest.raises(Exception, match=r"asynchronous_progress|had one before") as caught:
            run_available(spark_eos_session, flow, asynchronous_progress=wanted)
        assert OffsetsLostError.__name__ in str(caught.value)
    _once(flow, 100)


@pytest.mark.slow
def test_a_log_that_has_caught_up_proves_again_what_was_written(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    _write_unlogged(spark_eos_session, flow, range(100))
    # Skips what the log lacks; the batch after it begins where the group is.
    for count in (100, 140):
        flow.produce(range(count, count + 40))
        run_available(spark_eos_session, flow)
    groups.delete_group(flow.bootstrap_servers, flow.group_id)
    flow.produce(range(180, 200))
    run_available(spark_eos_session, flow)
    _once(flow, 200)


@pytest.mark.slow
def test_a_log_that_lies_behind_what_is_deleted(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    _write_unlogged(spark_eos_session, flow, range(100))
    admin = admin_client(flow.bootstrap_servers)
    starts = [confluent_kafka.TopicPartition(flow.source, p, 50) for p in range(2)]
    for deleted in admin.delete_records(starts).values():
        deleted.result(60)
    flow.produce(range(100, 120))
    with pytest.raises(Exception, match=r"CheckpointError.*continues at records that have been"):
        run_available(spark_eos_session, flow)
    flow.checkpoint += "-empty"
    run_available(spark_eos_session, flow)
    _once(flow, 120)


def _killed_within_a_batch(flow: Flow, tmp_path: Path, row: int) -> None:
    """Kills a query while its task holds a row whose batch is not in the log."""
    go = tmp_path / f"go-{row}"
    with QueryProcess(
        flow,
        tmp_path / f"killed-{row}.log",
        asynchronous_progress=True,
        available_now=False,
        max_offsets=10,
        log_interval_ms=600_000,
        hold=(str(go), str(row)),
    ) as query:
        waiting = Path(f"{go}.waiting")
        query.until(waiting.exists, f"row {row}", 240)
        finished = [report["batch_id"] for report in query.reports()]
    # By its log, Spark has the query's first batches yet to run.
    assert _logged(flow)[-1] < finished[-1], finished
    # The held row and the rows behind it in its batch are not written.
    assert flow.committed()[row % 2] <= row // 2


@pytest.mark.slow
def test_killed_at_random_moments(flow: Flow, tmp_path: Path) -> None:
    flow.produce(range(400))
    for first in (60, 180, 300):
        _killed_within_a_batch(flow, tmp_path, random.randrange(first, first + 100))
    with QueryProcess(
        flow,
        tmp_path / "last.log",
        asynchronous_progress=True,
        available_now=False,
        max_offsets=10,
    ) as query:
        query.until(lambda: flow.committed() == {0: 200, 1: 200}, "the end", 240)
    _once(flow, 400)


def _on_connect(spark: SparkSession, options: dict[str, Any], source: str) -> str:
    sink = ExactlyOnceSink(**arguments(**options, asynchronous_progress=True))
    try:
        sink.write(relay(sink.read(spark, subscribe=source)))
    except UnsupportedPipelineError as error:
        return str(error)
    return "not refused"


@pytest.mark.slow
def test_spark_connect_has_only_the_log(flow: Flow, connect_service: ConnectService) -> None:
    error = connect_service.queries.ask(_on_connect, flow.options(), flow.source)
    assert error.startswith("asynchronous_progress needs classic Spark")


def test_what_is_refused(flow: Flow, spark_eos_session: SparkSession) -> None:
    sink = ExactlyOnceSink(**flow.options(), asynchronous_progress=True)
    frame = sink.read(spark_eos_session, subscribe=flow.source)
    with pytest.raises(UnsupportedPipelineError, match=r"are staged.*asynchronous_progress"):
        sink.write(relay(frame).repartition(2))


def test_batches_of_a_function_that_are_staged(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(10))
    with (
        running(
            spark_eos_session,
            flow,
            function=lambda sink, batch, n: sink(batch.union(batch), n),
            asynchronous_progress=True,
        ) as query,
        pytest.raises(Exception, match=r"are staged.*asynchronous_progress"),
    ):
        query.awaitTermination(240)
    assert flow.values() == []
    assert flow.members() == []


def test_adopt_asks_the_group(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(10))
    with _running(spark_eos_session, flow, interval_ms=1_000) as (query, reports):
        _await(query, reports, 10)
    with pytest.raises(CheckpointError, match=rf"asynchronous_progress.*{flow.group_id}"):
        OffsetLog(ArrowFiles(flow.checkpoint)).finished()


@pytest.mark.slow
def test_a_log_without_the_batch_before_its_last(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    for new in (range(100), range(100, 150)):
        _write_unlogged(spark_eos_session, flow, new)
    Path(flow.checkpoint, "offsets", "0").unlink()
    # Spark reads the last one from the beginning on.
    _write_unlogged(spark_eos_session, flow, range(150, 170))
    _once(flow, 170)
