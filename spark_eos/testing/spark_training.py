"""A program that loads the classes of streaming queries, so that the JVM archives them on exit."""

import sys
import tempfile
from collections.abc import Callable, Iterator

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos._jars.spark_image import quoted
from spark_eos._pyspark_internals import stop_jvm
from spark_eos.testing.broker import EmbeddedKafka
from spark_eos.testing.spark import spark_session

_END = 240


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _collect(frame: DataFrame, _batch_id: int) -> None:
    frame.mapInArrow(_pass_on, frame.schema).collect()


def _copy(spark: SparkSession, directory: str) -> Callable[[DataFrame, int], None]:
    def copy(frame: DataFrame, batch_id: int) -> None:
        path = f"{directory}/{batch_id}"
        frame.coalesce(1).write.parquet(path)
        copied = spark.read.schema(frame.schema).parquet(path).select("*", "_metadata.row_index")
        _collect(copied, batch_id)

    return copy


def main() -> None:
    """Run batches from Kafka through Python, through files and to Kafka."""
    options = quoted(sys.argv[1:])
    with EmbeddedKafka() as broker, tempfile.TemporaryDirectory() as directory:
        for topic in ("training", "trained"):
            broker.create_topic(topic)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("training", b"value", b"key")
        producer.flush(_END)
        spark = spark_session(config={"spark.driver.extraJavaOptions": options})
        servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        reader = spark.readStream.format("kafka").options(**servers, subscribe="training")
        frame = reader.option("startingOffsets", "earliest").load()
        rows = frame.selectExpr("struct(topic, partition) AS source", "key", "value")
        window = F.window("timestamp", "1 minute").alias("window")
        counted = frame.withWatermark("timestamp", "1 minute").groupBy("key", window).count()
        counts = counted.select("key", F.to_json(F.struct("window", "count")).alias("value"))
        copy = _copy(spark, f"{directory}/copies")
        writers = (
            rows.writeStream.foreachBatch(_collect),
            counts.writeStream.outputMode("update").foreachBatch(copy),
            counts.writeStream.format("kafka").options(**servers, topic="trained"),
        )
        for number, writer in enumerate(writers):
            started = writer.option("checkpointLocation", f"{directory}/checkpoint-{number}")
            started.trigger(availableNow=True).start().awaitTermination()
        spark.stop()
    # The JVM writes the archive on exit.
    stop_jvm(_END)


if __name__ == "__main__":
    main()
