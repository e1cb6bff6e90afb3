"""A relay query in its own process, started by plain Python.

Arguments: ``eos`` or ``own`` (Spark's own sink), servers, source, target, checkpoint, and one of
``plain``, ``archive`` (the JVM loads its classes from an archive) and ``archive-daemon`` (Python
workers are also forked with their modules already imported).
"""

import sys

from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos import ExactlyOnceSink, ExactlyOnceWriter, session_builder
from spark_eos._client.settings import ClientSettings


def main() -> None:
    """Run the query until it is killed."""
    kind, servers, source, target, checkpoint, classes = sys.argv[1:]
    builder = session_builder(
        class_archive="archive" in classes, worker_daemon="daemon" in classes
    ).master("local[2]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    if kind == "eos":
        sink = ExactlyOnceSink(
            kafka={"bootstrap.servers": servers},
            group_id=target,
            topic=target,
            checkpoint_location=checkpoint,
        )
        frame = sink.read(spark, subscribe=source)
        writer: DataStreamWriter | ExactlyOnceWriter = sink.write(
            frame.select("source", "key", "value")
        )
    else:
        reading = ClientSettings({"bootstrap.servers": servers}).for_spark_source()
        options = {**reading, "subscribe": source, "startingOffsets": "earliest"}
        frame = spark.readStream.format("kafka").options(**options).load()
        writer = (
            frame.select("key", "value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", target)
            .option("checkpointLocation", checkpoint)
        )
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
