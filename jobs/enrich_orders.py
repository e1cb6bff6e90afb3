"""Adds the EUR amount, the region and the tier to JSON orders, exactly once, keyed by customer.

spark-submit --properties-file conf/spark-defaults.conf --jars "$(spark-eos jars)" \
    jobs/enrich_orders.py --bootstrap-servers localhost:9092 --group-id enrich-orders \
    --source orders --target orders-enriched --dead-letter-topic orders-dlq \
    --checkpoint-location checkpoints/enrich-orders

An example of an order:
    {"order_id": "o-00000017", "customer_id": "c-00042", "country": "DE", "currency": "EUR",
     "items": [{"sku": "s-0815", "quantity": 2, "unit_price": 19.90}],
     "status": "paid", "ordered_at": "2026-11-20T09:30:00Z"}

Cancelled orders are left out. A record that is not a valid order is never dropped. With
``--dead-letter-topic``, it is written to that topic unchanged, in the same transaction as all other
output, and headers give the reason and source position. Without this option, the query stops and
reports the record's topic, partition and offset.
"""

from functools import partial
from itertools import chain
from typing import Final

import click
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_eos.jobs.job import run_job
from spark_eos.jobs.options import JobOptions, job_options

ORDER: Final = (
    "order_id string, customer_id string, country string, currency string, "
    "items array<struct<sku: string, quantity: int, unit_price: decimal(12,2)>>, "
    "status string, ordered_at timestamp"
)
REQUIRED: Final = ("order_id", "customer_id", "currency", "items", "status", "ordered_at")
MONEY: Final = "decimal(18,2)"
# Small tables like these two can be expressions. Join larger tables with a broadcast join, which is
# a narrow operator too.
EUR_PER_UNIT: Final = {
    "EUR": "1.0000",
    "CHF": "1.0650",
    "GBP": "1.1500",
    "PLN": "0.2350",
    "SEK": "0.0910",
    "USD": "0.8600",
}
REGIONS: Final = {
    **dict.fromkeys(("AT", "CH", "DE"), "central"),
    **dict.fromkeys(("DK", "FI", "NO", "SE"), "north"),
    **dict.fromkeys(("ES", "IT", "PT"), "south"),
    **dict.fromkeys(("BE", "FR", "GB", "IE", "NL"), "west"),
    **dict.fromkeys(("CZ", "HU", "PL"), "east"),
}


def enrich(records: DataFrame, *, dead_letters: bool = False) -> DataFrame:
    """Turn Kafka records with orders into Kafka records with enriched orders.

    Args:
        records: Columns ``source``, ``key``, ``value``, ``headers`` and ``timestamp``.
        dead_letters: Whether records that are not orders become dead letters; otherwise, the query
            fails at the first one.

    Returns:
        Columns ``source``, ``key``, ``value``, ``headers``, ``timestamp`` and ``error``.
    """
    orders = (
        records.withColumn("order", F.from_json(F.col("value").cast("string"), ORDER))
        .withColumn("rate", _look_up(EUR_PER_UNIT, "order.currency").cast("decimal(10,4)"))
        .withColumn("amount", _amount())
        .withColumn("amount_eur", (F.col("amount") * F.col("rate")).try_cast(MONEY))
        .withColumn("problem", _problem())
        .where("problem is not null or order.status <> 'cancelled'")
    )
    value = _enriched().cast("binary")
    error = F.col("problem")
    if not dead_letters:
        message = F.concat_ws(" ", _position(), F.lit("is not an order:"), "problem")
        value = F.when(error.isNull(), value).otherwise(F.raise_error(message))
    return orders.select(
        "source",
        F.col("order.customer_id").cast("binary").alias("key"),
        value.alias("value"),
        "headers",
        "timestamp",
        error.alias("error"),
    )


def _problem() -> Column:
    missing = [
        F.when(F.col(f"order.{name}").isNull(), F.lit(f"no valid {name}")) for name in REQUIRED
    ]
    return F.coalesce(
        F.when(F.col("value").isNull(), F.lit("no value")),
        *missing,
        F.when(
            F.exists("order.items", lambda i: i.quantity.isNull() | i.unit_price.isNull()),
            F.lit("an item without valid quantity and unit_price"),
        ),
        F.when(
            F.col("rate").isNull(), F.concat_ws(" ", F.lit("unknown currency"), "order.currency")
        ),
        F.when(F.col("amount_eur").isNull(), F.lit("an amount that is too large")),
    )


def _look_up(table: dict[str, str], column: str) -> Column:
    pairs = chain.from_iterable(table.items())
    return F.element_at(F.create_map(*map(F.lit, pairs)), F.col(column))


def _amount() -> Column:
    return F.aggregate(
        "order.items",
        F.lit(0).cast(MONEY),
        lambda total, item: (total + item.quantity * item.unit_price).try_cast(MONEY),
    )


def _enriched() -> Column:
    region = F.coalesce(_look_up(REGIONS, "order.country"), F.lit("other"))
    tier = (
        F.when(F.col("amount_eur") >= 1000, "gold")
        .when(F.col("amount_eur") >= 100, "silver")
        .otherwise("standard")
    )
    return F.to_json(
        F.struct(
            "order.order_id",
            "order.customer_id",
            "order.country",
            region.alias("region"),
            "order.status",
            "order.ordered_at",
            "order.currency",
            "amount",
            "amount_eur",
            tier.alias("tier"),
        )
    )


def _position() -> Column:
    return F.format_string(
        "source %s-%d offset %d",
        F.col("source.topic"),
        F.col("source.partition"),
        F.col("source.offset"),
    )


@click.command(context_settings={"max_content_width": 100})
@job_options
def main(options: JobOptions) -> None:
    """Add the EUR amount, the region and the tier to JSON orders, exactly once, keyed by customer.

    Cancelled orders are left out. Ctrl-C and SIGTERM stop the query cleanly. When it is started
    again, it continues where it stopped.
    """
    transform = partial(enrich, dead_letters="dead_letters" in options.sink)
    run_job(options, transform, include_headers=True)


if __name__ == "__main__":
    main(prog_name="enrich_orders.py")
