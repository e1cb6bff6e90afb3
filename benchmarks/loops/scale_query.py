"""A query of many partitions in a process of its own, for `benchmarks/scale.py`.

Arguments: servers, group, a pattern of source topics, target, checkpoint, tasks at once, rows of a
batch. Prints a line of JSON once its session is there, and for each batch.
"""

import json
import sys
import time

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos.testing import spark_session


def _tell(what: str, **figures: object) -> None:
    print(json.dumps({"at": time.monotonic(), "what": what, **figures}), flush=True)


def main() -> None:
    """Runs the query until it is killed."""
    servers, group, pattern, target, checkpoint, tasks, rows = sys.argv[1:]
    # Spark keeps a consumer and what its last poll has brought for each partition.
    config = {"spark.driver.memory": "4g"}
    spark = spark_session(master=f"local[{tasks}]", config=config)
    _tell("session")

    def told(report: BatchReport) -> None:
        _tell("batch", rows=report.rows_written, transactions=report.transactions,
              **dict(report.milliseconds))  # fmt: skip

    sink = ExactlyOnceSink(
        kafka={"bootstrap.servers": servers},
        group_id=group,
        topic=target,
        checkpoint_location=checkpoint,
        on_batch=told,
    )
    frame = sink.read(spark, subscribePattern=pattern, options={"maxOffsetsPerTrigger": rows})
    sink.write(frame.select("source", "key", "value")).start().awaitTermination()


if __name__ == "__main__":
    main()
