"""A query that uses only the public API, so that earlier versions can run it as well.

Its settings are JSON in the first argument: those of ExactlyOnceSink, ``source``, ``unlucky`` (each
record whose number is a multiple of it is a dead letter) and ``drain`` (end when all is written).
"""

import json
import sys
from typing import Any

from pyspark.sql import functions as F

from spark_eos import BatchReport, DeadLetters, ExactlyOnceSink, Limits, run, session_builder


def report_batch(report: BatchReport) -> None:
    print("REPORT", json.dumps([report.query_id, report.batch_id, report.rows_written]), flush=True)


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source, unlucky = settings.pop("source"), settings.pop("unlucky")
    drain = settings.pop("drain")
    spark = session_builder().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    dead_letters = DeadLetters(settings.pop("dead_letter_topic"))
    limits = Limits(worker_directory=settings.pop("worker_directory"))
    sink = ExactlyOnceSink(
        **settings, limits=limits, dead_letters=dead_letters, on_batch=report_batch
    )
    broken = F.col("value").cast("string").cast("int") % unlucky == 0
    error = F.when(broken, F.lit("unlucky")).alias("error")
    rows = sink.read(spark, subscribe=source).select("source", "key", "value", error)
    writer = sink.write(rows.repartition(2) if settings["delivery"] == "staged" else rows)
    trigger = {"availableNow": True} if drain else {"processingTime": "500 milliseconds"}
    run(writer.trigger(**trigger).start())


if __name__ == "__main__":
    main()
