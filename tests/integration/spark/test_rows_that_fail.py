"""A row that can't be written fails its batch; the error names the row, which is not written."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.flow import Flow
from support.queries import run_available


def _fails(
    spark: SparkSession,
    flow: Flow,
    transform: Callable[[DataFrame], DataFrame],
    words: str,
    written: tuple[str, ...] = (),
    **options: Any,
) -> None:
    with pytest.raises(StreamingQueryException, match=words):
        run_available(spark, flow, transform, **options)
    assert flow.merged_values() == [*written]
    assert flow.committed().get(0, 0) == len(written)
    assert flow.open_transactions() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason", "written", "options"),
    [
        # What is open is committed before the wait.
        ("nowhere", r"does not exist.* 0\.3 s .*max_block_ms", ("good",), {"max_block_ms": 300}),
        ("not valid", "can't be written to: no topic can have such a name", (), {}),
        ("__consumer_offsets", "can't be written to: it is an internal topic", (), {}),
    ],
)
def test_for_a_topic_that_does_not_exist(
    flow: Flow,
    spark_eos_session: SparkSession,
    name: str,
    reason: str,
    written: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    flow.produce(["good", "bad"], partition=0)
    topic = F.when(F.col("value") == F.lit(b"bad"), name).alias("topic")
    _fails(
        spark_eos_session,
        flow,
        lambda f: f.select("source", "value", topic),
        rf"source {flow.source}-0 offset 1: the row's topic '{name}' {reason}",
        written,
        **options,
    )


def test_the_users_own_error_is_the_reason(flow: Flow, spark_eos_session: SparkSession) -> None:
    flow.produce(["good"], partition=0)

    def raising(frame: DataFrame) -> DataFrame:
        boom = F.udf(lambda _: 1 / 0, "string")
        return frame.select("source", boom("value").alias("value"))

    _fails(spark_eos_session, flow, raising, "ZeroDivisionError")


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["direct", "mirrored"])
def test_an_exception_of_a_python_function(
    new_flow: Callable[..., Flow],
    new_mirrored_flow: Callable[..., Flow],
    spark_eos_session: SparkSession,
    delivery: str,
) -> None:
    """Spark tells no row: the error names the offsets from which the job made its rows."""
    flow = (new_flow if delivery == "direct" else new_mirrored_flow)()

    def refuse(value):  # type: ignore[no-untyped-def] # Spark would read the types of a UDF
        if value == b"13":
            raise ValueError("no thirteen here")
        return value.decode()

    flow.produce(range(10, 14), partition=0)
    flow.produce(["a"], partition=1)
    with pytest.raises(StreamingQueryException) as failure:
        run_available(
            spark_eos_session,
            flow,
            lambda f: f.select("source", F.udf(refuse)("value").alias("value")),
        )
    told = str(failure.value)
    assert "WriteError: batch 0 of group" in told
    assert f"{flow.source}-0 offsets 0 to 3, {flow.source}-1 offset 0" in told
    assert "ValueError: no thirteen here" in told.partition("WriteError: ")[2]
    # The other partition's task may have ended before the job did.
    assert flow.values() in ([], ["a"])
