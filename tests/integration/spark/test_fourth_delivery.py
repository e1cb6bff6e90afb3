"""A delivery is one class in one file and a line in one table: the test adds a fourth one."""

from collections.abc import Sequence

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_eos import BatchReport
from spark_eos._delivery.choice import DELIVERIES
from spark_eos._delivery.direct import DirectDelivery
from spark_eos._exactly_once.delivery import PlannedBatch
from spark_eos._worker.task_report import JobOutcome
from support.flow import Flow
from support.queries import run_available

TOY = "toy"


class _ToyDelivery(DirectDelivery):
    """Like direct, under its own name; counts its batches' rows."""

    name = TOY
    why = "a test wants it"
    rows = 0

    def check_written(self, planned: PlannedBatch, outcomes: Sequence[JobOutcome]) -> PlannedBatch:
        type(self).rows += sum(p.rows for one in outcomes for p in one.partitions.values())
        return super().check_written(planned, outcomes)


@pytest.fixture(autouse=True)
def _in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DELIVERIES, TOY, _ToyDelivery)
    _ToyDelivery.rows = 0


def _run(spark: SparkSession, flow: Flow, delivery: str = TOY) -> list[BatchReport]:
    return run_available(spark, flow, delivery=delivery)


def test_a_fourth_delivery_is_exactly_once_across_restarts(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(10))
    (first,) = _run(spark_eos_session, flow)
    flow.produce(range(10, 15))
    (second,) = _run(spark_eos_session, flow)
    assert (first.delivery, second.delivery) == (TOY, TOY)
    assert (first.rows_written, second.rows_written, _ToyDelivery.rows) == (10, 5, 15)
    assert sorted(map(int, flow.values())) == list(range(15))


@pytest.mark.slow
def test_a_query_of_it_keeps_its_delivery(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(range(4))
    _run(spark_eos_session, flow)
    flow.produce(range(4, 6))
    with pytest.raises(StreamingQueryException, match="has written with delivery='toy'"):
        _run(spark_eos_session, flow, "direct")
    assert len(flow.values()) == 4
