"""``format("kafka-eos")`` on the real broker and real Spark."""

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from support.data_sources import end_keepers, write_available
from support.flow import Flow


@pytest.fixture
def flow(new_flow: Callable[..., Flow]) -> Iterator[Flow]:
    """A flow of the test's own, whose keeper ends with it."""
    flow = new_flow()
    yield flow
    end_keepers(flow)


def test_rows_of_several_batches_arrive_once_each(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(40))
    write_available(spark_eos_session, flow, reading={"options": {"maxOffsetsPerTrigger": "10"}})
    assert sorted(map(int, flow.values())) == list(range(40))
    assert flow.committed() == {0: 20, 1: 20}
    assert flow.open_transactions() == []
