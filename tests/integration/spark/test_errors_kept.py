"""A query that drops the errors of its rows unseen is refused before it starts."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_eos import ExactlyOnceSink, guarded
from spark_eos.errors import UnsupportedPipelineError
from support.connect_server import ConnectService
from support.dead_letters import letter_topic
from support.flow import Flow
from support.sinks import arguments


def _as_it_is(row: dict[str, Any]) -> dict[str, Any]:
    return {"key": row["key"], "value": row["value"]}


def _outcomes(session: SparkSession, options: dict[str, Any], source: str) -> dict[str, str]:
    """What the sink says of frames that keep, drop and look at their errors."""
    sink = ExactlyOnceSink(**arguments(**options))
    made, other = (
        guarded(sink.read(session, subscribe=topic), _as_it_is, "key binary, value binary")
        for topic in (source, f"{source}-b")
    )
    written = ("source", "key", "value")
    frames = {
        "kept": made,
        "kept in a union": made.union(other),
        "left out before a union": made.where("error is null")
        .select(*written)
        .union(other.where("error is null").select(*written)),
        "left out after a union": made.union(other).where("error is null").select(*written),
        "dropped": made.select(*written),
        "dropped later": made.withColumn("more", made["key"]).select(*written),
        "dropped in a union": made.select(*written).union(other.select(*written)),
        "dropped after a union": made.union(other).select(*written),
        "dropped with many": made.selectExpr("*", *(f"{n} AS c{n}" for n in range(30))).select(
            *written
        ),
        "dropped before the next": guarded(
            made.select("source", "key", "value"), _as_it_is, "key binary, value binary"
        ),
        "left out": made.where("error is null").select("source", "key", "value"),
        "told": made.selectExpr("source", "key", "coalesce(error.message, value) AS value"),
    }
    found = {name: _outcome(sink, frame) for name, frame in frames.items()}
    sink.close()
    return found


def _outcome(sink: ExactlyOnceSink, frame: DataFrame) -> str:
    try:
        sink.write(frame)
    except UnsupportedPipelineError as error:
        return str(error)
    return "taken"


def _check(found: dict[str, str]) -> None:
    dropped = [found.pop(name) for name in [*found] if name.startswith("dropped")]
    assert len(dropped) == 6
    assert all("the query drops the column `error`" in text for text in dropped), dropped
    kept = "kept", "kept in a union", "left out before a union", "left out after a union"
    assert found == dict.fromkeys([*kept, "left out", "told"], "taken")


def test_classic(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.broker.create_topic(f"{flow.source}-b", 1)
    options = {**flow.options(), "dead_letter_topic": letter_topic(flow)}
    _check(_outcomes(spark_eos_session, options, flow.source))


@pytest.mark.slow
def test_connect(connect_service: ConnectService, flow: Flow) -> None:
    flow.broker.create_topic(f"{flow.source}-b", 1)
    options = {**flow.options(), "dead_letter_topic": letter_topic(flow)}
    _check(connect_service.queries.ask(_outcomes, options, flow.source))
