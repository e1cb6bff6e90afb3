"""A query that uses only the public API, so that earlier versions can run it as well.

Its settings are JSON in the first argument: those of ExactlyOnceSink, ``source``, ``unlucky`` (each
record whose number is a multiple of it is a dead letter), ``drain`` (end when all is written) and
``dies`` (end as if killed before the first job that writes rows, when a staged batch is committed).
"""

import json
import os
import sys
from typing import Any, Final

from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from spark_eos import BatchReport, DeadLetters, ExactlyOnceSink, Limits, run, session_builder

DIED: Final = 9


def report_batch(report: BatchReport) -> None:
    print("REPORT", json.dumps([report.query_id, report.batch_id, report.rows_written]), flush=True)


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source, unlucky = settings.pop("source"), settings.pop("unlucky")
    drain = settings.pop("drain")
    if settings.pop("dies"):
        # Both versions write rows with this method; the query itself doesn't call it.
        ClassicDataFrame.mapInArrow = lambda *_, **__: os._exit(DIED)  # type: ignore[method-assign]
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
