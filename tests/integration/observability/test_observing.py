"""What operators see: a query's warnings, and its jobs in Spark's web interface."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_eos import BatchReport, ExactlyOnceSink
from support.flow import Flow
from support.holding import HeldRows
from support.manual_members import drop_members
from support.queries import relay
from support.sinks import arguments

# on_batch -----------------------------------------------------------------------------------------


def test_a_failing_on_batch_stops_neither_query_nor_other_calls(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(report: BatchReport) -> None:
        raise RuntimeError(f"no pager for batch {report.batch_id}")

    flow.produce(range(20))
    seen: list[BatchReport] = []
    sink = ExactlyOnceSink(**flow.options(), on_batch=[fails, seen.append])
    frame = sink.read(
        spark_eos_session, subscribe=flow.source, options={"maxOffsetsPerTrigger": "10"}
    )
    query = sink.write(frame.select("source", "value")).trigger(availableNow=True).start()
    query.awaitTermination()
    sink.close()
    assert [r.batch_id for r in seen] == [0, 1]
    assert sorted(map(int, flow.values())) == list(range(20))
    assert flow.committed() == {0: 10, 1: 10}
    # A busy machine's brokers may be waited for, too.
    warnings = [
        r for r in caplog.records if "EOS60" not in r.getMessage() and r.levelno >= logging.WARNING
    ]
    assert len(warnings) == 2
    for number, warning in enumerate(warnings):
        assert f"fails failed after batch {number} of group {flow.group_id}" in warning.getMessage()
        assert "the batch is committed" in warning.getMessage()
        assert warning.exc_info is not None
        assert f"no pager for batch {number}" in str(warning.exc_info[1])


# In Spark's web interface -------------------------------------------------------------------------


def _descriptions(spark: SparkSession, run_id: str) -> list[str]:
    """The jobs of a query's run, as in the web interface and the REST API; oldest first."""
    context: Any = spark.sparkContext
    jobs = context._jsc.sc().statusStore().jobsList(context._jvm.java.util.ArrayList())
    found = [jobs.apply(n) for n in range(jobs.size())]
    chosen = [j for j in found if j.jobGroup().isDefined() and j.jobGroup().get() == run_id]
    return [j.description().get() for j in sorted(chosen, key=lambda j: j.jobId())]


@pytest.mark.slow
def test_jobs_say_group_batch_and_attempt(
    flow: Flow, spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    held = HeldRows(tmp_path)
    flow.produce(range(2), partition=0)
    reports: list[BatchReport] = []
    users: list[str | None] = []
    sink = ExactlyOnceSink(**arguments(**flow.options(), on_batch=reports.append))

    def batch(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        users.append(frame.sparkSession.sparkContext.getLocalProperty("spark.job.description"))
        frame.sparkSession.range(1).collect()

    frame = relay(sink.read(spark_eos_session, subscribe=flow.source))
    query = sink.write(held.of(frame)).foreachBatch(batch).trigger(availableNow=True).start()
    held.until_reached()
    drop_members(flow, "spark-eos-0")
    held.let_go()
    query.awaitTermination()
    sink.close()
    assert [r.attempts for r in reports] == [2]
    assert sorted(flow.values()) == ["0", "1"]
    *ours, users_own = _descriptions(spark_eos_session, str(query.runId))
    name = f"spark-eos: group {flow.group_id}, batch 0, attempt"
    assert [d.splitlines()[0] for d in ours] == [f"{name} 1", f"{name} 2"]
    # Spark's own words are still there, and alone again for what the user does afterwards.
    assert users == [users_own]
    assert all(d.endswith(f"\n{users_own}") for d in ours)
    assert f"runId = {query.runId}" in users_own
