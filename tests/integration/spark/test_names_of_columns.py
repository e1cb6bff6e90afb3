"""Column names in another case refer to the same columns as in Spark."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import guarded
from spark_eos._spark.names import known_name, with_known_names
from spark_eos.errors import UnsupportedPipelineError
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.pipelines import viewed
from support.queries import run_available

SQL = """
    SELECT struct(source.topic AS Topic, source.partition AS PARTITION, source.offset AS Offset)
           AS SOURCE, KEY, value AS Value, TIMESTAMP, 1 AS PARTITION, '{target}' AS Topic,
           transform(HEADERS, h -> struct(h.key AS KEY, h.value AS Value)) AS Headers
    FROM {{view}}
"""
AT = 1_600_000_000_000


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["direct", pytest.param("staged", marks=pytest.mark.slow)])
def test_what_sql_writes_in_capitals(
    flow: Flow, spark_eos_session: SparkSession, delivery: str
) -> None:
    flow.produce(["a"], partition=0, key=b"k", headers=[("trace", b"t")], timestamp=AT)
    run_available(
        spark_eos_session,
        flow,
        lambda frame: viewed(frame, SQL.format(target=flow.target)),
        read={"include_headers": True},
        delivery=delivery,
        topic=None,
        progress_topic=f"progress-{flow.name}",
        progress_partitions=3,
    )
    (found,) = flow.written()
    assert (found.key(), found.value(), found.partition()) == (b"k", b"a", 1)
    assert (found.headers(), found.timestamp()[1]) == ([("trace", b"t")], AT)


def _judged(frame: DataFrame) -> DataFrame:
    bad = F.when(F.col("value").cast("string") == "bad", "it is bad").alias("ERROR")
    return frame.select(F.col("source").alias("Source"), "key", F.col("value").alias("VALUE"), bad)


@pytest.mark.slow
@pytest.mark.parametrize("in_function", [False, True])
def test_an_error_in_capitals_makes_a_dead_letter(
    flow: Flow,
    spark_eos_session: SparkSession,
    in_function: bool,  # noqa: FBT001
) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.produce(["good", "bad"], partition=0)
    how: dict[str, Any] = {"transform": _judged}
    if in_function:
        how = {"function": lambda sink, rows, number: sink(_judged(rows), number)}
    run_available(spark_eos_session, flow, **how, dead_letter_topic=dlq)
    assert flow.values() == ["good"]
    assert [m.value() for m in flow.written(dlq)] == [b"bad"]


@pytest.fixture
def case_sensitive(spark_eos_session: SparkSession) -> Iterator[SparkSession]:
    spark_eos_session.conf.set("spark.sql.caseSensitive", "true")
    yield spark_eos_session
    spark_eos_session.conf.unset("spark.sql.caseSensitive")


def test_names_that_spark_distinguishes_are_other_columns(case_sensitive: SparkSession) -> None:
    frame = case_sensitive.sql("SELECT 1 AS VALUE, 2 AS value, 3 AS Key")
    assert with_known_names(frame) is frame
    assert known_name(frame, "KEY") == "KEY"


def test_a_frame_that_needs_nothing_is_taken_as_it_is(spark_eos_session: SparkSession) -> None:
    frame = spark_eos_session.sql("SELECT 'a' AS value, 1 AS Other, 2 AS OTHER")
    assert with_known_names(frame) is frame
    other = frame.withColumnRenamed("value", "VALUE")
    assert known_name(other, "value") == "VALUE"
    # What is not ours need not be told apart.
    assert with_known_names(other).columns == ["value", "Other", "OTHER"]
    with pytest.raises(UnsupportedPipelineError, match="`OTHER` and `Other` differ only by case"):
        known_name(frame, "other")


def test_metadata_stays(spark_eos_session: SparkSession) -> None:
    frame = spark_eos_session.sql("SELECT 'a' AS VALUE, 'b' AS topic")
    marked = frame.withMetadata("topic", {"spark-eos": "source"})
    assert with_known_names(marked).schema["topic"].metadata == {"spark-eos": "source"}


def test_a_guarded_function_sees_its_own_names(spark_eos_session: SparkSession) -> None:
    frame = spark_eos_session.sql("SELECT 'a' AS VALUE, named_struct('topic', 't') AS Source")
    made = guarded(frame, lambda row: {"value": row["VALUE"]}, "value string")
    assert [(row.value, row.source.topic) for row in made.collect()] == [("a", "t")]
    with pytest.raises(UnsupportedPipelineError, match="include ERROR"):
        guarded(frame, lambda row: row, "value string, ERROR string")
