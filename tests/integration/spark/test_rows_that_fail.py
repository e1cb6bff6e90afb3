"""A row that can't be written fails its batch; the error names the row."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, QueryFailedError, run
from support.apis import Queries, started
from support.flow import Flow
from support.queries import run_available
from support.sinks import arguments


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


@pytest.mark.slow
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
    """Spark names no row: the error names the offsets from which the job made its rows."""
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
    message = str(failure.value)
    assert "WriteError: batch 0 of group" in message
    assert f"{flow.source}-0 offsets 0 to 3, {flow.source}-1 offset 0" in message
    assert "ValueError: no thirteen here" in message.partition("WriteError: ")[2]
    # The other partition's task may have ended before the job did.
    assert flow.values() in ([], ["a"])


def _error_of_cast(spark: SparkSession, options: dict[str, Any], source: str) -> str:
    with closing(ExactlyOnceSink(**arguments(**options))) as sink:
        number = F.col("value").cast("string").cast("int")
        rows = sink.read(spark, subscribe=source).select(
            "source", number.cast("string").alias("value")
        )
        query = started(sink.write(rows).trigger(availableNow=True))
        with pytest.raises(QueryFailedError) as failed:
            run(query)
    return f"{failed.value.text} {failed.value.entry}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "delivery",
    ["direct", *(pytest.param(d, marks=pytest.mark.slow) for d in ("mirrored", "staged"))],
)
def test_an_expression_that_fails(
    request: pytest.FixtureRequest, queries: Queries, delivery: str
) -> None:
    """Spark names no row: the error names the offsets, and what to write instead."""
    flow: Flow = request.getfixturevalue("mirrored_flow" if delivery == "mirrored" else "flow")
    flow.produce([1, "no\nspark_eos.errors.WriteError: forged", 3], partition=0)
    options = {"progress_topic": f"progress-{flow.name}", "delivery": delivery, **flow.options()}
    message = queries.ask(_error_of_cast, options, flow.source)
    where = f"WriteError: batch 0 of group {flow.group_id!r}: an expression of the query failed: "
    assert message.startswith(f"{where}[CAST_INVALID_INPUT] The value 'no\\nspark_eos.errors.")
    assert f"; the batch reads {flow.source}-0 offsets 0 to 2. Every start" in message
    assert "that returns null (try_cast, try_divide, try_to_number, F.get), and give" in message
    assert message.endswith(" EOS17")
    assert flow.values() == []
