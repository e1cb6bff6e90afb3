"""Spark Connect: what differs from classic Spark, on a real server; `test_apis.py` has the rest.

On Connect, the sink has its own process, which a signal ends and which may outlive the server.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_eos import ExactlyOnceSink
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._spark.failed_query import cause_of
from spark_eos._spark.spark_files import SparkFiles, own_checkpoint
from spark_eos.errors import CheckpointError, ConfigurationError, UnsupportedPipelineError
from spark_eos.observability.listener import BatchListener
from support import groups
from support.apis import Api, Queries, RunningQuery, started
from support.connect_server import ConnectService, lives
from support.flow import Flow
from support.holding import produce_with_hold
from support.pages import code_blocks, run_query
from support.proxy import KafkaProxy
from support.proxy_faults import HoldAnswer
from support.queries import run_available, until
from support.sinks import arguments
from support.writers import Writer


@pytest.fixture
def api(connect_service: ConnectService) -> Api:
    return Api(connect_service.queries)


def _is_cause_alone(cause: str, begin: str) -> None:
    assert cause.startswith(begin)
    for spark in ("SQLSTATE", "Logical Plan", "Traceback", "  File ", "Streaming Query", "\n\tat"):
        assert spark not in cause


def _held(api: Api, flow: Flow, go: Path, **options: Any) -> RunningQuery:
    """A query in the middle of a transaction, whose task waits at a row."""
    query = api.start(flow, "held", arguments={"go": str(go)}, available_now=False, **options)
    until(lambda: flow.committed().get(1) == 500, lambda: "the other partition's end")
    until(flow.open_transactions, lambda: "an open transaction")
    until(lambda: _waits(go), lambda: "the task to wait")
    return query


def _waits(go: Path) -> bool:
    sign = Path(f"{go}.waiting")
    return sign.exists() and time.time() - sign.stat().st_mtime < 0.5


@pytest.mark.slow
def test_stopping_within_a_batch_leaves_nothing_behind(
    api: Api, connect_service: ConnectService, flow: Flow, tmp_path: Path
) -> None:
    expected = produce_with_hold(flow)
    go = tmp_path / "go"
    query = _held(api, flow, go)
    (sink,) = connect_service.server.sinks()
    query.stop()
    # Otherwise, the task would wait forever, and its transaction would stay open for a minute.
    until(lambda: not flow.members(), lambda: "the members to leave", timeout=30)
    until(lambda: not flow.open_transactions(), lambda: "the transactions to end", timeout=5)
    until(lambda: not _waits(go), lambda: "the task to be cancelled", timeout=5)
    until(lambda: not lives(sink), lambda: "the sink's process to end", timeout=15)
    assert flow.open_transactions() == []
    assert flow.committed() == {0: 0, 1: 500}
    go.touch()
    api.start(flow).replay()
    assert sorted(flow.values()) == expected


@pytest.mark.slow
def test_stopped_and_started_at_once(api: Api, flow: Flow, tmp_path: Path) -> None:
    """The older run's end must not interfere with the newer run."""
    expected = produce_with_hold(flow)
    query = _held(api, flow, tmp_path / "go")
    query.stop()
    query = api.start(flow)
    query.replay()
    assert sorted(flow.values()) == expected
    assert query.reports()[-1]["attempts"] == 1


