"""A script that checks that spark-eos changes nothing in the process that runs a query.

Its settings are JSON in the first argument: those of ExactlyOnceSink, and ``source``. Prints
the changes as JSON.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Import everything that logs or starts threads before the first check.
import confluent_kafka  # noqa: F401
import kafka
import pyarrow.fs  # noqa: F401
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from spark_eos._jars.jar_sets import spark_kafka_jars
from support.sinks import arguments

_CLASSES = (
    *(DataFrame, SparkSession, SparkContext, StreamingQuery, StreamingQueryManager),
    *(DataStreamReader, DataStreamWriter, kafka.KafkaConsumer, kafka.KafkaAdminClient),
)


def _loggers() -> dict[str, Any]:
    found = {}
    for name, logger in [("root", logging.root), *logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger) and name.partition(".")[0] != "spark_eos":
            filters = [each for each in logger.filters if not _hides_ours_alone(name, each)]
            state = (logger.level, logger.handlers, filters, logger.propagate, logger.disabled)
            if state != (logging.NOTSET, [], [], True, False):
                found[name] = str(state)
    return found


def _hides_ours_alone(name: str, each: object) -> bool:
    """Return True for the only allowed change: a filter for the logs of our own connections."""
    return name.partition(".")[0] == "kafka" and type(each).__name__ == "_OurConnections"


def _threads() -> list[str]:
    # Threads of py4j and Spark come and go.
    return sorted(
        thread.name
        for thread in threading.enumerate()
        if not type(thread).__module__.startswith("py4j")
        and "py4j" not in str(getattr(thread, "_target", ""))
        and thread.is_alive()
    )


def _state(spark: SparkSession, frame: DataFrame) -> dict[str, Any]:
    context: Any = spark.sparkContext
    root = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    attributes = {
        f"class {kind.__name__}": {name: id(value) for name, value in vars(kind).items()}
        for kind in _CLASSES
    }
    return {
        **attributes,
        "session": sorted(vars(spark)),
        "context": sorted(vars(context)),
        "frame": sorted(vars(frame)),
        "signal handlers": {str(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
        "hooks": [str(h) for h in (sys.excepthook, threading.excepthook, sys.unraisablehook)],
        "loggers": _loggers(),
        "level of Spark's root logger": str(root.getLevel()),
        "settings of the session": spark.conf.getAll,
        "environment": dict(os.environ),
        "working directory": str(Path.cwd()),
        "threads": _threads(),
    }


def _sparks_files(checkpoint: str) -> list[str]:
    """Spark's files in a checkpoint: all files except ours."""
    paths = (path.relative_to(checkpoint) for path in Path(checkpoint).rglob("*"))
    return sorted(str(path) for path in paths if path.parts[0] != "spark-eos")


def _count(batch: DataFrame, _number: int) -> None:
    batch.count()


def _started(query: StreamingQuery) -> StreamingQuery:
    """Lets a query write everything available, then stops it."""
    query.processAllAvailable()
    query.stop()
    return query


def main() -> None:
    """Runs Spark's own query, then ours, and compares the process's state after each."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source = settings.pop("source")
    kafka_source = settings.get("source_kafka") or settings["kafka"]
    builder = SparkSession.builder.master("local[2]")
    builder = builder.config("spark.jars", ",".join(map(str, spark_kafka_jars())))
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    plain = spark.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": kafka_source["bootstrap.servers"],
            "subscribe": source,
            "startingOffsets": "earliest",
        }
    )
    own = settings["checkpoint_location"] + "-of-spark"
    writer = plain.load().writeStream.foreachBatch(_count)
    theirs = _started(writer.option("checkpointLocation", own).start())

    frame = plain.load()
    # Spark's objects cache these on first use.
    _ = (spark.conf, spark.streams, frame.schema)
    before = _state(spark, frame)

    from spark_eos import ExactlyOnceSink

    sink = ExactlyOnceSink(**arguments(**settings))
    rows = sink.read(spark, subscribe=source).select("source", "key", "value")
    ours = _started(sink.write(rows).trigger(processingTime="100 milliseconds").start())
    sink.close()
    # Threads that end by themselves do so within a second or two.
    until = time.monotonic() + 10
    while _threads() != before["threads"] and time.monotonic() < until:
        time.sleep(0.1)
    after = _state(spark, rows)
    changed = {
        name: {"before": value, "after": after[name]}
        for name, value in before.items()
        if after[name] != value
    }
    if type(ours) is not type(theirs) or sorted(vars(ours)) != sorted(vars(theirs)):
        changed["query"] = {"before": sorted(vars(theirs)), "after": sorted(vars(ours))}
    files = {"before": _sparks_files(own), "after": _sparks_files(settings["checkpoint_location"])}
    if files["before"] != files["after"]:
        changed["Spark's files"] = files
    print("CHANGED", json.dumps(changed, default=str), flush=True)


if __name__ == "__main__":
    main()
