"""Replays dead letters: a direct query from their topic to where they belong."""

import contextlib
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._admin.dead_letter_topic import letter_of
from spark_eos._batch.batch_report import BatchReport
from spark_eos._driver.offset_log import OffsetLog
from spark_eos._pyspark_internals import set_spark_log_level
from spark_eos._sink.sink import ExactlyOnceSink
from spark_eos._spark.session import session_builder
from spark_eos._spark.spark_files import HadoopFiles
from spark_eos.acls import replay_group
from spark_eos.errors import CheckpointError
from spark_eos.options import Limits, Transactions

_RECORD: Final = (
    "topic string, partition int, timestamp bigint, "
    "headers array<struct<key: string, value: binary>>"
)


@contextlib.contextmanager
def local_spark() -> Iterator[SparkSession]:
    """The active session, or a local one that ends with the context."""
    spark = SparkSession.getActiveSession()
    if spark is not None:
        yield spark
        return
    # Or it would be a client of Spark Connect.
    os.environ.pop("SPARK_REMOTE", None)
    builder = session_builder().master("local[*]").appName("spark-eos dead-letters replay")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    try:
        # What ends the query is told without Spark's plan and stack traces.
        set_spark_log_level("OFF")
        yield spark
    finally:
        spark.stop()


def replay(
    spark: SparkSession,
    kafka: Mapping[str, Any],
    timeout: float,
    topic: str,
    home: str,
    ends: Callable[[], Mapping[int, int]],
    target: str,
    partitions: int,
    run: Callable[[StreamingQuery], None],
) -> int:
    """Writes a topic's letters of one home, from the group's offsets to ``ends``; their number."""
    group = replay_group(topic, home)
    reports: list[BatchReport] = []
    with tempfile.TemporaryDirectory(prefix="spark-eos-replay-") as directory:
        sink = ExactlyOnceSink(
            # Of an open transaction's records nobody knows yet whether they are letters.
            kafka={**kafka, "isolation.level": "read_committed"},
            group_id=group,
            # Spark's default file system may be another one.
            checkpoint_location=f"file://{directory}",
            delivery="direct",
            transactions=Transactions(id_prefix=replay_group(topic)),
            limits=Limits(connect_timeout_ms=round(timeout * 1000)),
            # What retention has deleted can't be replayed.
            fail_on_data_loss=False,
            on_batch=reports.append,
        )
        with contextlib.closing(sink):
            letters = sink.read(spark, subscribe=topic, include_headers=True)
            rows = _records(letters, home, target, partitions)
            _begin_batch(Path(directory), group, {topic: ends()})
            _check_begun(spark, f"file://{directory}")
            run(sink.write(rows).trigger(once=True).start())
    return sum(report.rows_written for report in reports)


def _begin_batch(checkpoint: Path, group: str, ends: Mapping[str, Mapping[int, int]]) -> None:
    """Makes a checkpoint of the group's query whose first batch has begun, and ends there."""
    # A start with trigger(once=True) runs this batch, and no other.
    # The same query in all replays with the group: each continues from the group's offsets.
    query = uuid.uuid5(uuid.NAMESPACE_URL, group)
    batch = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    (checkpoint / "metadata").write_text(json.dumps({"id": str(query)}))
    (checkpoint / "offsets").mkdir()
    lines = ("v1", json.dumps(batch), json.dumps(ends))
    (checkpoint / "offsets" / "0").write_text("\n".join(lines))


def _check_begun(spark: SparkSession, location: str) -> None:
    """Refuses to read further than planned, which Spark would do in an empty checkpoint."""
    if OffsetLog(HadoopFiles(spark, location)).begun != 0:
        raise CheckpointError(
            f"Spark finds nothing at {location}, where this process has written: the replay needs "
            "a local Spark (no spark.master or SPARK_REMOTE of another host)"
        )


def _records(letters: DataFrame, home: str, target: str, partitions: int) -> DataFrame:
    """The source records of letters of one home; in the source topic, for their own partition."""

    @F.udf(returnType=_RECORD, useArrow=False)
    def record(headers: list[Any] | None, timestamp: int) -> tuple[Any, ...] | None:
        found = ((key, None if value is None else bytes(value)) for key, value in headers or ())
        letter = letter_of(tuple(found), timestamp)
        if letter.home != home or "omitted" in letter.error_headers:
            return None
        source, partition = letter.source, None
        if source is not None and source.topic == target and source.partition < partitions:
            partition = source.partition
        return target, partition, letter.record_timestamp, list(letter.own_headers)

    found = letters.withColumn("record", record("headers", F.unix_millis("timestamp")))
    columns = ("source", "key", "value", "record.headers", "record.topic", "record.partition")
    timestamp = F.timestamp_millis("record.timestamp").alias("timestamp")
    return found.where("record IS NOT NULL").select(*columns, timestamp)
