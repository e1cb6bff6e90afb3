"""A relay query for `support.queries.QueryProcess`; its settings are JSON in the first argument.

Settings besides those of ExactlyOnceSink: ``source`` or ``pattern``; ``master``; ``config`` (of the
session); ``available_now``; ``max_offsets``; ``headers`` (an SQL expression); ``hold`` (a path and
a value: the task that reaches a row with the value waits until the path exists); ``hold_once``
(only the first task waits); ``metrics_port``;
``log_interval_ms`` (between two batches that Spark logs, with asynchronous progress tracking).
"""

import dataclasses
import json
import sys
from typing import Any

from pyspark.sql import functions as F

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos.observability.listener import BatchListener
from spark_eos.observability.on_batch import OnBatch
from spark_eos.observability.prometheus import PrometheusMetrics
from spark_eos.testing import spark_session
from support.pipelines import waiting
from support.sinks import arguments
from support.writers import Writer


def print_report(report: BatchReport) -> None:
    print("REPORT", json.dumps(dataclasses.asdict(report)), flush=True)


def run_to_the_end(writer: Writer) -> None:
    """Starts a query and waits for its end; reports both to the test."""
    query = writer.start()
    print("STARTED", flush=True)
    query.awaitTermination()
    print("DONE", flush=True)


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source, pattern = settings.pop("source"), settings.pop("pattern", None)
    spark = spark_session(
        master=settings.pop("master", "local[2]"),
        config=settings.pop("config", {}),
        quick_start=True,
    )
    options = {}
    if "max_offsets" in settings:
        options["maxOffsetsPerTrigger"] = str(settings.pop("max_offsets"))
    hold = settings.pop("hold", None)
    hold_once = settings.pop("hold_once", False)
    headers = settings.pop("headers", None)
    available_now = settings.pop("available_now", True)
    log_interval_ms = settings.pop("log_interval_ms", None)
    observers: list[OnBatch] = [print_report]
    if "metrics_port" in settings:
        metrics = PrometheusMetrics(port=settings.pop("metrics_port"))
        listener = BatchListener(metrics.on_progress, metrics.on_idle)
        spark.streams.addListener(listener)
        observers += [metrics, listener]
    sink = ExactlyOnceSink(**arguments(**settings, on_batch=observers))
    read = {"subscribe": source} if pattern is None else {"subscribePattern": pattern}
    frame = sink.read(spark, **read, options=options).select("source", "key", "value")
    if headers is not None:
        frame = frame.withColumn("headers", F.expr(headers))
    if hold is not None:
        frame = waiting(frame, *hold, once=hold_once)
    writer = sink.write(frame)
    writer = writer.trigger(availableNow=True) if available_now else writer
    if log_interval_ms is not None:
        writer = writer.option("asyncProgressTrackingCheckpointIntervalMs", str(log_interval_ms))
    run_to_the_end(writer)


if __name__ == "__main__":
    main()
