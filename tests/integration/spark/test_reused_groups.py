"""A group with another query's offsets: a script was copied with its `group_id`."""

import json
import re
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from support import groups, staging
from support.flow import Flow
from support.members import deadline
from support.queries import relay, run_available, running

Pipeline = Callable[[DataFrame], DataFrame]
_QUERY = re.compile(r"moved_from='([0-9a-f]{8})'")


def _copied(flow: Flow) -> str:
    """The script is copied with another target and checkpoint, but the group is not changed."""
    flow.checkpoint += "-copy"
    other = f"other-{flow.name}"
    flow.broker.create_topic(other, flow.partitions)
    return other


def _texts(flow: Flow) -> dict[TopicPartition, CommittedOffset]:
    with flow.connections() as connections:
        return all_group_offsets(connections, flow.group_id, deadline())


def _owners(flow: Flow) -> list[Any]:
    return [json.loads(one.metadata).get("owner") for one in _texts(flow).values()]


@pytest.fixture(params=["direct", pytest.param("mirrored", marks=pytest.mark.slow)])
def any_flow(request: pytest.FixtureRequest) -> Flow:
    """Topics in one cluster, or with the source in another."""
    name = {"direct": "flow", "mirrored": "mirrored_flow"}[request.param]
    found: Flow = request.getfixturevalue(name)
    return found


@pytest.mark.slow
def test_another_target_is_refused_until_it_is_confirmed(
    spark_eos_session: SparkSession, any_flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    flow, spark = any_flow, spark_eos_session
    more: dict[str, Any] = {"source_kafka": flow.source_kafka}
    flow.produce(range(100))
    run_available(spark, flow, **more)
    assert "the checkpoint is new" not in caplog.text
    first, other = flow.target, _copied(flow)
    flow.produce(range(100, 110))
    with pytest.raises(StreamingQueryException) as refused:
        run_available(spark, flow, topic=other, **more)
    text = str(refused.value)
    assert f"writes to '{first}'" in text
    assert f"would never be written to '{other}'" in text
    assert "another group_id and another checkpoint_location" in text
    # Neither the checkpoint that has begun, nor the group, may be used by the way.
    with pytest.raises(
        StreamingQueryException, match=f"begun before, with group '{flow.group_id}'"
    ):
        run_available(spark, flow, topic=other, group_id=f"{flow.group_id}-b", **more)
    assert flow.values(other) == []
    (query,) = set(_QUERY.findall(text))
    (report,) = run_available(spark, flow, topic=other, moved_from=query, **more)
    assert report.rows_written == 10
    assert "up to 10 source records are left to write, and up to 100 before them" in caplog.text
    # It may stay in the script, and need not.
    flow.produce(range(110, 120))
    for moved_from in (query, None):
        run_available(spark, flow, topic=other, moved_from=moved_from, **more)
    assert sorted(map(int, flow.values(other))) == list(range(100, 120))
    assert {tuple(owner) for owner in _owners(flow)} == {(report.query_id[:8], other)}
    assert sorted(map(int, flow.values(first))) == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "said"),
    [(relay, "moved_from="), (staging.repartitioned, "can't be continued without its own")],
    ids=["direct", "staged"],
)
def test_the_running_query_whose_group_it_is_goes_on(
    spark_eos_session: SparkSession, flow: Flow, pipeline: Pipeline, said: str
) -> None:
    flow.produce(map(staging.record, range(10)))
    with running(spark_eos_session, flow, pipeline) as query:
        query.processAllAvailable()
        before = flow.members()
        copied = copy(flow)
        other = _copied(copied)
        with pytest.raises(StreamingQueryException, match=said):
            run_available(spark_eos_session, copied, pipeline, topic=other)
        assert flow.members() == before
        flow.produce(map(staging.record, range(10, 20)))
        query.processAllAvailable()
    assert len(flow.values()) == 20


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [relay, staging.repartitioned], ids=["direct", "staged"])
def test_a_checkpoint_at_another_querys_offsets_starts_nothing(
    spark_eos_session: SparkSession, flow: Flow, pipeline: Pipeline
) -> None:
    """Neither deleting the group nor using another one helps: 10 records would be left out."""
    flow.produce(map(staging.record, range(10)))
    run_available(spark_eos_session, flow)
    other = _copied(flow)
    flow.produce(map(staging.record, range(10, 12)))
    with pytest.raises(StreamingQueryException, match=r"moved_from=|delivery='direct'"):
        run_available(spark_eos_session, flow, pipeline, topic=other)
    another = f"{flow.group_id}-b"
    with pytest.raises(StreamingQueryException, match=r"begun before|delivery='direct'"):
        run_available(spark_eos_session, flow, pipeline, topic=other, group_id=another)
    admin = AdminClient({"bootstrap.servers": flow.bootstrap_servers})
    admin.delete_consumer_groups([flow.group_id])[flow.group_id].result(60)
    with pytest.raises(StreamingQueryException, match=r"no longer has|delivery='direct'"):
        run_available(spark_eos_session, flow, pipeline, topic=other)
    assert flow.values(other) == []


