"""The queries that are killed, each in its own process: ``python -m demo.query``.

They copy orders, or count orders by customer in windows of event time, with `ExactlyOnceSink` or
with Spark's own Kafka sink, and end when they have processed everything available. The only
argument holds the arguments of `main` as JSON.
"""

import json
import sys
import tempfile
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_eos._sink.sink import ExactlyOnceSink
from spark_eos.jobs.running import run
from spark_eos.observability.speaking import print_batch
from spark_eos.testing import spark_session

# In windows. The topic's partitions are read evenly, so their orders differ by less than this.
_LATENESS: Final = 6


def main(
    *,
    sink: str,
    servers: str,
    source: str,
    target: str,
    checkpoint: str,
    batch: int,
    minutes: int | None,
    expected: str | None,
) -> None:
    """Copies orders, or counts them in windows of some minutes, with one of the sinks.

    Afterwards, writes the counts that are expected to a directory, if there is one.
    """
    # Files that a killed JVM leaves are removed with the demonstration's temporary directory.
    directory = tempfile.gettempdir()
    config = {
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={directory}"',
        "spark.local.dir": directory,
    }
    spark = spark_session("spark-eos-demo", config=config, quick_start=True)
    kafka = {"kafka.bootstrap.servers": servers}
    reading = {**kafka, "subscribe": source, "startingOffsets": "earliest"}
    limit = {"maxOffsetsPerTrigger": str(batch)}
    if sink == "spark":
        # As in Spark's documentation.
        orders = spark.readStream.format("kafka").options(**reading, **limit).load()
        writer = _transformed(orders, minutes).writeStream.format("kafka")
        query = (
            writer.options(**kafka, topic=target, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
    else:
        ours = ExactlyOnceSink(
            kafka={"bootstrap.servers": servers},
            group_id=f"demo-{target}",
            topic=target,
            checkpoint_location=checkpoint,
            on_batch=print_batch,
        )
        orders = ours.read(spark, subscribe=source, options=limit)
        query = ours.write(_transformed(orders, minutes)).trigger(availableNow=True).start()
    run(query)
    if minutes is not None and expected is not None:
        orders = spark.read.format("kafka").options(**reading).load()
        _counts(orders, minutes).write.parquet(expected)


def _transformed(orders: DataFrame, minutes: int | None) -> DataFrame:
    if minutes is not None:
        return _counts(orders, minutes)
    return orders.select(*{"source", "key", "value"}.intersection(orders.columns))


def _counts(orders: DataFrame, minutes: int) -> DataFrame:
    """Orders by customer and window.

    A stream (in append mode, the default) writes a count once no order can change it. A batch query
    returns the counts that a stream has written after it has read all orders.
    """
    late = f"{_LATENESS * minutes} minutes"
    ordered_at = F.get_json_object(F.col("value").cast("string"), "$.ordered_at")
    times = orders.select("key", ordered_at.cast("timestamp").alias("ordered_at"))
    window = F.window("ordered_at", f"{minutes} minutes").alias("window")
    count = F.count(F.lit(1)).alias("orders")
    counts = times.withWatermark("ordered_at", late).groupBy("key", window).agg(count)
    if not orders.isStreaming:
        last = times.agg((F.max("ordered_at") - F.expr(f"INTERVAL {late}")).alias("watermark"))
        counts = counts.join(F.broadcast(last), F.col("window.end") <= F.col("watermark"))
    value = F.to_json(F.struct(F.col("window.start").alias("from"), "orders"))
    return counts.select("key", value.alias("value"))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
