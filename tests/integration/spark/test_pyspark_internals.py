"""`spark_eos._pyspark_internals`: if PySpark moves an internal, the error names it."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.connect.session import SparkSession as ConnectSession

from spark_eos import _pyspark_internals as internals
from support.apis import connect_queries
from support.connect_server import ConnectService


class _Batch:
    """A query of two streams, and the state at its first batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        (directory / "in").mkdir()
        (directory / "in" / "one.txt").write_text("one\ntwo\n")
        files = spark.readStream.text(str(directory / "in"))
        rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
        self.frame = rates.select(F.col("value").cast("string")).union(files)
        self.query_id = self.run_id = ""
        self.relations: list[internals.StreamSource] = []
        self.running: tuple[int, list[str], list[str]] = (-1, [], [])
        self.rows = (0, 0)
        self.plan_and_lineage: tuple[Any, str] = ("", "")
        writer = self.frame.writeStream.foreachBatch(self._look)
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        self.query = writer.trigger(once=True).start()
        assert self.query.awaitTermination(120)

    def _look(self, frame: DataFrame, _batch_id: int) -> None:
        if self.query_id:
            return
        session = frame.sparkSession
        self.query_id = internals.query_of_thread(session)
        execution = internals.Execution.of(session, self.query_id)
        assert execution is not None
        self.run_id = execution.run_id
        self.relations = execution.sources(["rowsperbatch"])
        running = execution.running_batch()
        self.running = (running.batch_id, running.starts(), running.ends())
        self.rows = execution.batch_rows()
        self.plan_and_lineage = internals.PlanReader(session).plan_and_lineage(frame)


