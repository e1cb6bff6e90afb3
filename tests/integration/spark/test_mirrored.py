"""Mirrored queries: the source in one cluster, target and progress in another."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_eos import BatchReport, ExactlyOnceSink, errors
from spark_eos._spark.batch_job import BatchJobs
from spark_eos._worker import plan
from spark_eos._worker.task_report import JobOutcome
from support import staging
from support.holding import HeldRows
from support.manual_members import drop_members
from support.queries import relay, run_available

_BATCHES = {"options": {"maxOffsetsPerTrigger": "30"}}


def test_a_narrow_query_is_mirrored(spark_eos_session: SparkSession, mirrored_flow: Any) -> None:
    flow = mirrored_flow
    flow.produce(range(100))
    reports = run_available(spark_eos_session, flow, read=_BATCHES)
    assert {report.delivery for report in reports} == {"mirrored"}
    assert {part.topic for report in reports for part in report.partitions} == {flow.source}
    flow.produce(range(100, 120))
    # The checkpoint continues it; so does an empty one, without a record written again.
    run_available(spark_eos_session, flow, read=_BATCHES)
    shutil.rmtree(flow.checkpoint)
    flow.produce(range(120, 150))
    (report,) = run_available(spark_eos_session, flow, read=_BATCHES)
    assert (report.rows_written, report.rows_skipped) == (30, 0)
    assert sorted(flow.values(), key=int) == [str(n) for n in range(150)]
    assert sum(flow.committed().values()) == 150
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_a_further_attempt_writes_the_rows_that_are_left(
    spark_eos_session: SparkSession,
    mirrored_flow: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows have source partitions; outcomes have the group's, which represent others."""
    # Fewer tasks than partitions, which otherwise takes more partitions than a flow has.
    monkeypatch.setattr(plan, "_TASKS_PER_CORE", 0)
    tasks: list[int] = []
    genuine = BatchJobs.run

    def run(self: BatchJobs, *args: Any) -> JobOutcome:
        outcome = genuine(self, *args)
        tasks.append(outcome.tasks)
        return outcome

    monkeypatch.setattr(BatchJobs, "run", run)
    flow = mirrored_flow
    flow.produce(range(10))
    held = HeldRows(tmp_path)
    reports: list[BatchReport] = []
    with closing(ExactlyOnceSink(**flow.options(), on_batch=reports.append)) as sink:
        frame = relay(sink.read(spark_eos_session, subscribe=flow.source))
        query = sink.write(held.of(frame)).trigger(availableNow=True).start()
        held.until_reached()
        drop_members(flow, "spark-eos-0")
        held.let_go()
        query.awaitTermination()
    assert [(r.attempts, r.rows_written) for r in reports] == [(2, 10)]
    assert tasks == [2, 1]
    assert {part.topic for part in reports[0].partitions} == {flow.source}
    assert sorted(flow.values(), key=int) == [str(n) for n in range(10)]


@pytest.mark.slow
def test_what_is_not_narrow_is_staged(spark_eos_session: SparkSession, mirrored_flow: Any) -> None:
    flow = mirrored_flow
    flow.produce(map(staging.record, range(60)))
    with pytest.raises(errors.UnsupportedPipelineError):
        run_available(spark_eos_session, flow, staging.repartitioned, delivery="mirrored")
    reports = run_available(spark_eos_session, flow, staging.repartitioned, read=_BATCHES)
    assert {report.delivery for report in reports} == {"staged"}
    assert len(flow.values()) == 60
    # Its offsets mean something else: not to be mirrored from now on.
    flow.produce([staging.record(60)])
    with pytest.raises(StreamingQueryException, match="set delivery='staged'"):
        run_available(spark_eos_session, flow, delivery="mirrored")
