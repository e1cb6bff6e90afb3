"""A query with many partitions in its own process, for `benchmarks/scale.py`.

Arguments: servers, group, pattern of source topics, target, checkpoint, concurrent tasks, rows per
batch. Prints a line of JSON once the session has started, and one for each batch.
"""

import json
import sys
import time

from spark_eos import BatchReport, ExactlyOnceSink
from spark_eos.testing import spark_session


def _tell(what: str, **figures: object) -> None:
    print(json.dumps({"at": time.monotonic(), "what": what, **figures}), flush=True)


def main() -> None:
    """Run the query until it is killed."""
    servers, group, pattern, target, checkpoint, tasks, rows = sys.argv[1:]
    # Spark keeps a consumer for each partition, with the records of its last poll.
    config = {"spark.driver.memory": "4g"}
    spark = spark_session(master=f"local[{tasks}]", config=config)
    _tell("session")

    def tell_batch(report: BatchReport) -> None:
        _tell("batch", rows=report.rows_written, transactions=report.transactions,
              **dict(report.milliseconds))  # fmt: skip

    sink = ExactlyOnceSink(
        kafka={"bootstrap.servers": servers},
        group_id=group,
        topic=target,
        checkpoint_location=checkpoint,
        on_batch=tell_batch,
    )
    frame = sink.read(spark, subscribePattern=pattern, options={"maxOffsetsPerTrigger": rows})
    sink.write(frame.select("source", "key", "value")).start().awaitTermination()


if __name__ == "__main__":
    main()
