"""Topics created while a query runs."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from support.flow import Flow
from support.queries import running, until


@pytest.mark.slow
def test_a_topic_found_by_a_running_query_is_read_from_the_start(
    new_flow: Callable[..., Flow], spark_eos_session: SparkSession
) -> None:
    flow = new_flow()
    flow.produce(["before the start"] * 2)
    read = {
        "subscribe": None,
        "subscribePattern": f"in-{flow.name}.*",
        "starting_offsets": "latest",
    }
    with running(spark_eos_session, flow, read=read) as query:
        until(lambda: flow.committed() == {0: 1, 1: 1}, lambda: "the first batch")
        added = new_flow(name=f"{flow.name}-added")
        added.produce(range(10))
        until(lambda: len(flow.values()) >= 10, lambda: f"its rows: {query.status}")
        flow.produce(range(10, 20))
        added.produce(range(20, 30))
        until(lambda: len(flow.values()) >= 30, lambda: f"rows of both: {query.status}")
    assert sorted(map(int, flow.values())) == list(range(30))
    assert flow.open_transactions() == []
