"""A batch's source offsets come from the plan that Spark runs, not from a file."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_eos import ExactlyOnceSink
from support.flow import Flow
from support.queries import run_available


@pytest.mark.slow
def test_an_offset_log_that_another_driver_has_overwritten(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(20))
    ends = {flow.source: {"0": 10, "1": 10}}

    def overwritten(sink: ExactlyOnceSink, batch: DataFrame, batch_id: int) -> None:
        # Where creating a file is not atomic, a driver that is about to be fenced can do so.
        log = Path(flow.checkpoint, "offsets")
        *head, _mine = (log / str(batch_id)).read_text().split("\n")
        (log / str(batch_id)).write_text("\n".join([*head, json.dumps(ends)]))
        (log / f".{batch_id}.crc").unlink()
        sink(batch, batch_id)

    read = {"options": {"maxOffsetsPerTrigger": "10"}}
    run_available(spark_eos_session, flow, read=read, function=overwritten)
    assert sorted(map(int, flow.values())) == list(range(20))