@pytest.mark.slow
def test_stopped_before_its_job_it_joins_first_and_then_leaves(
    api: Api, connect_service: ConnectService, proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    """An interrupted join may have reached the broker, and its member would stay."""
    flow = proxied_flow
    flow.produce(range(10))
    go = threading.Event()
    joining = proxy.on(ConsumerGroupHeartbeatRequest, HoldAnswer(go))
    query = api.start(flow, available_now=False)
    joining.await_hit()
    (sink,) = connect_service.server.sinks()
    query.stop()
    time.sleep(1)
    go.set()
    until(lambda: not lives(sink), lambda: "the sink's process to end", timeout=15)
    assert flow.members() == []
    assert flow.written() == []


@pytest.mark.slow
def test_small_batches_take_no_more_tasks_than_can_run_at_a_time(
    api: Api, new_flow: Callable[..., Flow]
) -> None:
    flow = new_flow(partitions=6)
    flow.produce(range(2_400))
    # More than go in one task.
    query = api.start(flow, max_offsets=1_200)
    query.replay()
    assert [r["transactions"] for r in query.reports()] == [2, 2]
    assert sorted(map(int, flow.values())) == list(range(2_400))


@pytest.mark.slow
def test_an_error_reaches_the_client_with_its_words(api: Api, flow: Flow) -> None:
    flow.produce(range(4))
    api.start(flow).replay()
    # The sink's process leaves the group a moment after the query's end.
    until(lambda: flow.members() == [], lambda: "the members to leave")
    groups.set_offsets(flow.bootstrap_servers, flow.group_id, {TopicPartition(flow.source, 0): 1})
    flow.produce(["new"])
    error = api.start(flow).error()
    assert error is not None
    assert f"{flow.source}-0" in error
    _is_cause_alone(cause_of(error), "OffsetGapError: ")
    until(lambda: flow.members() == [], lambda: "the members to leave")


def _without_write(session: SparkSession, options: dict[str, Any], source: str) -> str:
    sink = ExactlyOnceSink(**arguments(**options))
    frame = sink.read(session, subscribe=source).select("source", "value")
    writer = frame.repartition(2).writeStream.foreachBatch(sink)
    return _failure(writer.option("checkpointLocation", options["checkpoint_location"]))


def _wide_in_its_second_batch(
    session: SparkSession, options: dict[str, Any], source: str, what: str
) -> str:
    sink = ExactlyOnceSink(**arguments(**options, delivery="direct"))
    frame = sink.read(session, subscribe=source, options={"maxOffsetsPerTrigger": "8"})
    frame = frame.select("source", "value")

    def batch(rows: DataFrame, batch_id: int) -> None:
        if batch_id > 0 and what == "repartition":
            rows = rows.repartition(2)
        if batch_id > 0 and what == "checkpoint":
            rows = rows.repartition(2).localCheckpoint()
        if batch_id > 0 and what == "union":
            even = rows.where("source.offset % 2 = 0").persist()
            rows = even.union(rows.where("source.offset % 2 = 1")).coalesce(1)
        sink(rows, batch_id)

    return _failure(sink.write(frame).foreachBatch(batch))


def _joined_without_a_hint(session: SparkSession, options: dict[str, Any], source: str) -> str:
    sink = ExactlyOnceSink(**arguments(**options, delivery="direct"))
    frame = sink.read(session, subscribe=source)
    table = session.range(9).withColumnRenamed("id", "offset")
    with pytest.raises(UnsupportedPipelineError) as failure:
        sink.write(frame.join(table, "offset").select("source", "value"))
    return str(failure.value)


def _with_a_listener(session: SparkSession, options: dict[str, Any], source: str) -> str:
    sink = ExactlyOnceSink(**arguments(**options, on_batch=BatchListener(print)))
    writer = sink.write(sink.read(session, subscribe=source).select("source", "value"))
    with pytest.raises(ConfigurationError) as failure:
        writer.start()
    return failure.value.text


def _by_sql(session: SparkSession, options: dict[str, Any], source: str) -> dict[str, str]:
    """The refusals of streams read by SQL, and of a plan that Spark truncates."""
    sink = ExactlyOnceSink(**arguments(**options))
    frame = sink.read(session, subscribe=source).select("source", "value")
    frame.createOrReplaceTempView("a_stream")
    refusals = {}

    def note(name: str, written: DataFrame) -> None:
        try:
            sink.write(written)
        except UnsupportedPipelineError as error:
            refusals[name] = str(error)

    note("a view", session.table("a_stream"))
    note("SQL", session.sql("SELECT * FROM a_stream"))
    note("a parameter", session.sql("SELECT source, value FROM {v} WHERE value <> 'a'", v=frame))
    note("UNION", session.sql("SELECT * FROM {v} UNION ALL SELECT * FROM {v}", v=frame))
    session.conf.set("spark.sql.maxPlanStringLength", "100")
    try:
        note("cut", frame)
    finally:
        session.conf.unset("spark.sql.maxPlanStringLength")
    note("as it is", frame)
    return refusals


@pytest.mark.slow
def test_what_a_client_does_not_see_is_refused_in_words(
    connect_service: ConnectService, flow: Flow
) -> None:
    options = {**flow.options(), "delivery": "direct"}
    refusals = connect_service.queries.ask(_by_sql, options, flow.source)
    assert "spark.sql.maxPlanStringLength" in refusals.pop("cut")
    assert refusals.keys() == {"a view", "SQL", "UNION"}
    assert refusals.pop("UNION")
    for text in refusals.values():
        assert "on Spark Connect pass the DataFrame on as it is, not through a view or SQL" in text


@pytest.mark.slow
def test_an_on_batch_that_can_not_be_copied(connect_service: ConnectService, flow: Flow) -> None:
    error = connect_service.queries.ask(_with_a_listener, flow.options(), flow.source)
    assert "a BatchListener works within one process" in error


def _failure(writer: Writer) -> str:
    query = started(writer.trigger(availableNow=True))
    with pytest.raises(StreamingQueryException) as failure:
        query.awaitTermination(240)
    return str(failure.value)


@pytest.mark.slow
def test_a_batch_that_may_have_been_shuffled(connect_service: ConnectService, flow: Flow) -> None:
    """Connect shows no lineage, so only `sink.write` can check this."""
    flow.produce(range(10))
    queries: Queries = connect_service.queries
    error = queries.ask(_without_write, flow.options(), flow.source)
    assert "start the query from sink.write(...), which checks its plan" in error
    error = queries.ask(_joined_without_a_hint, flow.options(), flow.source)
    assert "F.broadcast(table)" in error
    assert flow.written() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("repartition", "the query has a shuffle"),
        ("union", "not exactly the micro-batch's own, each read once"),
        ("checkpoint", "not exactly the micro-batch's own, each read once"),
    ],
)
def test_a_later_batch_that_moves_rows(
    connect_service: ConnectService, flow: Flow, what: str, words: str
) -> None:
    flow.produce(range(16))
    queries: Queries = connect_service.queries
    error = queries.ask(_wide_in_its_second_batch, flow.options(), flow.source, what)
    assert words in error
    assert sorted(map(int, flow.values())) == list(range(8))
    assert flow.committed() == {0: 4, 1: 4}


