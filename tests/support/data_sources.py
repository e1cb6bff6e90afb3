"""Queries of ``format("kafka-eos")``, and the processes that keep their members."""

import os
import signal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_eos import read_from_group
from support.flow import Flow
from support.queries import Transform, relay, until


def read(spark: SparkSession, flow: Flow, **options: Any) -> DataFrame:
    """The flow's source topic from its group's offsets on."""
    chosen = {"subscribe": flow.source, **options}
    return read_from_group(spark, kafka=flow.kafka, group_id=flow.group_id, **chosen)


def options(flow: Flow, **chosen: Any) -> dict[str, str]:
    """What writes to the flow's target topic; an option that is None is left out."""
    found = {
        "kafka.bootstrap.servers": flow.bootstrap_servers,
        "groupId": flow.group_id,
        "topic": flow.target,
        "checkpointLocation": flow.checkpoint,
        "workerDirectory": flow.worker_directory,
        **chosen,
    }
    return {name: value for name, value in found.items() if value is not None}


def writer(frame: DataFrame, flow: Flow, **chosen: Any) -> DataStreamWriter:
    """What writes a DataFrame to the flow's target topic."""
    # Spark 4.0 does not have it.
    from spark_eos import KafkaEosDataSource, write_stream

    frame.sparkSession.dataSource.register(KafkaEosDataSource)
    return write_stream(frame).options(**options(flow, **chosen))


def write_available(
    spark: SparkSession,
    flow: Flow,
    transform: Transform = relay,
    *,
    reading: dict[str, Any] | None = None,
    **chosen: Any,
) -> None:
    """Runs a query over all that is available."""
    frame = transform(read(spark, flow, **(reading or {})))
    query = writer(frame, flow, **chosen).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def keepers(flow: Flow) -> list[int]:
    """Process ids of the live keepers of a flow's group."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"spark_eos.datasource.keeper" in arguments and flow.group_id.encode() in arguments:
            found.append(int(directory.name))
    return found


def until_kept_no_more(flow: Flow) -> None:
    """Waits until the group has neither members nor a keeper."""
    until(lambda: not flow.members() and not keepers(flow), lambda: f"{keepers(flow)} to end", 30)


def end_keepers(flow: Flow) -> None:
    """Ends what a test's query has left."""
    for pid in keepers(flow):
        os.kill(pid, signal.SIGTERM)
    until_kept_no_more(flow)
