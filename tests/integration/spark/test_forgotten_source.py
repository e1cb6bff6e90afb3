"""A query whose pipeline drops the column `source` is refused, and can add it until staged."""

from contextlib import closing
from functools import partial
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_eos import ExactlyOnceSink
from spark_eos._checkpoint.files import ArrowFiles
from spark_eos._checkpoint.marker import DIRECT, STAGED, Marker
from spark_eos._checkpoint.offset_log import OffsetLog
from spark_eos._client.persisted import FORMAT
from spark_eos._delivery import choice
from spark_eos._delivery.choice import DELIVERIES
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import UnsupportedPipelineError
from support import groups
from support.apis import Api, Queries
from support.flow import Flow
from support.mirroring import MirroredFlow
from support.queries import relay, run_available
from support.sinks import arguments
from support.staging import repartitioned


@pytest.fixture
def api(queries: Queries) -> Api:
    """Each API in turn."""
    return Api(queries)


def _marker(flow: Flow) -> Marker:
    return OffsetLog(ArrowFiles(flow.checkpoint)).markers.read()


def _fail_while_staging(api: Api, flow: Flow) -> None:
    """Starts a staged query whose first batch fails before it is staged."""
    flow.produce(["a", "b", "c", "d"])
    error = api.start(flow, "forgotten", arguments={"fails": True}, delivery="staged").error()
    assert error is not None
    assert "the user's own error" in error
    assert _marker(flow).delivery == STAGED
    assert flow.values() == []


# Refused -----------------------------------------------------------------------------------------


def _no_source(frame: DataFrame) -> DataFrame:
    return frame.select("key", "value")