@pytest.mark.slow
def test_a_checkpoint_with_another_querys_group_is_refused(
    spark_eos_session: SparkSession, any_flow: Flow
) -> None:
    flow, spark, own = any_flow, spark_eos_session, any_flow.checkpoint
    more: dict[str, Any] = {"source_kafka": flow.source_kafka}
    others = {**more, "group_id": f"{flow.group_id}-b"}
    flow.produce(range(10))
    run_available(spark, flow, **more)
    flow.produce(range(10, 20))
    flow.checkpoint = f"{own}-b"
    run_available(spark, flow, **others)
    flow.checkpoint = own
    with pytest.raises(
        StreamingQueryException, match=f"this query's checkpoint is of group '{flow.group_id}'"
    ):
        run_available(spark, flow, **others)
    run_available(spark, flow, **more)
    assert sorted(map(int, flow.values())) == sorted([*range(20), *range(20)])


@pytest.mark.slow
def test_sources_of_another_query_are_refused(
    spark_eos_session: SparkSession, new_flow: Callable[..., Flow]
) -> None:
    flow, other = new_flow(), new_flow()
    flow.produce(range(10))
    other.produce(range(10, 20))
    run_available(spark_eos_session, flow)
    flow.checkpoint += "-copy"
    read = {"subscribe": other.source}
    # A refused start does not count as the beginning of the checkpoint's query.
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as refused:
            run_available(spark_eos_session, flow, read=read)
        assert f"reads '{flow.source}', not '{other.source}'" in str(refused.value)
    (query,) = set(_QUERY.findall(str(refused.value)))
    run_available(spark_eos_session, flow, read=read, moved_from=query)
    assert sorted(map(int, flow.values())) == list(range(20))


@pytest.mark.slow
def test_a_deleted_checkpoint_continues_and_says_so(
    spark_eos_session: SparkSession,
    new_flow: Callable[..., Flow],
    caplog: pytest.LogCaptureFixture,
) -> None:
    flow, added = new_flow(), new_flow()
    flow.produce(range(10))
    run_available(spark_eos_session, flow)
    flow.produce(range(10, 15))
    added.produce(range(15, 18))
    flow.checkpoint += "-new"
    # A topic that was added meanwhile doesn't make it another query.
    read = {"subscribe": f"{flow.source},{added.source}"}
    run_available(spark_eos_session, flow, read=read)
    assert sorted(map(int, flow.values())) == list(range(18))
    assert (
        f"group {flow.group_id}: the checkpoint is new, and the group has offsets of query"
        in caplog.text
    )
    assert "up to 8 source records are left to write, and up to 10 before them" in caplog.text
    caplog.clear()
    run_available(spark_eos_session, flow, read=read)
    assert "the checkpoint is new" not in caplog.text


@pytest.mark.slow
def test_another_target_with_the_querys_checkpoint_is_said(
    spark_eos_session: SparkSession, flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    flow.produce(range(10))
    run_available(spark_eos_session, flow)
    other = f"other-{flow.name}"
    flow.broker.create_topic(other, 2)
    flow.produce(range(10, 15))
    run_available(spark_eos_session, flow, topic=other)
    assert sorted(flow.values(other)) == ["10", "11", "12", "13", "14"]
    said = f"the topic is '{other}' now, and was '{flow.target}'"
    assert caplog.text.count(said) == 1
    run_available(spark_eos_session, flow, topic=other)
    assert caplog.text.count(said) == 1


@pytest.mark.slow
def test_offsets_without_an_owner_refuse_nothing(
    spark_eos_session: SparkSession, flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    """As written by earlier versions or set by an operator."""
    flow.produce(range(10))
    run_available(spark_eos_session, flow)
    found = _texts(flow)
    older = {p: re.sub(r',"owner":\[.*?\]', "", one.metadata) for p, one in found.items()}
    assert all(older[p] != found[p].metadata for p in found)
    offsets = {p: one.offset for p, one in found.items()}
    for number, texts in enumerate([older, dict.fromkeys(found, "")]):
        groups.set_offsets(flow.bootstrap_servers, flow.group_id, offsets, texts)
        caplog.clear()
        topic = _copied(flow) if number == 0 else f"other-{flow.name}"
        reports = run_available(spark_eos_session, flow, topic=topic)
        assert sum(report.rows_written for report in reports) == 0
        assert ("the group has offsets of another query." in caplog.text) == (number == 0)
        flow.checkpoint += "-next"
