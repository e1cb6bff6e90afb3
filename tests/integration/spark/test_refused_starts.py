"""Starts at which Spark's own error would name no remedy are refused or explained with one.

Each case runs the query on the same checkpoint again, then follows the error's advice.
"""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import spark_eos
from spark_eos import ExactlyOnceSink, errors
from spark_eos.testing import EmbeddedKafka, process_available
from support.flow import Flow
from support.queries import relay, run_available, running, until

_EMPTY = "start with an empty checkpoint_location and the same group_id"


@pytest.fixture(scope="module")
def ran(
    embedded_kafka: EmbeddedKafka,
    tmp_path_factory: pytest.TempPathFactory,
    spark_eos_session: SparkSession,
) -> Flow:
    """A query with three batches."""
    here = tmp_path_factory.mktemp("ran")
    flow = Flow(embedded_kafka, str(here / "checkpoint"), str(here / "workers"))
    for number in range(3):
        flow.produce([str(number)])
        run_available(spark_eos_session, flow)
    return flow


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: len(file.read_bytes()) // 2])


def _scramble(file: Path) -> None:
    file.write_bytes(b"\xff\xfe garbage")


def _unreadable(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _newer(file: Path) -> None:
    file.write_bytes(b"v9" + file.read_bytes()[2:])


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("metadata", Path.unlink, "but no metadata"),
        ("metadata", _truncate, "metadata of .* can't be read"),
        ("metadata", _scramble, "metadata of .* can't be read"),
        ("offsets/2", Path.unlink, "marks batch 2 as finished"),
        ("offsets/2", _truncate, "a damaged offsets/2"),
        ("offsets/2", _scramble, "a damaged offsets/2"),
        ("offsets/2", _newer, "offsets/2 has format 'v9'"),
        ("offsets/2", _unreadable, "offsets/2 can't be read: .*Let this user read it"),
        ("offsets/1", Path.unlink, "has no offsets/1"),
        ("offsets", shutil.rmtree, "has no offsets of any batch"),
        ("commits/2", _truncate, "a damaged commits/2"),
        ("commits/2", _newer, "commits/2 has format 'v9'"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_damaged_checkpoint(
    ran: Flow,
    spark_eos_session: SparkSession,
    tmp_path: Path,
    name: str,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(ran.checkpoint, copy)
    damage(copy / name)
    # Else Hadoop's local file system finds the damage itself.
    (copy / name).parent.joinpath(f".{Path(name).name}.crc").unlink(missing_ok=True)
    with pytest.raises(errors.CheckpointError, match=words) as refused:
        run_available(spark_eos_session, ran, checkpoint_location=str(copy))
    if "can't be read: Fi" not in refused.value.text:
        assert _EMPTY in refused.value.text


def test_an_empty_checkpoint_continues(ran: Flow, spark_eos_session: SparkSession) -> None:
    """Follows the errors' advice."""
    ran.produce(["3"])
    run_available(spark_eos_session, ran, checkpoint_location=f"{ran.checkpoint}-empty")
    assert sorted(ran.values()) == ["0", "1", "2", "3"]


def _union(session: SparkSession, flow: Flow, topics: list[str], delivery: str) -> None:
    with closing(ExactlyOnceSink(**flow.options(), delivery=delivery)) as sink:
        first, *others = (relay(sink.read(session, subscribe=topic)) for topic in topics)
        for other in others:
            first = first.union(other)
        process_available(sink.write(first), timeout=240)


@pytest.mark.parametrize("delivery", ["direct", pytest.param("staged", marks=pytest.mark.slow)])
def test_sources_of_a_union(
    new_flow: Callable[[], Flow], spark_eos_session: SparkSession, delivery: str
) -> None:
    flow, second = new_flow(), new_flow()
    one, other = flow.source, second.source
    flow.produce(["a"])
    second.produce(["b"])
    _union(spark_eos_session, flow, [one, other], delivery)
    for topics, words in (
        ([one], rf"offsets of 2 sources \({one}; {other}\), and the query has 1"),
        ([other, one], f"offsets of {one} for source 1 of the query, which no longer reads it"),
        ([one, flow.target + "-x"], "does not exist"),
    ):
        with pytest.raises(errors.SparkEosError, match=words) as refused:
            _union(spark_eos_session, flow, topics, delivery)
        if isinstance(refused.value, errors.CheckpointError):
            cure = _EMPTY if delivery == "direct" else "start over with another group_id"
            assert cure in refused.value.text
    if delivery == "direct":
        flow.checkpoint += "-empty"
        _union(spark_eos_session, flow, [other, one], delivery)
    assert sorted(flow.values()) == ["a", "b"]


def test_a_partition_that_is_added_before_the_start(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    with closing(ExactlyOnceSink(**flow.options())) as sink:
        rows = relay(sink.read(spark_eos_session, subscribe=flow.source))
        writer = sink.write(rows)
        flow.broker.add_partitions(flow.source, 3)
        words = f"'{flow.source}' had 2 partitions when sink.read was called, and has 3 now"
        with pytest.raises(errors.UnsupportedPipelineError, match=words):
            writer.start()
        flow.produce(["a"], partition=2)
        process_available(
            sink.write(relay(sink.read(spark_eos_session, subscribe=flow.source))), timeout=240
        )
    assert flow.values() == ["a"]


@pytest.mark.slow
def test_a_source_topic_that_is_deleted_under_the_query(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    flow.produce(["a"])
    reason = f"TopicNotFoundError: source topic {flow.source} does not exist"
    # For programs that wait by awaitTermination, which raises Spark's own text.
    logged = f"group {flow.group_id}: the query has failed: {reason}"
    with running(spark_eos_session, flow) as query:
        query.processAllAvailable()
        flow.broker.delete_topic(flow.source)
        with pytest.raises(errors.QueryFailedError) as failed:
            spark_eos.run(query)
        until(lambda: logged in caplog.text, lambda: f"{logged!r} in the log")
    assert failed.value.text == reason
    assert failed.value.entry == "EOS09"
    assert isinstance(failed.value.__context__, StreamingQueryException)
    assert flow.values() == ["a"]
