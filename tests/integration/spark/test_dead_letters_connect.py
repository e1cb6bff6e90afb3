"""Dead letters of queries on Spark Connect, written directly and staged."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, guarded
from support.connect_server import ConnectStage
from support.dead_letters import headers_of, letter_topic
from support.flow import Flow
from support.fronts import ReportFile, started

pytestmark = pytest.mark.slow


def _number(row: dict[str, Any]) -> dict[str, Any]:
    return {"value": str(10 * int(row["value"])), "key": row["key"]}


def _run(session: SparkSession, options: dict[str, Any], source: str, reports: Path) -> None:
    sink = ExactlyOnceSink(**options, on_batch=ReportFile(reports))
    frame = guarded(sink.read(session, subscribe=source), _number, "key binary, value string")
    if options.get("delivery") == "staged":
        frame = frame.withColumn("key", F.lit(b"k")).drop("source")
    query = started(sink.write(frame).trigger(availableNow=True))
    assert query.awaitTermination(240)


@pytest.mark.parametrize("delivery", ["direct", "staged"])
def test_dead_letters_on_connect(
    connect_stage: ConnectStage, flow: Flow, tmp_path: Path, delivery: str
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
    connect_stage.queries.ask(_run, options, flow.source, tmp_path / "reports")
    assert sorted(flow.values()) == ["10", "30"]
    (found,) = flow.written(letters)
    told = headers_of(found)
    assert told["__dlq.errors.exception"] == "ValueError"
    position = (told.get("trace"), told.get("__dlq.errors.offset"))
    assert position == (("t", "1") if delivery == "direct" else (None, None))
    assert found.value() == (b"two" if delivery == "direct" else None)
    (report,) = ReportFile(tmp_path / "reports").reports()
    assert report["dead_letters"] == {"exception": 1}