def _other_source(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("key", "value", "source.topic AS source")


def _of_another_cluster(frame: DataFrame) -> DataFrame:
    reader = frame.sparkSession.readStream.format("kafka").option("subscribe", "orders")
    reader = reader.option("kafka.isolation.level", "read_committed")
    return reader.option("kafka.bootstrap.servers", "elsewhere.invalid:9092").load()


PIPELINES = {each.__name__: each for each in (_no_source, _other_source, _of_another_cluster)}
PIPELINES |= {"repartitioned": repartitioned, "_as_read": relay}


def _delivery(
    session: SparkSession, options: dict[str, Any], source: str, pipeline: str, *columns: str
) -> str:
    with closing(ExactlyOnceSink(**arguments(**options))) as sink:
        frame = PIPELINES[pipeline](sink.read(session, subscribe=source))
        sink.write(frame.select(*columns or frame.columns))
        query = sink._written
        assert query is not None
        return query.delivery.name


@pytest.mark.parametrize(
    ("pipeline", "delivery", "begun"),
    [
        ("_no_source", "auto", "there is no `source` column"),
        ("_other_source", "auto", "`source` is string, not the struct"),
        ("_no_source", "staged", "staged"),
        # The column would not help.
        ("repartitioned", "auto", "staged"),
        ("_of_another_cluster", "auto", "staged"),
    ],
)
def test_a_narrow_query_is_not_staged_for_want_of_source(
    queries: Queries, flow: Flow, pipeline: str, delivery: str, begun: str
) -> None:
    options = {**flow.options(), "delivery": delivery}
    ask = partial(queries.ask, _delivery, options, flow.source, pipeline)
    if begun in DELIVERIES:
        columns = ["key", "value"] if pipeline == "_of_another_cluster" else []
        assert ask(*columns) == begun
        return
    with pytest.raises(UnsupportedPipelineError, match=f"^{begun}") as info:
        ask()
    assert "keep" in info.value.text
    assert "set delivery='staged'" in info.value.text


def test_a_query_of_another_cluster_is_not_staged_either(
    mirrored_flow: MirroredFlow, spark_eos_session: SparkSession
) -> None:
    options = mirrored_flow.options()
    with pytest.raises(UnsupportedPipelineError, match=r"no `source` .*set delivery='staged'"):
        _delivery(spark_eos_session, options, mirrored_flow.source, "_no_source")
    assert _delivery(spark_eos_session, options, mirrored_flow.source, "_as_read") == "mirrored"


@pytest.mark.slow
def test_a_query_is_not_staged_if_a_function_drops_source(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(["a"])

    def call(sink: ExactlyOnceSink, rows: DataFrame, number: int) -> None:
        sink(rows.drop("source"), number)

    with pytest.raises(StreamingQueryException, match=r"no `source` .*set delivery='staged'"):
        run_available(spark_eos_session, flow, function=call)
    assert _marker(flow) == Marker()
    # So the column may be put back, or the query be staged.
    run_available(spark_eos_session, flow, function=call, delivery="staged")
    assert flow.values() == ["a"]


# Remembered in time ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["auto", pytest.param("direct", marks=pytest.mark.slow)])
def test_while_nothing_is_staged_the_query_may_become_direct(
    api: Api, flow: Flow, delivery: str
) -> None:
    _fail_while_staging(api, flow)
    query = api.start(flow, delivery=delivery)
    query.replay()
    assert [report["delivery"] for report in query.reports()] == ["direct"]
    assert sorted(flow.values()) == ["a", "b", "c", "d"]
    assert flow.committed() == {0: 2, 1: 2}
    assert _marker(flow).delivery == DIRECT
    # And for good.
    flow.produce(["e"])
    error = api.start(flow, "forgotten", delivery="staged").error()
    assert error is not None
    assert "has written with delivery='direct'" in error
    api.start(flow).replay()
    assert sorted(flow.values()) == ["a", "b", "c", "d", "e"]


@pytest.mark.slow
def test_once_something_is_staged_the_query_stays_staged(api: Api, flow: Flow) -> None:
    flow.produce(["a", "b"])
    api.start(flow, "forgotten", delivery="staged").replay()
    flow.produce(["c"])
    query = api.start(flow)
    query.replay()
    assert {report["delivery"] for report in query.reports()} == {"staged"}
    flow.produce(["d"])
    error = api.start(flow, delivery="direct").error()
    assert error is not None
    assert "has written with delivery='staged'" in error
    assert sorted(flow.values()) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_staged_but_unwritten_batch_is_not_taken_for_direct(
    flow: Flow,
    spark_eos_session: SparkSession,  # noqa: ARG001 - started
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first batch's files count, but Spark has not finished it."""
    api = Api(Queries())
    flow.produce(["a", "b"])
    with monkeypatch.context() as patch:
        patch.setattr("spark_eos._exactly_once.batch.Run._write_rows", _fail)
        error = api.start(flow, "forgotten", delivery="staged").error()
    assert error is not None
    assert "before the first row" in error
    # What was looked at before all others were fenced counts for nothing.
    with monkeypatch.context() as patch:
        patch.setattr(choice, "_may_change", lambda *_: True)
        error = api.start(flow).error()
        assert error is not None
        assert "has written with delivery='staged'" in error
    assert flow.values() == []
    query = api.start(flow)
    query.replay()
    assert {report["delivery"] for report in query.reports()} == {"staged"}
    assert sorted(flow.values()) == ["a", "b"]


def _fail(*_: object) -> None:
    raise RuntimeError("before the first row")


_OURS = f'{{"spark-eos":{FORMAT},"partitions":"0-32","topics":""}}'


@pytest.mark.slow
@pytest.mark.parametrize(
    "found",
    [
        pytest.param(None, id="deleted", marks=pytest.mark.slow),
        pytest.param((0, ""), id="set by an operator"),
        pytest.param((0, "mine"), id="another client's", marks=pytest.mark.slow),
        pytest.param((1 << 32, _OURS), id="of a later batch", marks=pytest.mark.slow),
    ],
)
def test_offsets_that_prove_nothing_keep_the_query_staged(
    flow: Flow,
    spark_eos_session: SparkSession,  # noqa: ARG001 - started
    found: tuple[int, str] | None,
) -> None:
    api = Api(Queries())
    _fail_while_staging(api, flow)
    commit = TopicPartition("spark-eos-progress", 0)
    if found is None:
        groups.delete_offsets(flow.bootstrap_servers, flow.group_id, [commit])
    else:
        offset, text = found
        groups.set_offsets(flow.bootstrap_servers, flow.group_id, {commit: offset}, {commit: text})
    error = api.start(flow, delivery="direct").error()
    assert error is not None
    assert "has written with delivery='staged'" in error
    assert flow.values() == []
