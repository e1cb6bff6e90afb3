"""A program that loads the classes of a streaming query with Python functions, and exits.

Its arguments are options for the JVM, which let it write an archive of its classes on exit.
"""

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark import SparkContext
from pyspark.sql import DataFrame

from spark_eos.testing.broker import EmbeddedKafka
from spark_eos.testing.spark import spark_session

_END = 240


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _collect(frame: DataFrame, _batch_id: int) -> None:
    frame.mapInArrow(_pass_on, frame.schema).collect()


def main() -> None:
    """Run one batch from Kafka through Python."""
    options = " ".join(sys.argv[1:])
    with EmbeddedKafka() as broker, tempfile.TemporaryDirectory() as checkpoint:
        broker.create_topic("training")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("training", b"value", b"key")
        producer.flush(_END)
        spark = spark_session(config={"spark.driver.extraJavaOptions": options})
        source = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "training"}
        reader = spark.readStream.format("kafka").options(**source, startingOffsets="earliest")
        frame = reader.load()
        frame = frame.selectExpr("struct(topic, partition) AS source", "key", "value")
        writer = frame.writeStream.foreachBatch(_collect)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()
        spark.stop()
    # The JVM writes the archive on exit, and exits when its standard input is closed.
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - pyspark has no other access to its JVM
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END)


if __name__ == "__main__":
    main()
