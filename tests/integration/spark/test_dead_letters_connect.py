"""Dead letters of queries on Spark Connect, written directly and staged."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, guarded
from support.apis import ReportFile, started
from support.connect_server import ConnectService
from support.dead_letters import headers_of, letter_topic
from support.flow import Flow
from support.sinks import arguments

pytestmark = pytest.mark.slow


def _number(row: dict[str, Any]) -> dict[str, Any]:
    return {"value": str(10 * int(row["value"])), "key": row["key"]}


def _run(session: SparkSession, options: dict[str, Any], source: str, reports: Path) -> None:
    sink = ExactlyOnceSink(**arguments(**options, on_batch=ReportFile(reports)))
    staged = options.get("delivery") == "staged"
    errors = "column" if staged else None
    read = sink.read(session, subscribe=source)
    frame = guarded(read, _number, "key binary, value string", errors=errors)
    if staged:
        frame = frame.withColumn("key", F.lit(b"k")).drop("source")
    query = started(sink.write(frame).trigger(availableNow=True))
    assert query.awaitTermination(240)


def _ended(session: SparkSession, options: dict[str, Any], source: str, reports: Path) -> str:
    try:
        _run(session, options, source, reports)
    except StreamingQueryException as error:
        return str(error)
    raise AssertionError("the query has not failed")


@pytest.mark.proves("nothing-but-dead-letters")
def test_nothing_but_one_error_ends_a_query_on_connect(
    connect_service: ConnectService, flow: Flow, tmp_path: Path
) -> None:
    letters = letter_topic(flow)
    flow.produce(["two"] * 6, partition=0)
    options = {**flow.options(), "dead_letter_topic": letters}
    text = connect_service.queries.ask(_ended, options, flow.source, tmp_path / "reports")
    assert "all 6 rows of the batch are dead letters with one error" in text
    assert "None of them" in text
    assert flow.written(letters) == []


@pytest.mark.parametrize("delivery", ["direct", "staged"])
def test_dead_letters_on_connect(
    connect_service: ConnectService, flow: Flow, tmp_path: Path, delivery: str
) -> None:
    letters = letter_topic(flow)
    flow.produce(["1", "two", "3"], partition=0, headers=[("trace", b"t")])
    options = {
        **flow.options(),
        "delivery": delivery,
        "progress_topic": f"progress-{flow.name}",
        "progress_partitions": 3,
        "dead_letter_topic": letters,
    }
    connect_service.queries.ask(_run, options, flow.source, tmp_path / "reports")
    assert sorted(flow.values()) == ["10", "30"]
    (found,) = flow.written(letters)
    told = headers_of(found)
    assert told["__dlq.errors.exception"] == "ValueError"
    position = (told.get("trace"), told.get("__dlq.errors.offset"))
    assert position == (("t", "1") if delivery == "direct" else (None, None))
    assert found.value() == (b"two" if delivery == "direct" else None)
    (report,) = ReportFile(tmp_path / "reports").reports()
    assert report["dead_letters"] == {"exception": 1}
