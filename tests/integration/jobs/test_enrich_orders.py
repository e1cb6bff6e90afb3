"""The enrichment of jobs/enrich_orders.py, as a function from DataFrame to DataFrame."""

import json
from datetime import datetime, timezone
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from support.jobs import job

NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def an_order(**changes: Any) -> bytes:
    order = {
        "order_id": "o-1",
        "customer_id": "c-7",
        "country": "DE",
        "currency": "USD",
        "items": [
            {"sku": "s-1", "quantity": 2, "unit_price": 19.99},
            {"sku": "s-2", "quantity": 1, "unit_price": 100},
        ],
        "status": "paid",
        "ordered_at": "2026-11-20T10:30:00+01:00",
        **changes,
    }
    return json.dumps({name: value for name, value in order.items() if value != "gone"}).encode()


def enriched(**changes: Any) -> str:
    order = {
        "order_id": "o-1",
        "customer_id": "c-7",
        "country": "DE",
        "region": "central",
        "status": "paid",
        "ordered_at": "2026-11-20T09:30:00.000Z",
        "currency": "USD",
        "amount": 139.98,
        "amount_eur": 120.38,
        "tier": "silver",
        **changes,
    }
    return json.dumps(order, separators=(",", ":"))


def records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [
        (("orders", 0, offset), b"key", value, None, NOON) for offset, value in enumerate(values)
    ]
    schema = (
        "source struct<topic: string, partition: int, offset: bigint>, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>, timestamp timestamp"
    )
    return spark.createDataFrame(rows, schema)


@pytest.mark.slow
def test_orders_are_enriched_and_keyed_by_customer(spark_eos_session: SparkSession) -> None:
    cases = [
        (an_order(), enriched()),
        (
            an_order(country="XK", currency="EUR", customer_id="c-8"),
            enriched(
                country="XK",
                region="other",
                currency="EUR",
                customer_id="c-8",
                amount_eur=139.98,
            ),
        ),
        (an_order(status="cancelled"), None),
        (an_order(items=[]), enriched(amount=0.00, amount_eur=0.00, tier="standard")),
        (
            an_order(items=[{"sku": "s-1", "quantity": 100, "unit_price": 40}], country="SE"),
            enriched(amount=4000.00, amount_eur=3440.00, tier="gold", country="SE", region="north"),
        ),
    ]
    frame = records(spark_eos_session, *(value for value, _ in cases))
    actual = job("enrich_orders").enrich(frame, dead_letters=True)
    expected = spark_eos_session.createDataFrame(
        [
            (("orders", 0, offset), json.loads(value)["customer_id"], value, None, None, NOON)
            for offset, (_, value) in enumerate(cases)
            if value is not None
        ],
        "source struct<topic: string, partition: int, offset: bigint>, key string, value string, "
        "error string, headers array<struct<key: string, value: binary>>, timestamp timestamp",
    )
    comparable = actual.withColumn("key", F.col("key").cast("string")).withColumn(
        "value", F.col("value").cast("string")
    )
    assert_df_equality(
        comparable.withColumn("value", without_trailing_zeros()),
        expected.withColumn("value", without_trailing_zeros()),
        ignore_column_order=True,
        ignore_nullable=True,
    )


def without_trailing_zeros() -> Any:
    # 120.50 and 120.5 are the same JSON number.
    return F.regexp_replace("value", r"(\.\d*?)0+([,}])", "$1$2")


NO_ORDERS = [
    (None, "no value"),
    (b"{not json", "no valid order_id"),
    (b"[1, 2]", "no valid order_id"),
    (an_order(customer_id="gone"), "no valid customer_id"),
    (an_order(ordered_at="yesterday"), "no valid ordered_at"),
    (an_order(currency="XXX"), "unknown currency XXX"),
    (
        an_order(items=[{"quantity": 2_000_000, "unit_price": 9_999_999_999.99}]),
        "an amount that is too large",
    ),
    (an_order(items=[{"sku": "s"}]), "an item without valid quantity and unit_price"),
]


@pytest.mark.slow
def test_what_is_no_order_has_an_error(spark_eos_session: SparkSession) -> None:
    frame = records(spark_eos_session, *(value for value, _ in NO_ORDERS))
    rows = job("enrich_orders").enrich(frame, dead_letters=True).collect()
    assert [(row.error, row.source.offset) for row in rows] == [
        (problem, offset) for offset, (_, problem) in enumerate(NO_ORDERS)
    ]


def test_without_dead_letters_the_first_invalid_order_is_named(
    spark_eos_session: SparkSession,
) -> None:
    frame = job("enrich_orders").enrich(records(spark_eos_session, an_order(), b"{"))
    problem = "source orders-0 offset 1 is not an order: no val"
    with pytest.raises(SparkRuntimeException, match=problem):
        frame.collect()
