"""A script whose query fails ends its output with the cause, however the script was started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tenacity
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, QueryFailedError, run
from spark_eos._jars.jar_sets import spark_kafka_jars
from support.connect_server import ConnectService
from support.flow import Flow
from support.scripts import write_script
from support.sinks import arguments

_BAD = 'rows.withColumn("partition", F.lit(99))'


# Each starts a Spark of its own.
@pytest.mark.slow
@pytest.mark.parametrize("how", ["python", "spark-submit", "connect"])
def test_a_script_ends_in_the_cause(
    flow: Flow, tmp_path: Path, how: str, request: pytest.FixtureRequest
) -> None:
    flow.produce(range(4))
    command = [sys.executable]
    environment: dict[str, str] = {}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHONPATH"))}
    if how == "spark-submit":
        command = [str(Path(sys.executable).with_name("spark-submit"))]
        command += ["--master", "local[2]", "--jars", ",".join(map(str, spark_kafka_jars()))]
        environment["PYSPARK_PYTHON"] = sys.executable
    elif how == "connect":
        service: ConnectService = request.getfixturevalue("connect_service")
        environment["SPARK_REMOTE"] = service.server.url
    command += [str(write_script(flow, tmp_path, rows=_BAD))]
    ended = _ended(command, {**kept, "SPARK_LOCAL_IP": "127.0.0.1", **environment})
    assert ended.returncode == 1
    # spark-submit logs at INFO: threads of the query that are just ending may do so, too.
    lines = ended.stdout.strip().splitlines()
    last = [line for line in lines if " INFO " not in line][-1]
    assert "SparkContext: Successfully stopped" not in ended.stdout
    assert "ShutdownHookManager: " not in ended.stdout
    assert last.startswith(
        f"spark_eos.errors.QueryFailedError: WriteError: batch 0 of group {flow.group_id!r}: "
        f"source {flow.source}-"
    )
    assert "Logical Plan" not in ended.stdout[ended.stdout.index("Traceback (most") :]
    assert flow.values() == []


# Connect's server gives up a worker that a busy machine starts slowly, as `support.apis.patiently`.
@tenacity.retry(
    retry=tenacity.retry_if_result(lambda ended: "waiting for the Python worker" in ended.stdout),
    stop=tenacity.stop_after_delay(200),
    retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
)
def _ended(command: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        # As in a terminal; spark-submit has Python's stderr in its stdout.
        stderr=subprocess.STDOUT,
        text=True,
        timeout=380,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_a_query_that_fails_stops_the_others(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(4))
    groups = [flow.group_id, f"{flow.group_id}-failing"]
    sinks, queries = [], []
    for group in groups:
        checkpoint = f"{flow.checkpoint}-{group}"
        options = {**flow.options(), "group_id": group, "checkpoint_location": checkpoint}
        sink = ExactlyOnceSink(**arguments(**options))
        rows = sink.read(spark_eos_session, subscribe=flow.source).select("source", "value")
        if group != flow.group_id:
            rows = rows.withColumn("partition", F.lit(99))
        sinks.append(sink)
        queries.append(sink.write(rows).start())
    with pytest.raises(QueryFailedError, match=f"group '{groups[1]}'"):
        run(*queries)
    assert not any(query.isActive for query in queries)
    # The other one has stopped cleanly.
    assert queries[0].exception() is None
    for sink in sinks:
        sink.close()


def test_a_function_that_raises_is_the_cause(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(4))
    sink = ExactlyOnceSink(**arguments(**flow.options()))
    rows = sink.read(spark_eos_session, subscribe=flow.source).select("source", "key", "value")

    def own(_rows: object, _batch_id: int) -> None:
        raise ValueError("the archive is full\n    and so is its copy")

    query = sink.write(rows).foreachBatch(own).start()
    with pytest.raises(QueryFailedError) as why:
        run(query)
    text = why.value.text
    assert text == "ValueError: the archive is full\n    and so is its copy"
    sink.close()
