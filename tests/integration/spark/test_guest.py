"""A query leaves its process as it found it."""

import copy
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import kafka
import pytest
from kafka.errors import KafkaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink
from spark_eos._client.settings import ClientSettings
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._spark.narrow_plan import explained
from spark_eos.errors import DeadlineExceededError
from support import guest_main
from support.flow import Flow
from support.queries import relay, until
from support.sinks import flat


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["direct", "staged", "mirrored"])
def test_nothing_outside_of_ours_changes(request: pytest.FixtureRequest, delivery: str) -> None:
    name = "mirrored_flow" if delivery == "mirrored" else "flow"
    flow: Flow = request.getfixturevalue(name)
    flow.produce(range(10))
    settings = {**flat(flow.options()), "delivery": delivery, "source": flow.source}
    ended = subprocess.run(
        [sys.executable, guest_main.__file__, json.dumps(settings)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("CHANGED ")]
    changed = json.loads(line.removeprefix("CHANGED "))
    assert changed == {}, json.dumps(changed, indent=1)
    assert sorted(map(int, flow.values())) == list(range(10))


def test_queries_that_are_checked_at_a_time_see_their_own_plans(
    spark_eos_session: SparkSession,
) -> None:
    stdout = sys.stdout

    def column(number: int) -> bool:
        frame = spark_eos_session.range(1).select(F.lit(number).alias(f"column_{number}"))
        return f"column_{number}#" in explained(frame)["Physical"] and sys.stdout is stdout

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(column, range(40)))
    assert sys.stdout is stdout


def test_the_newest_sink_of_a_group_renews_its_offsets() -> None:
    sinks = [
        ExactlyOnceSink(
            kafka={"bootstrap.servers": "127.0.0.1:1"},
            group_id="renewed",
            topic="t",
            checkpoint_location="/nowhere",
        )
        for _ in range(2)
    ]

    def renewals() -> int:
        names = [thread.name for thread in threading.enumerate()]
        return names.count("spark-eos-renewal-renewed")

    for sink in sinks:
        for _ in range(2):
            sink._batches.begin_remotely()
    until(lambda: renewals() == 1, lambda: "the end of the first one's")
    sinks[0].close()
    time.sleep(0.2)
    assert renewals() == 1
    sinks[1].close()
    until(lambda: renewals() == 0, lambda: "the end of the second one's")


def test_a_copy_of_a_sink_starts_no_thread() -> None:
    sink = ExactlyOnceSink(
        kafka={"bootstrap.servers": "127.0.0.1:1"},
        group_id="g",
        topic="t",
        checkpoint_location="/nowhere",
    )
    before = threading.enumerate()
    copy.deepcopy(sink)
    assert threading.enumerate() == before


@contextmanager
def _records(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The messages of kafka-python that reach a handler in the block."""
    caplog.clear()
    found: list[str] = []
    yield found
    found += [f"{r.name}: {r.getMessage()}" for r in caplog.records if r.name[:5] == "kafka"]


def _ask_nobody() -> None:
    connections = Connections(ClientSettings({"bootstrap.servers": "127.0.0.1:1"}))
    try:
        with pytest.raises(DeadlineExceededError):
            connections.brokers(Deadline(1.5, "test"))
    finally:
        connections.close()


@pytest.mark.slow
def test_only_our_connections_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with _records(caplog) as ours:
        _ask_nobody()
    assert ours == []
    with _records(caplog) as theirs, pytest.raises(KafkaError):
        kafka.KafkaAdminClient(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=1_500)
    assert any("Connect" in text or "Bootstrap" in text for text in theirs), theirs
    # What ours log can be asked for.
    with caplog.at_level(logging.INFO, "kafka"), _records(caplog) as ours:
        _ask_nobody()
    assert any(text.startswith("kafka.net.manager: Bootstrap") for text in ours), ours


@pytest.mark.slow
def test_the_writers_choices_reach_spark(
    flow: Flow, spark_eos_session: SparkSession, tmp_path: Path
) -> None:
    from spark_eos.errors import ConfigurationError

    flow.produce(["a"])
    sink = ExactlyOnceSink(**flow.options())
    writer = sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source)))
    with pytest.raises(ConfigurationError, match="exactly one of processingTime"):
        writer.trigger(availableNow=True, once=True)
    with pytest.raises(ConfigurationError, match="the sink's checkpoint_location is"):
        writer.option("CHECKPOINTLOCATION", str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigurationError, match="the sink's checkpoint_location is"):
        writer.start(checkpointLocation=str(tmp_path / "elsewhere"))
    query = writer.queryName(f"named-{flow.name}").outputMode("update").start()
    try:
        query.processAllAvailable()
        assert query.name == f"named-{flow.name}"
        assert flow.values() == ["a"]
    finally:
        query.stop()
        sink.close()
