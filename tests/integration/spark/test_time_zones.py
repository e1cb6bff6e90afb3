"""Timestamps of queries in another time zone."""

import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos.testing import consume_committed
from support.flow import Flow
from support.queries import run_available


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
