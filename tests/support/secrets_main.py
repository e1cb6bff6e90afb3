"""Queries in a process that records everything: logs, plans, events, errors, objects.

Arguments: a JSON file, and a directory for the recordings.
"""

import json
import logging
import pickle
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._cli import main as command
from spark_eos.errors import ConfigurationError, RegistryError
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import spark_session
from support.sinks import arguments
from support.versions import HIDES_OPTIONS


def main(settings: dict[str, Any], here: Path) -> None:
    (here / "events").mkdir()
    logs = f"-Dlog4j2.configurationFile={settings['log4j2']}"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={settings['endpoint']}"
    spark = spark_session(
        "secrets",
        config={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (here / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.driver.extraJavaOptions": f"{logs} {allowed}",
        },
        quick_start=True,
    )
    for name, kafka in settings["kafka"].items():
        _query(spark, name, kafka, settings, here)
    _failures(spark, settings, here)
    _commands(settings, here)
    spark.stop()


def _query(
    spark: SparkSession, name: str, kafka: dict[str, Any], settings: dict[str, Any], here: Path
) -> None:
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(
        **arguments(
            kafka=kafka,
            group_id=f"{settings['group_id']}-{name}",
            topic=settings["target"],
            checkpoint_location=str(here / f"checkpoint-{name}"),
            worker_directory=str(here / "workers"),
            on_batch=reports.append,
        )
    )
    source = sink.read(spark, subscribe=settings["source"])
    frame = source.select("source", "key", "value")
    if name == "password":
        registry = SchemaRegistry(settings["registry"])
        text = F.col("value").cast("string").alias("value")
        frame = registry.encode(frame.select("source", "key", text), subject="texts")
        frame = registry.decode(frame, subject="texts")
    query = sink.write(frame).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(report.rows_written for report in reports) > 0
    with (here / f"seen-{name}.txt").open("w") as file:
        print(repr(sink), sink, reports, sink.__dict__, file=file)
        print(pickle.dumps(reports), file=file)
    _look(spark, source, query, here / f"seen-{name}.txt")


def _look(spark: SparkSession, source: DataFrame, query: StreamingQuery, note: Path) -> None:
    with note.open("a") as file:
        if HIDES_OPTIONS:
            jvm_frame: Any = source._jdf
            print(jvm_frame.queryExecution().toString(), file=file)
            print(jvm_frame.queryExecution().logical().toString(), file=file)
        jvm_query: Any = query._jsq
        print(jvm_query.explainInternal(True), file=file)  # noqa: FBT003 - Java's
        print(query.recentProgress, query.lastProgress, query.status, file=file)
        base = f"{spark.sparkContext.uiWebUrl}/api/v1/applications"
        page = f"{base}/{spark.sparkContext.applicationId}"
        for path in ("environment", "sql?details=true&planDescription=true", "jobs", "stages"):
            with urllib.request.urlopen(f"{page}/{path}") as answer:  # noqa: S310
                print("API", path, answer.read().decode(), file=file)
        for path in ("SQL", "environment", "StreamingQuery"):
            with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/{path}/") as answer:  # noqa: S310
                print("UI", path, answer.read().decode(), file=file)


def _failures(spark: SparkSession, settings: dict[str, Any], here: Path) -> None:
    """Provokes failures: wrong passwords, a bad row, a broker that refuses only the source."""

    def too_large(frame: DataFrame) -> DataFrame:
        value = F.repeat(F.lit("x"), 3_000_000).alias("value")
        return frame.select("source", "key", value)

    with (here / "errors.txt").open("w") as file:
        for name, kafka in settings["wrong"].items():
            try:
                sink = ExactlyOnceSink(
                    **arguments(
                        kafka=kafka,
                        group_id=f"{settings['group_id']}-wrong-{name}",
                        topic=settings["target"],
                        checkpoint_location=str(here / f"checkpoint-wrong-{name}"),
                        worker_directory=str(here / "workers"),
                    )
                )
                frame = sink.read(spark, subscribe=settings["source"])
                query = sink.write(too_large(frame)).trigger(availableNow=True).start()
                query.awaitTermination()
            except Exception:  # noqa: BLE001, PERF203 - each is looked at
                print(name, traceback.format_exc(), file=file)
            else:
                raise AssertionError(f"{name} did not fail")
        for registry in settings["wrong_registries"]:
            try:
                made = SchemaRegistry(registry, max_wait=2)
                made.decode(spark.sql("SELECT X'00' AS value"), subject="texts")
            except (ConfigurationError, RegistryError):  # noqa: PERF203 - each is looked at
                print("registry", traceback.format_exc(), file=file)


def _commands(settings: dict[str, Any], here: Path) -> None:
    with (here / "commands.txt").open("w") as file:
        kafka = dict(settings["kafka"]["password"])
        config = [("--bootstrap-servers", kafka.pop("bootstrap.servers"))]
        config += [("--kafka", f"{name}={value}") for name, value in kafka.items()]
        options = [word for pair in config for word in pair]
        group = ["--group-id", f"{settings['group_id']}-password"]
        topics = ["--input", settings["source"], "--output", settings["target"], "--key"]
        for line in (["status", *group], ["abort", "--yes", *group], ["verify", *group, *topics]):
            more = [] if line[0] == "abort" else ["--json"]
            result = CliRunner().invoke(command, [*line, *more, *options])
            assert not isinstance(result.exception, Exception) or result.exit_code in {1, 2}
            print(line[0], result.exit_code, result.output, file=file)


if __name__ == "__main__":
    logging.getLogger().info("started")
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
