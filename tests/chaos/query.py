"""The query under test, in its own process; its settings are JSON in the first argument.

The process runs until it fails, has read everything (``drain``) or is killed. A file ``restart`` in
the control directory makes it stop the query and restart it at once. It prints the start times of
queries by the monotonic clock, which all processes of a machine share.
"""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chaos.every_load import EVERY_LOAD
from chaos.loads import disturbed, transformed
from chaos.processes import DRIVER_VARIABLE, add_report
from chaos.staged_stops import stop_at_places
from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos._jars.jar_sets import spark_kafka_jars
from spark_eos.testing import spark_session
from spark_eos.testing.broker_properties import free_ports
from support.sinks import arguments
from support.writers import Writer

_GIVEN_UP = "Python worker failed to connect back"


@dataclasses.dataclass(frozen=True)
class _Reports:
    """An ``on_batch`` that may be called in another process."""

    file: str

    def __call__(self, report: BatchReport) -> None:
        fields = dataclasses.asdict(report)
        fields.pop("partitions")
        add_report(Path(self.file), fields)


def _session(settings: dict[str, Any]) -> SparkSession:
    if settings["front"] != "connect":
        pid = str(os.getpid())
        places = ("spark.executorEnv", "spark.yarn.appMasterEnv")
        config = {**settings["config"], **{f"{each}.{DRIVER_VARIABLE}": pid for each in places}}
        return spark_session(master=settings["master"], config=config, quick_start=True)
    from pyspark.sql.connect.client.core import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # Another driver has its own server, but pyspark uses the default port for both.
    port = free_ports().client
    DefaultChannelBuilder.default_port = staticmethod(lambda: port)  # type: ignore[method-assign]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    jars = ",".join(map(str, spark_kafka_jars()))
    builder: Any = SparkSession.builder
    config = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.port": str(port),
        **settings["config"],
    }
    session = builder.remote(settings["master"]).config(map=config).getOrCreate()
    # By default, each request waits ten minutes for a server whose JVM was killed.
    session.client.set_retry_policies([DefaultPolicy(max_retries=4)])
    return session  # type: ignore[no-any-return]


def _sink_writer(spark: SparkSession, settings: dict[str, Any], reading: dict[str, Any]) -> Writer:
    load = EVERY_LOAD[settings["load"]]
    sink = ExactlyOnceSink(
        **arguments(**load.options, **settings["sink"], on_batch=_Reports(settings["reports"]))
    )
    frame = sink.read(spark, **reading)
    control = Path(settings["control"])
    return sink.write(transformed(load, frame, settings["targets"], control, settings["schemas"]))


def _staged_writer(
    spark: SparkSession, settings: dict[str, Any], reading: dict[str, Any]
) -> Writer:
    load, control = EVERY_LOAD[settings["load"]], Path(settings["control"])
    stop_at_places(control)
    sink = ExactlyOnceSink(
        **arguments(**load.options, **settings["sink"], on_batch=_Reports(settings["reports"]))
    )
    read = sink.read(spark, **reading)
    frame = disturbed(read if load.dead_letters else read.drop("source"), control)
    rows = load.transform(frame, settings["targets"], **settings["schemas"])
    writer = sink.write(rows).outputMode(load.mode)
    of_batch = load.of_batch
    if of_batch is None:
        return writer
    return writer.foreachBatch(lambda rows, batch_id: sink(of_batch(rows, batch_id), batch_id))


_WRITERS = {
    "sink": _sink_writer,
    "connect": _sink_writer,
    "staged": _staged_writer,
    "mirrored": _sink_writer,
}


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    spark = _session(settings)
    reading = {
        "subscribe": ",".join(settings["sources"]),
        "options": {"maxOffsetsPerTrigger": str(settings["max_offsets"])},
    }
    writer = _WRITERS[settings["front"]](spark, settings, reading)
    writer = writer.trigger(availableNow=True) if settings["drain"] else writer
    asynchronous = settings["sink"].get("asynchronous_progress", False)
    if asynchronous:
        # The default of 1 s allows only one or two batches.
        writer = writer.option("asyncProgressTrackingCheckpointIntervalMs", "3000")
    restart = Path(settings["control"]) / "restart"
    parent = os.getppid()
    while True:
        query = _start(writer)
        how = " asynchronous_progress" if asynchronous else ""
        print(f"STARTED {time.monotonic():.3f}{how}", flush=True)
        while query.isActive and not restart.exists():
            time.sleep(0.02)
            if os.getppid() != parent:
                os._exit(3)  # the harness is gone, and nobody will end this query
        if query.isActive:
            restart.unlink()
            query.stop()
            continue
        query.awaitTermination()
        print("DONE", flush=True)
        return


def _start(writer: Writer, more: int = 12) -> StreamingQuery:
    """Starts the query, and again if Spark gives up on a worker that did not connect in time.

    On Spark Connect the limit is a fixed 10 s, and a busy machine may need longer.
    """
    try:
        return writer.start()
    except PySparkException as error:
        if not more or _GIVEN_UP not in str(error):
            raise
    print(f"NOT STARTED {time.monotonic():.3f}: {_GIVEN_UP}", flush=True)
    return _start(writer, more - 1)


if __name__ == "__main__":
    main()
