"""Counts of orders by customer in windows of event time, as a stream and as a plain batch query."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# In windows. Partitions of the topic are read evenly, and their orders are less than that apart.
_LATENESS: Final = 6


def counts(orders: DataFrame, minutes: int) -> DataFrame:
    """Each customer's number of orders in each window, once the window is closed.

    Args:
        orders: A stream of Kafka records, as `spark_eos.demo.orders` writes them.
        minutes: Length of a window.

    Returns:
        Key (the customer's id) and value (JSON with the window's start and the count). In append
        mode, which is the default, a window's rows are written when no order can change them.
    """
    late = f"{_LATENESS * minutes} minutes"
    return _rows(_windowed(_times(orders).withWatermark("ordered_at", late), minutes))


def expected_counts(orders: DataFrame, minutes: int) -> DataFrame:
    """The rows of `counts` that a query over all orders has written, by a batch query.

    Args:
        orders: A DataFrame of the same records.
        minutes: As for `counts`.
    """
    times = _times(orders)
    late = F.expr(f"INTERVAL {_LATENESS * minutes} MINUTES")
    last = times.agg((F.max("ordered_at") - late).alias("watermark"))
    closed = _windowed(times, minutes).join(
        F.broadcast(last), F.col("window.end") <= F.col("watermark")
    )
    return _rows(closed)


def _times(orders: DataFrame) -> DataFrame:
    ordered_at = F.get_json_object(F.col("value").cast("string"), "$.ordered_at")
    return orders.select("key", ordered_at.cast("timestamp").alias("ordered_at"))


def _windowed(times: DataFrame, minutes: int) -> DataFrame:
    window = F.window("ordered_at", f"{minutes} minutes").alias("window")
    return times.groupBy("key", window).agg(F.count(F.lit(1)).alias("orders"))


def _rows(counted: DataFrame) -> DataFrame:
    value = F.to_json(F.struct(F.col("window.start").alias("from"), "orders"))
    return counted.select("key", value.alias("value"))
