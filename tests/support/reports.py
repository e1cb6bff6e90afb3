"""A made-up batch report and Spark's progress for it."""

import json
import uuid

from pyspark.sql.streaming.listener import StreamingQueryProgress

from spark_eos import BatchReport, LostRecords, PartitionReport

# Rows were skipped and written again; a source partition was new; records had been deleted.
REPORT = BatchReport(
    group_id="orders and more",
    query_id=str(uuid.UUID(int=1)),
    query_run="r",
    batch_id=7,
    rows_written=5,
    rows_skipped=1,
    bytes_written=50,
    transactions=2,
    attempts=2,
    offset_commit_version=6,
    partitions=(
        PartitionReport("a", 0, 10, 14, 3, 1, 1),
        PartitionReport("a", 1, None, 2, 2, 0, 1),
    ),
    milliseconds={"total": 80.04, "job": 60.0, "produce": 20.0},
    lost=(LostRecords("a", 0, 10, 12),),
    dead_letters={"error": 3},
    timestamps_adjusted=4,
)


def progress(end: object, latest: object) -> StreamingQueryProgress:
    """Progress of `REPORT`'s batch: its end offsets and the latest offsets."""
    source = {
        "description": "KafkaV2[Subscribe[a]]",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 0,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }
    document = {
        "id": REPORT.query_id,
        "runId": str(uuid.UUID(int=2)),
        "name": None,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": REPORT.batch_id,
        "batchDuration": 80,
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
    }
    return StreamingQueryProgress.fromJson(json.loads(json.dumps(document)))
