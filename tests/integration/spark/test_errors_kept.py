"""A bad row becomes a dead letter or ends the query; no query writes its remains, nulls."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, guarded
from spark_eos._spark.failed_query import cause_of
from support.apis import started
from support.connect_server import ConnectService
from support.dead_letters import create_dead_letter_topic, headers_of
from support.flow import Flow
from support.sinks import arguments

WRITTEN = ["source", "key", "value"]
NUMBERS = ["1", "no", "3"]


def _number(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["key"], "value": str(10 * int(row["value"]))}


def _numbers(frame: DataFrame, **options: Any) -> DataFrame:
    return guarded(frame, _number, "key binary, value string", **options)


def _view(frame: DataFrame) -> str:
    name = f"v{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    return name


def _sql(frame: DataFrame, text: str) -> DataFrame:
    return frame.sparkSession.sql(text.replace("VIEW", _view(_numbers(frame))))


def _renamed(frame: DataFrame) -> DataFrame:
    # Names that an error had before, and 30 columns, of which Spark's plans show 25.
    error = F.col("source")["error"]
    many = _numbers(frame).withColumns({f"c{n}": F.lit(n) for n in range(30)})
    return many.withColumns({"error": error, "e": F.array(error)}).drop("error", "e")


Made = Callable[[DataFrame], DataFrame]
SQL: dict[str, Made] = {
    "view": lambda frame: _sql(frame, "SELECT source, key, value FROM VIEW"),
    "with": lambda frame: _sql(frame, "WITH g AS (FROM VIEW) SELECT source, key, value FROM g"),
    "table": lambda frame: frame.sparkSession.table(_view(_numbers(frame))).select(*WRITTEN),
    "argument": lambda frame: frame.sparkSession.sql(
        "SELECT source, key, value FROM {rows}", rows=_numbers(frame)
    ),
}
PLAIN: dict[str, Made] = {
    "selected": lambda frame: _numbers(frame).select(*WRITTEN),
    "renamed": lambda frame: _renamed(frame).select(*WRITTEN),
    "guarded again": lambda frame: guarded(
        _numbers(frame).select(*WRITTEN),
        lambda row: {"key": row["key"], "value": row["value"] + ""},
        "key binary, value string",
    ),
    "as json": lambda frame: (
        _numbers(frame)
        .select("source", "key", F.col("value").alias("v"), F.lit(1).alias("extra"))
        .select("source", "key", F.to_json(F.struct("v", "extra")).alias("value"))
    ),
    "own error": lambda frame: _numbers(frame).select(
        *WRITTEN, F.when(F.col("value") == "30", "three").alias("error")
    ),
    "column": lambda frame: _numbers(frame, errors="column").select(*WRITTEN, "error"),
    "column, staged": lambda frame: _numbers(frame, errors="column").drop("source").repartition(2),
}
# By SQL, by methods, and with a column of one's own.
_EACH_KIND = ("with", "column")


def _run(
    session: SparkSession,
    options: dict[str, Any],
    source: str,
    made: Made,
    *,
    in_function: bool = False,
) -> None:
    """Writes what a function makes of a topic's stream, or of each of its batches."""
    sink = ExactlyOnceSink(**arguments(**options))
    frame = sink.read(session, subscribe=source)
    if in_function:
        writer = sink.write(frame.select(*WRITTEN)).foreachBatch(
            lambda rows, batch_id: sink(made(rows), batch_id)
        )
    else:
        writer = sink.write(made(frame))
    try:
        assert started(writer.trigger(availableNow=True)).awaitTermination(240)
    finally:
        sink.close()


def _on_connect(
    session: SparkSession,
    options: dict[str, Any],
    source: str,
    name: str,
    in_function: bool,  # noqa: FBT001 - sent to another process
) -> str:
    """The same on Spark Connect; returns the error that ended the query, or None."""
    try:
        _run(session, options, source, PLAIN[name], in_function=in_function)
    except StreamingQueryException as error:
        return cause_of(str(error))
    return ""


def _progress(flow: Flow) -> dict[str, Any]:
    return {"progress_topic": f"progress-{flow.name}", "progress_partitions": 3}


def _check(flow: Flow, dlq: str, bad: list[bytes | None], name: str) -> None:
    values = sorted(flow.values())
    good = {"as json": ['{"v":"10","extra":1}', '{"v":"30","extra":1}'], "own error": ["10"]}
    assert values == good.get(name, ["10", "30"])
    assert [m.value() for m in flow.written(dlq)] == bad


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in _EACH_KIND else pytest.mark.slow)
        for name in [*SQL, *PLAIN][:-1]
    ],
)
def test_a_stream(flow: Flow, spark_eos_session: SparkSession, name: str) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.produce(NUMBERS, partition=0)
    made = {**SQL, **PLAIN}[name]
    options = {**flow.options(), "dead_letter_topic": dlq, "delivery": "direct"}
    _run(spark_eos_session, options, flow.source, made)
    _check(flow, dlq, [b"no", b"3"] if name == "own error" else [b"no"], name)
    assert "ValueError" in headers_of(flow.written(dlq)[0])["__dlq.errors.exception"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["selected", pytest.param("as json", marks=pytest.mark.slow)])
