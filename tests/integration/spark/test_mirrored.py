"""Mirrored queries: the source in one cluster, target and progress in another."""

import shutil
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_eos import errors
from support import staging
from support.queries import run_available

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