@pytest.fixture(scope="module")
def batch(spark_eos_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> _Batch:
    return _Batch(spark_eos_session, tmp_path_factory.mktemp("internals"))


@pytest.mark.parametrize(
    ("module", "variable"),
    [
        ("pyspark.java_gateway", "PYSPARK_GATEWAY_PORT"),
        ("pyspark.sql.connect.streaming.worker.foreach_batch_worker", "SPARK_CONNECT_LOCAL_URL"),
    ],
)
def test_the_environments_variable(module: str, variable: str) -> None:
    source = inspect.getsource(importlib.import_module(module))
    assert f'os.environ["{variable}"]' in source


def test_the_query_of_a_batch(batch: _Batch) -> None:
    assert (batch.query_id, batch.run_id) == (str(batch.query.id), str(batch.query.runId))
    batch_id, starts, ends = batch.running
    assert (batch_id, starts) == (0, [])
    assert len(ends) == 2
    partitions, number = batch.rows
    assert partitions > 1
    assert f"[{number}] at " in batch.plan_and_lineage[1]
    assert "Scan ExistingRDD" in json.dumps(batch.plan_and_lineage[0])


def test_outside_of_a_batch_there_is_no_query(spark_eos_session: SparkSession) -> None:
    assert internals.query_of_thread(spark_eos_session) == ""
    unknown = "00000000-0000-0000-0000-000000000000"
    assert internals.Execution.of(spark_eos_session, unknown) is None


def test_the_sources_of_a_plan(batch: _Batch) -> None:
    found = internals.stream_relations(batch.frame, ["rowsperbatch"])
    assert found == [("rate-micro-batch", {"rowsperbatch": "2"}), ("text", {})]
    assert batch.relations == found


def test_progress_that_is_tracked_asynchronously(
    spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    seen: list[bool] = []

    def look(frame: DataFrame, _batch_id: int) -> None:
        query_id = internals.query_of_thread(frame.sparkSession)
        execution = internals.Execution.of(frame.sparkSession, query_id)
        assert execution is not None
        seen.append(execution.is_asynchronous)

    def start(name: str, **options: str) -> None:
        rates = spark_eos_session.readStream.format("rate").option("rowsPerSecond", 100).load()
        writer = rates.writeStream.foreachBatch(look).options(**options)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        before = len(seen)
        while query.isActive and len(seen) == before:
            query.awaitTermination(1)
        query.stop()

    start("before and after")
    assert set(seen) == {False}
    seen.clear()
    asynchronous = {"asyncProgressTrackingEnabled": "true", internals.ANY_SINK_ASYNCHRONOUS: "true"}
    start("asynchronously", **asynchronous)
    assert set(seen) == {True}


def test_sessions_and_hosts(spark_eos_session: SparkSession) -> None:
    spark, context = spark_eos_session, spark_eos_session.sparkContext
    assert not internals.is_connect(spark)
    assert not internals.is_connect(spark.range(1))
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        cloned = internals.cloned_session(spark)
    finally:
        spark.conf.unset("spark.sql.shuffle.partitions")
    assert cloned.conf.get("spark.sql.shuffle.partitions") == "7"
    assert not internals.is_stopped(context)
    assert internals.task_count(spark.range(9, numPartitions=3)) == 3
    assert internals.shipped_python_files(context) == list(context._python_includes or [])
    assert SparkContext._active_spark_context is context
    assert not internals.started_by_submit()
    assert not internals.in_connect_worker()


def test_log_levels(spark_eos_session: SparkSession) -> None:
    before = internals.set_spark_log_level("ERROR")
    try:
        assert before
        assert internals.set_spark_log_level("FATAL") == "ERROR"
    finally:
        internals.set_spark_log_level(before)
    assert spark_eos_session.range(1).count() == 1


def test_observations(spark_eos_session: SparkSession) -> None:
    observation = Observation()
    frame = spark_eos_session.range(3).observe(observation, F.count(F.lit(1)).alias("rows"))
    assert not internals.is_observed(observation)
    frame.collect()
    assert observation.get == {"rows": 3}
    assert internals.is_observed(observation)


def test_the_text_of_plans(spark_eos_session: SparkSession) -> None:
    text = internals.plans_text(spark_eos_session.range(1))
    for name in ("Parsed Logical", "Analyzed Logical", "Optimized Logical", "Physical"):
        assert f"== {name} Plan ==" in text


def test_hadoops_settings(spark_eos_session: SparkSession) -> None:
    spark_eos_session.conf.set("fs.of.a.test", "here")
    try:
        assert internals.hadoop_configuration(spark_eos_session).get("fs.of.a.test") == "here"
    finally:
        spark_eos_session.conf.unset("fs.of.a.test")


def test_arrows_schema() -> None:
    schema = T.StructType([T.StructField("at", T.TimestampType())])
    (field,) = internals.arrow_schema(schema)
    assert str(field.type) == "timestamp[us, tz=UTC]"


def _of_connect(session: SparkSession) -> dict[str, Any]:
    """Names that exist on Connect; runs in a client of the server."""
    stream = session.readStream.format("rate").option("rowsPerSecond", 5).load()
    table = session.range(1)
    client: Any = session.client
    return {
        "connect": (internals.is_connect(session), internals.is_connect(stream)),
        "relations": [tuple(one) for one in internals.stream_relations(stream, ["rowspersecond"])],
        "plan": internals.connect_plan(table).WhichOneof("rel_type"),
        "plans": "== Physical Plan ==" in internals.plans_text(table),
        "client": [hasattr(client, name) for name in ("release_session", "close")],
    }


def _released(session: Any, url: str) -> str:
    """The error that another client gets for a released session; runs in a client."""
    # The server knows a session once it has run something.
    assert session.range(1).count() == 1
    cloned = session.cloneSession()
    assert cloned.range(1).count() == 1
    address = f"{url}/;session_id={cloned.client._session_id}"
    internals.release_connect_session(cloned)
    again = SparkSession.builder.remote(address).create()
    try:
        return f"{again.range(1).count()} row"
    except Exception as error:  # noqa: BLE001 - of gRPC, or Connect's own
        return str(error)


@pytest.mark.slow
def test_on_connect(connect_service: ConnectService) -> None:
    assert connect_service.queries.ask(_of_connect) == {
        "connect": (True, True),
        "relations": [("rate", {"rowspersecond": "5"})],
        "plan": "range",
        "plans": True,
        "client": [True, True],
    }


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(ConnectSession, "cloneSession"), reason="Spark 4.0 can't clone a session"
)
def test_a_session_of_connect_is_released(connect_service: ConnectService) -> None:
    # Its client is one of its own: PySpark asks the session that was made last for settings.
    with connect_queries(connect_service.server.url) as queries:
        found = queries.ask(_released, connect_service.server.url)
    assert "SESSION_CLOSED" in found
    # The others have their session.
    assert connect_service.queries.ask(_of_connect)["plan"] == "range"
