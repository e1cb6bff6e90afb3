"""docs/staged.md and docs/moving.md: their instructions for operators work as described."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_eos import QueryFailedError
from spark_eos._kafka.topic_partition import TopicPartition
from support.flow import Flow
from support.groups import set_offsets
from support.pages import code_blocks, end_queries, run_block
from support.queries import QueryProcess
from support.staging import record, run_staged, totals, totals_of

COUNTS, DELAYS, SET_PROGRESS = code_blocks("staged", "python")

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(spark_eos_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The shared session, whose queries end when they have read everything available."""
    end_queries(monkeypatch)
    spark_eos_session.conf.set("spark.sql.shuffle.partitions", "4")
    return spark_eos_session


def _count(flow: Flow, spark: SparkSession) -> dict[str, Any]:
    words = {
        "localhost:9092": flow.bootstrap_servers,
        "order-counts": flow.group_id,
        "orders-counts": flow.target,
        '"orders"': repr(flow.source),
        "checkpoints/counts": flow.checkpoint,
    }
    names = run_block(COUNTS, words, spark=spark)
    names["sink"].close()
    return names


def _set_progress(flow: Flow, topic: str = "spark-eos-progress") -> None:
    words = {
        "localhost:9092": flow.bootstrap_servers,
        "order-counts": flow.group_id,
        "spark-eos-progress": topic,
    }
    run_block(SET_PROGRESS, words)


def _produce(flow: Flow, numbers: range) -> None:
    flow.produce(numbers, key=lambda number: str(number % 5).encode())


def _counted(flow: Flow) -> int:
    """The sum of each minute's greatest count; each count was written once."""
    rows = [json.loads(message.value() or b"") for message in flow.written()]
    seen = Counter((row["minute"]["start"], row["count"]) for row in rows)
    assert set(seen.values()) == {1}
    greatest: dict[str, int] = {}
    for start, count in seen:
        greatest[start] = max(greatest.get(start, 0), count)
    return sum(greatest.values())


def test_the_counts_continue_after_the_staged_commit_is_lost(
    flow: Flow, spark: SparkSession
) -> None:
    _produce(flow, range(40))
    _count(flow, spark)
    _produce(flow, range(40, 60))
    _count(flow, spark)
    assert _counted(flow) == 60

    commit_partition = TopicPartition("spark-eos-progress", 0)
    set_offsets(flow.bootstrap_servers, flow.group_id, {commit_partition: 5})
    _produce(flow, range(60, 70))
    with pytest.raises(QueryFailedError, match=r"the staged commit of group .* was lost") as caught:
        _count(flow, spark)
    assert "to 0 while the query is stopped" in str(caught.value)
    assert _counted(flow) == 60
    _set_progress(flow)
    _count(flow, spark)
    assert _counted(flow) == 70


def test_the_delays(flow: Flow, spark: SparkSession) -> None:
    written = f"written-{flow.name}"
    flow.broker.create_topic(written, 2)
    _produce(flow, range(5))
    producer = Producer({"bootstrap.servers": flow.bootstrap_servers})
    for key in ("3", "4", "5"):
        producer.produce(written, b"done", key)
    assert producer.flush(60) == 0
    words = {
        "localhost:9092": flow.bootstrap_servers,
        "order-delays": flow.group_id,
        "orders-delays": flow.target,
        '"orders"': repr(flow.source),
        "orders-enriched": written,
        "checkpoints/delays": flow.checkpoint,
    }
    beginning = COUNTS.partition("sink = ")[0]
    names = run_block(beginning + DELAYS, words, spark=spark)
    names["sink"].close()
    keys = [message.key() or b"" for message in flow.written()]
    assert sorted(keys) == [b"3", b"4"]
    assert all((message.value() or b"").startswith(b"INTERVAL") for message in flow.written())


def test_a_progress_topic_that_was_deleted(flow: Flow, spark: SparkSession) -> None:
    first, second = f"progress-{flow.name}", f"progress-{flow.name}-2"
    flow.produce(map(record, range(30)))
    run_staged(spark, flow, totals, "update", progress_topic=first, progress_partitions=3)
    flow.broker.delete_topic(first)
    flow.produce(map(record, range(30, 60)))
    with pytest.raises(StreamingQueryException, match="was deleted and recreated"):
        run_staged(spark, flow, totals, "update", progress_topic=first)
    assert len(flow.values()) == 5
    # It can go on in another topic.
    flow.broker.create_topic(second, 4)
    _set_progress(flow, second)
    run_staged(spark, flow, totals, "update", progress_topic=second)
    assert totals_of(flow) == Counter((f"c{c}", n) for c in range(5) for n in (6, 12))


def test_a_query_with_state_moves_with_its_checkpoint(flow: Flow, spark: SparkSession) -> None:
    flow.produce(map(record, range(30)))
    kafka = {"kafka.bootstrap.servers": flow.bootstrap_servers}
    source = spark.readStream.format("kafka").options(**kafka, subscribe=flow.source)
    rows = totals(source.option("startingOffsets", "earliest").load())
    writer = rows.writeStream.format("kafka").outputMode("update").trigger(availableNow=True)
    place = {"topic": flow.target, "checkpointLocation": flow.checkpoint}
    writer.options(**kafka, **place).start().awaitTermination()
    flow.produce(map(record, range(30, 60)))
    # Nothing says that the checkpoint's batches were written, so nothing is.
    with pytest.raises(StreamingQueryException, match="OffsetsLostError"):
        run_staged(spark, flow, totals, "update")
    assert totals_of(flow) == Counter((f"c{c}", 6) for c in range(5))
    _set_progress(flow)
    run_staged(spark, flow, totals, "update")
    # The state has come along.
    assert totals_of(flow) == Counter((f"c{c}", n) for c in range(5) for n in (6, 12))


def test_a_copy_that_is_lost_is_staged_again(flow: Flow, tmp_path: Path) -> None:
    flow.produce(map(record, range(90)))
    chosen: dict[str, Any] = {"pipeline": "totals", "mode": "update"}
    for number, kill in enumerate((["staged-commit", 1], None, None)):
        log = tmp_path / f"{number}.log"
        settings = chosen if kill is None else {**chosen, "kill": kill}
        with QueryProcess(flow, log, main="support.staged_main", **settings) as query:
            status = query.wait(120)
            output = query.output()
        if number == 0:
            assert status == -9, output
            (copy,) = (Path(flow.checkpoint) / "spark-eos" / "staged").glob("1-*")
            for path in [*copy.glob("part-*"), *copy.glob(".part-*")]:
                path.unlink()
        elif number == 1:
            assert "files of it were removed or changed" in output, output[-4000:]
            assert "to 0 while the query is stopped" in output
            _set_progress(flow)
        else:
            assert status == 0, output
    counts = range(6, 19, 6)
    assert totals_of(flow) == Counter((f"c{c}", n) for c in range(5) for n in counts)