def test_a_checkpoint_that_is_not_an_active_querys(
    spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"has no checkpoint: .*sink\.write"):
        own_checkpoint(spark_eos_session, str(tmp_path))
    # What another host's path of this name may hold.
    (tmp_path / "metadata").write_text('{"id":"0e0e0e0e-0000-4000-8000-000000000000"}')
    with pytest.raises(CheckpointError, match=r"belongs to query 0e0e0e0e-.*not active"):
        own_checkpoint(spark_eos_session, str(tmp_path))


def test_what_spark_reads_is_what_lies_there(
    spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    base = tmp_path / "a {b} [c] d*e\\f"
    (base / "sources" / "0").mkdir(parents=True)
    (base / "sources" / "0" / "0").write_bytes(b"\0v1\n{}")
    (base / "sources" / "0" / ".0.crc").write_bytes(b"crc")
    (base / "metadata").write_text("text")
    files = SparkFiles(spark_eos_session, str(base))
    assert files.read("metadata") == "text"
    assert files.read("sources/0/0") == "\0v1\n{}"
    assert files.read("offsets/0") is None
    assert files.names("sources") == ["0"]
    assert files.names("nowhere") == []
    files.write("copies/7-ab12cd34", "text")
    assert files.names("copies") == ["7-ab12cd34"]
    files.delete("copies/7-ab12cd34")
    assert files.names("copies") == []


@pytest.mark.slow
def test_what_the_page_shows(connect_service: ConnectService, flow: Flow) -> None:
    flow.produce(range(10))
    (code,) = code_blocks("connect", "python")
    instead = {
        "sc://spark.example.com:15002": connect_service.server.url,
        "kafka=..., group_id=..., topic=..., checkpoint_location=...": "**options",
        '"orders"': f'"{flow.source}"',
    }
    connect_service.queries.ask(run_query, code, instead, flow.options())
    assert sorted(map(int, flow.values())) == list(range(10))
    assert flow.committed() == {0: 5, 1: 5}


@pytest.mark.slow
def test_the_server_is_killed(
    api: Api,
    connect_service: ConnectService,
    flow: Flow,
    tmp_path: Path,
    spark_eos_session: SparkSession,
) -> None:
    expected = produce_with_hold(flow)
    _held(api, flow, tmp_path / "go")
    (sink,) = connect_service.server.sinks()
    connect_service.server.kill_jvm()
    # Orphaned, it would go on for minutes, and so would its heartbeats.
    until(lambda: not flow.members(), lambda: "the members to leave", timeout=30)
    until(lambda: not lives(sink), lambda: "the orphan to end", timeout=60)
    assert flow.open_transactions() == []
    run_available(spark_eos_session, flow)
    assert sorted(flow.values()) == expected


@pytest.mark.slow
def test_a_checkpoint_on_another_file_system(
    api: Api, connect_service: ConnectService, flow: Flow
) -> None:
    flow.checkpoint = f"viewfs://tests/files/{flow.name}/check point"
    flow.produce(range(20))
    api.start(flow, max_offsets=10, on_batch=None).replay()
    assert sorted(map(int, flow.values())) == list(range(20))
    assert (connect_service.files / flow.name / "check point" / "commits" / "1").exists()
