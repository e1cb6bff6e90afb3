"""A relay query of ``format("kafka-eos")`` for `support.queries.QueryProcess`.

Its settings are JSON in the first argument: ``flow``'s options, ``source``, and ``remote``, with
which the session is one of Spark Connect with a server of its own.
"""

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark_eos import KafkaEosDataSource, read_from_group, write_stream
from spark_eos.jars.jar_sets import spark_kafka_jars
from spark_eos.testing import spark_session
from support.queries import relay


def _session(*, remote: bool) -> SparkSession:
    if not remote:
        return spark_session(quick_start=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    jars = ",".join(map(str, spark_kafka_jars()))
    builder: Any = SparkSession.builder
    config = {"spark.jars": jars, "spark.ui.enabled": "false"}
    return builder.remote("local[2]").config(map=config).getOrCreate()  # type: ignore[no-any-return]


def main() -> None:
    """Runs the query over all that is available, or until it is killed."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    spark = _session(remote=settings.get("remote", False))
    kafka, group_id = settings["kafka"], settings["group_id"]
    frame = relay(
        read_from_group(
            spark,
            kafka=kafka,
            group_id=group_id,
            subscribe=settings["source"],
            options={"maxOffsetsPerTrigger": str(settings["max_offsets"])},
        )
    )
    spark.dataSource.register(KafkaEosDataSource)
    options = {
        **{f"kafka.{name}": value for name, value in kafka.items()},
        "groupId": group_id,
        "topic": settings["topic"],
        "checkpointLocation": settings["checkpoint_location"],
        "workerDirectory": settings["worker_directory"],
    }
    writer = write_stream(frame).options(**options)
    query = writer.trigger(availableNow=True).start()
    print("STARTED", flush=True)
    query.awaitTermination()
    print("DONE", flush=True)


if __name__ == "__main__":
    main()
