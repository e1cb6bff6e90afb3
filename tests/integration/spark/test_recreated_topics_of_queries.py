"""Whole Spark queries whose topics are deleted and recreated between two batches.

Whether Spark itself notices depends on the number of records in the new source topic.
"""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_eos import BatchReport
from spark_eos._exactly_once.task import write_task
from spark_eos._spark import batch_job
from support.flow import Flow
from support.queries import relay, run_available


def _run(
    spark: SparkSession,
    flow: Flow,
    after_the_first_batch: Callable[[], None],
    transform: Callable[[DataFrame], DataFrame] = relay,
) -> list[BatchReport]:
    """Runs two batches of ten records each, with an action between them."""
    happens = [after_the_first_batch]
    # Keys for all of the target's partitions.
    flow.produce(range(20), key=lambda value: str(value).encode())
    return run_available(
        spark,
        flow,
        transform,
        read={"options": {"maxOffsetsPerTrigger": "10"}},
        on_batch=lambda _report: happens.pop()() if happens else None,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "filtered",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["written", "filtered out"],
)
def test_a_source_topic_with_more_records_than_before(
    flow: Flow, spark_eos_session: SparkSession, *, filtered: bool
) -> None:
    def recreate() -> None:
        flow.recreate(flow.source)
        # So many that Spark finds the offsets that it expects, and notices nothing.
        flow.produce([f"new {n}" for n in range(60)])

    def transform(frame: DataFrame) -> DataFrame:
        return relay(frame.where("value NOT LIKE 'new%'") if filtered else frame)

    with pytest.raises(StreamingQueryException, match="was deleted and recreated"):
        _run(spark_eos_session, flow, recreate, transform)
    assert sorted(map(int, flow.values())) == list(range(10))
    assert flow.committed() == {}
    # Nor does a restart take the new topic for the old one.
    with pytest.raises(StreamingQueryException, match="was deleted and recreated"):
        _run(spark_eos_session, flow, lambda: None, transform)
    assert sorted(map(int, flow.values())) == list(range(10))
    assert flow.committed() == {}


@pytest.mark.slow
def test_a_target_topic_with_fewer_partitions_than_before(
    flow: Flow, spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    discard_producer: list[bool] = []

    def noting(*arguments: Any, **options: Any) -> Any:
        discard_producer.append(options["discard_producer"])
        return write_task(*arguments, **options)

    monkeypatch.setattr(batch_job, "write_task", noting)
    (first, second) = _run(
        spark_eos_session, flow, lambda: flow.recreate(flow.target, partitions=1)
    )
    assert (first.rows_written, second.rows_written) == (10, 10)
    # The producers that knew the old topic are not used again; one that has been idle meanwhile may
    # have been replaced already.
    assert first.attempts == 1
    assert second.attempts <= 2
    assert discard_producer == [False, False, *([True] * (second.attempts - 1))]
    # The first batch went with the topic that it was written to.
    assert sorted(map(int, flow.values())) == list(range(10, 20))
    assert flow.committed() == {0: 10, 1: 10}


@pytest.mark.slow
def test_a_source_topic_with_fewer_records_than_before(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    def recreate() -> None:
        flow.recreate(flow.source)
        flow.produce(["new"])

    # Spark's complaint or ours, whichever comes first: both say that data is gone.
    spark = "available offset which is less than end offset|offset was changed|data may have been"
    ours = f"source topic '{flow.source}' was deleted and recreated"
    with pytest.raises(StreamingQueryException, match=f"{spark}|{ours}"):
        _run(spark_eos_session, flow, recreate)
    assert sorted(map(int, flow.values())) == list(range(10))
    assert flow.committed() == {}
    assert flow.open_transactions() == []
