"""Tasks that get only part of their rows: Spark fails or is stopped while it produces them."""

from collections.abc import Iterator

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.flow import Flow
from support.queries import run_available, running, until

_COPIES = 3
_MARK = "has come to the third record"


@pytest.fixture
def session(spark_eos_session: SparkSession) -> Iterator[SparkSession]:
    """A stream whose batches of rows end within a record and are sent to workers at once."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark_eos_session.conf.get(name))
    spark_eos_session.conf.set(name, str(_COPIES + 1))
    yield spark_eos_session
    spark_eos_session.conf.set(name, before)


@pytest.fixture
def records(flow: Flow) -> list[str]:
    """More bytes than Spark holds back (spark.buffer.size)."""
    values = [str(number) * 100_000 for number in range(3)]
    flow.produce(values, partition=0)
    return values


def _copied(frame: DataFrame) -> DataFrame:
    copies = F.explode(F.array_repeat(F.col("value"), _COPIES))
    return frame.select("source", copies.alias("value"))


def _slow(then: str) -> str:
    """An SQL value that waits at the third record, then evaluates ``then``."""
    wait = "java_method('java.lang.Thread', 'sleep', bigint(5000))"
    third = f"CAST(concat({wait}, {then}) AS BINARY)"
    return f"CASE WHEN startswith(CAST(value AS STRING), '2') THEN {third} ELSE value END"


def _written_once(flow: Flow, records: list[str]) -> None:
    assert sorted(flow.values()) == sorted(records * _COPIES)


@pytest.mark.slow
def test_a_task_that_fails_in_the_jvm_leaves_no_partial_record(
    flow: Flow, session: SparkSession, records: list[str]
) -> None:
    def fail(frame: DataFrame) -> DataFrame:
        return _copied(frame.withColumn("value", F.expr(_slow(f"raise_error('{_MARK}')"))))

    with pytest.raises(StreamingQueryException, match=_MARK):
        run_available(session, flow, fail)
    run_available(session, flow, _copied)
    _written_once(flow, records)


def test_a_query_that_is_stopped_leaves_no_record_half_written(
    flow: Flow, session: SparkSession, records: list[str]
) -> None:
    def slow(frame: DataFrame) -> DataFrame:
        return _copied(frame.withColumn("value", F.expr(_slow("CAST(value AS STRING)"))))

    with running(session, flow, slow):
        until(flow.open_transactions, lambda: "rows")
    run_available(session, flow, _copied)
    _written_once(flow, records)