def test_a_users_own_function(flow: Flow, spark_eos_session: SparkSession, name: str) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.produce(NUMBERS, partition=0)
    options = {**flow.options(), "dead_letter_topic": dlq}
    _run(spark_eos_session, options, flow.source, PLAIN[name], in_function=True)
    _check(flow, dlq, [b"no"], name)


def _staged(frame: DataFrame) -> DataFrame:
    return _numbers(frame).repartition(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "options", "in_function"),
    [
        pytest.param(PLAIN["selected"], {}, False, id="no dead letters"),
        pytest.param(
            PLAIN["selected"], {}, True, id="no dead letters, own function", marks=pytest.mark.slow
        ),
        pytest.param(_staged, {"dead_letters": True}, False, id="staged"),
        pytest.param(
            lambda frame: _numbers(frame).select("key", "value").repartition(2),
            {"dead_letters": True},
            False,
            id="staged, without source",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda frame: _numbers(frame, errors="raise"),
            {"dead_letters": True},
            False,
            id="asked",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_where_no_dead_letter_is_made_the_query_ends(
    flow: Flow,
    spark_eos_session: SparkSession,
    made: Made,
    options: dict[str, Any],
    in_function: bool,  # noqa: FBT001
) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.produce(NUMBERS, partition=0)
    dlq_option = {"dead_letter_topic": dlq} if options else {}
    given = {**flow.options(), **_progress(flow), **dlq_option}
    with pytest.raises(StreamingQueryException) as ended:
        _run(spark_eos_session, given, flow.source, made, in_function=in_function)
    cause = cause_of(str(ended.value))
    where = f"WriteError: {flow.source}-0, offset 1: ValueError: invalid literal for int() with "
    assert cause.startswith(where), cause
    assert "errors='column'" in cause
    assert flow.written() == flow.written(dlq) == []


@pytest.mark.slow
def test_another_job_ends_at_a_bad_row(flow: Flow, spark_eos_session: SparkSession) -> None:
    """A user's own count before the sink is called, which would cache nulls."""
    dlq = create_dead_letter_topic(flow)
    flow.produce(NUMBERS, partition=0)

    def cached(rows: DataFrame) -> DataFrame:
        found = _numbers(rows).persist()
        found.count()
        return found

    options = {**flow.options(), "dead_letter_topic": dlq}
    with pytest.raises(StreamingQueryException, match=r"offset 1: ValueError.*errors='column'"):
        _run(spark_eos_session, options, flow.source, cached, in_function=True)
    assert flow.written() == []
    frame = spark_eos_session.createDataFrame([(b"k", "no")], "key binary, value string")
    with pytest.raises(PythonException, match="ValueError: invalid literal"):
        _numbers(frame).collect()


@pytest.mark.slow
def test_a_query_may_inspect_and_leave_out_errors(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.produce(NUMBERS, partition=0)
    options = {**flow.options(), "dead_letter_topic": dlq}

    def good(frame: DataFrame) -> DataFrame:
        return _numbers(frame).where("source.error is null")

    _run(spark_eos_session, options, flow.source, good)
    assert sorted(flow.values()) == ["10", "30"]
    assert flow.written(dlq) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "in_function", "dead_letter"),
    [("selected", False, b"no"), ("selected", True, b"no"), ("column, staged", False, None)],
)
def test_on_connect(
    connect_service: ConnectService,
    flow: Flow,
    name: str,
    in_function: bool,  # noqa: FBT001
    dead_letter: bytes | None,
) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.produce(NUMBERS, partition=0)
    options = {**flow.options(), **_progress(flow), "dead_letter_topic": dlq}
    ask = connect_service.queries.ask
    assert ask(_on_connect, options, flow.source, name, in_function) == ""
    _check(flow, dlq, [dead_letter], name)


@pytest.mark.slow
def test_on_connect_without_dead_letters(connect_service: ConnectService, flow: Flow) -> None:
    flow.produce(NUMBERS, partition=0)
    ask = connect_service.queries.ask
    cause = ask(_on_connect, flow.options(), flow.source, "selected", True)  # noqa: FBT003
    assert f"WriteError: {flow.source}-0, offset 1: ValueError: invalid literal" in cause
    assert flow.written() == []
