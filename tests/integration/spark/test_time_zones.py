"""Timestamps of queries in another time zone."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos import guarded
from spark_eos.testing import consume_committed
from support.flow import Flow
from support.queries import run_available


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["Europe/Berlin", pytest.param("GMT+8", marks=pytest.mark.slow)])
def test_a_query_in_another_time_zone(
    zone: str, flow: Flow, spark_eos_session: SparkSession
) -> None:
    # In the hour that comes twice.
    moment = datetime.datetime(2024, 10, 27, 1, 30, tzinfo=datetime.timezone.utc)
    target = f"kept-{flow.name}"
    flow.broker.create_topic(target, config={"retention.ms": "-1"})
    flow.produce(["a", "b"])
    before = spark_eos_session.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark_eos_session.conf.set("spark.sql.session.timeZone", zone)
    try:

        def stamped(frame: Any) -> Any:
            stamp = F.timestamp_seconds(F.lit(moment.timestamp()))
            return frame.select("source", "value", stamp.alias("timestamp"))

        run_available(spark_eos_session, flow, stamped, topic=target)
    finally:
        spark_eos_session.conf.set("spark.sql.session.timeZone", before)
    rows = consume_committed(spark_eos_session, flow.broker, target).collect()
    assert len(rows) == 2
    assert {row.timestamp.timestamp() for row in rows} == {moment.timestamp()}


LOCAL = datetime.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - noon in Berlin
SCHEMA = "seen string, same timestamp, made timestamp, aware timestamp, nested array<timestamp>"


def _times(row: dict[str, Any]) -> dict[str, Any]:
    time = row["time"]
    aware = datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.timezone.utc)
    return {
        "seen": time.isoformat(),
        "same": time,
        "made": LOCAL,
        "aware": aware,
        "nested": [*row["times"], LOCAL],
    }


def _pandas_times(rows: Any) -> Any:
    made = rows.apply(lambda row: _times(row.to_dict()), axis=1, result_type="expand")
    return made.assign(made=LOCAL)


def _sparks_own(frames: Iterator[Any]) -> Iterator[Any]:
    return map(_pandas_times, frames)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "pandas"])
def test_times_of_a_guarded_function_are_those_of_spark(
    spark_eos_session: SparkSession, kind: str
) -> None:
    """As in a pandas UDF and mapInPandas: noon in Berlin is ten o'clock in UTC."""
    setting = "spark.sql.session.timeZone"
    before = str(spark_eos_session.conf.get(setting))
    spark_eos_session.conf.set(setting, "Europe/Berlin")
    try:
        noon = F.timestamp_seconds(F.lit(1_719_828_000))
        frame = spark_eos_session.range(1).select(noon.alias("time"), F.array(noon).alias("times"))
        function = _times if kind == "rows" else _pandas_times
        numbers: list[Any] = [
            "seen",
            *(F.unix_seconds(name).alias(name) for name in ("same", "made", "aware")),
            *(F.unix_seconds(F.col("nested")[place]).alias(f"n{place}") for place in (0, 1)),
        ]
        found = guarded(frame, function, SCHEMA, kind=kind).select(*numbers).first()
        wanted = frame.mapInPandas(_sparks_own, SCHEMA).select(*numbers).first()
    finally:
        spark_eos_session.conf.set(setting, before)
    assert found is not None
    assert found == wanted
    assert found[0] == "2024-07-01T12:00:00"
    assert set(found[1:]) == {1_719_828_000}
