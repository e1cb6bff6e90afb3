"""The group changes while a query runs: nothing is lost or duplicated.

The query handles lost members and added or moved partitions by itself. Another application's
consumer in the group is an error that names the consumer.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from spark_eos import BatchReport, ExactlyOnceSink, errors
from spark_eos._client.error_codes import code_name
from spark_eos._exactly_once.members import GroupMembership
from spark_eos._kafka import cluster
from spark_eos._kafka.groups import DescribedMember
from spark_eos._kafka.offsets import commit_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from support.dead_letters import create_dead_letter_topic
from support.flow import Flow
from support.foreign_consumer import foreign_consumer
from support.manual_members import ManualMembers, drop_members
from support.members import deadline
from support.queries import QueryProcess, relay, run_available, until
from support.runs import running
from support.sinks import arguments
from support.topic_limits import configure
from support.versions import STALE_EPOCH


def _set_timeouts(flow: Flow, *, session_ms: int = 45_000, heartbeat_ms: int = 100) -> None:
    """The group's own timeouts; the brokers' minimum for heartbeats is 100 ms here."""
    wanted = {
        "consumer.session.timeout.ms": str(session_ms),
        "consumer.heartbeat.interval.ms": str(heartbeat_ms),
    }
    configure(flow, flow.group_id, wanted, ResourceType.GROUP)


def _members(flow: Flow) -> dict[str, DescribedMember]:
    return {m.instance_id or "": m for m in flow.members()}


def _epochs(flow: Flow) -> list[int]:
    return [m.epoch or 0 for m in flow.members()]


def _partitions(flow: Flow) -> dict[str, list[int]]:
    """Each group member's assignment."""
    return {
        name: sorted(partition for _topic, partition in member.assigned or ())
        for name, member in sorted(_members(flow).items())
    }


def _has_one(group: ManualMembers, instance_id: str) -> bool:
    group.heartbeat()
    return len(group.owned(instance_id)) == 1


def _drop_member(flow: Flow) -> None:
    drop_members(flow, "spark-eos-0")
    until(lambda: flow.members() == [], lambda: "the member to be dropped")


# Without help --------------------------------------------------------------------------------


def test_partitions_found_by_the_group_after_the_member_joined(flow: Flow) -> None:
    # As when a topic was created a moment ago: the member has confirmed all it was given,
    # and the broker computes the assignment again only for a heartbeat.
    with flow.connections() as connections:
        topic_id = cluster.topics(connections, [flow.source], deadline())[flow.source].topic_id
        membership = GroupMembership(
            connections,
            flow.group_id,
            group_timeout_ms=60_000,
            watch=lambda: True,
            at_end=lambda: None,
        )

        def add_later() -> None:
            until(lambda: _partitions(flow) == {"spark-eos-0": [0, 1]}, lambda: "the member")
            time.sleep(0.1)
            flow.broker.add_partitions(flow.source, 4)

        adding = threading.Thread(target=add_later)
        adding.start()
        try:
            four = {flow.source: cluster.TopicInfo(flow.source, topic_id, 4)}
            membership.start(four, [TopicPartition(flow.source, p) for p in range(4)])
            assert len(membership.assignment().partitions) == 4
        finally:
            adding.join()
            membership.leave()


def test_partitions_added_in_the_middle_of_a_batch(flow: Flow) -> None:
    _set_timeouts(flow)
    with running(flow) as runs:
        runs.batch(3, 3)
        before = _epochs(flow)

        def add_partitions() -> None:
            flow.broker.add_partitions(flow.source, 5)
            until(lambda: min(_epochs(flow)) > max(before), lambda: "the epoch to be raised")

        # Kept partitions are committed with the epoch in their plan, which is an older one by now.
        report = runs.batch(6, 6, while_planned=add_partitions)
        assert report.attempts == 1
        assert {p.member_epoch for p in report.partitions} == set(before)
        runs.batch(9, 9, 4, 4, 4)
        assert [len(owned) for owned in _partitions(flow).values()] == [5]
        runs.written_once(9, 9, 4, 4, 4)
    assert flow.members() == []


def test_the_member_is_gone_in_the_middle_of_a_batch(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_eos")
    _set_timeouts(flow)
    with running(flow) as runs:
        runs.batch(3, 3)
        report = runs.batch(6, 6, while_planned=lambda: _drop_member(flow))
        assert report.attempts == 2
        assert "attempt 2 for 2 source partitions" in caplog.text
        assert "25 UNKNOWN_MEMBER_ID" in caplog.text
        assert _partitions(flow) == {"spark-eos-0": [0, 1]}
        runs.written_once(6, 6)


@pytest.mark.slow
def test_rows_after_a_refused_transaction_go_to_the_next_attempt(
    flow: Flow,
) -> None:
    _set_timeouts(flow)
    with running(flow, max_transaction_records=1) as runs:
        runs.batch(1, 1)
        # The first partition's transaction is refused when the other one's rows come.
        rows = [(partition, range(1, 2)) for partition in (0, 1)]
        report = runs.batch(2, 2, tasks=[rows], while_planned=lambda: _drop_member(flow))
        assert report.attempts == 2
        runs.written_once(2, 2)


def test_dead_letters_of_an_aborted_transaction_are_counted_once(flow: Flow) -> None:
    _set_timeouts(flow)
    dlq, small = create_dead_letter_topic(flow), f"small-{flow.name}"
    flow.broker.create_topic(small, 1, {"max.message.bytes": "20"})  # no record is that small
    settings = DeadLetterSettings(topic=dlq)
    for partition in (0, 1):
        flow.produce(range(2), partition=partition)
    with running(flow, topic=small, dead_letters=settings) as runs:
        report = runs.batch(2, 2, while_planned=lambda: _drop_member(flow))
        assert report.attempts == 2
        assert sum(report.dead_letters.values()) == len(flow.written(dlq)) == 4


@pytest.mark.slow
def test_a_partition_is_revoked_and_reassigned_within_a_batch(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_eos")
    _set_timeouts(flow)
    with running(flow) as runs, flow.connections() as connections:
        runs.batch(3, 3)
        (before,) = _epochs(flow)
        visitor = ManualMembers(flow, connections)

        def visit() -> None:
            visitor.join("spark-eos-visitor")
            until(lambda: _has_one(visitor, "spark-eos-visitor"), lambda: "its share")
            visitor.leave("spark-eos-visitor")
            until(lambda: _partitions(flow) == {"spark-eos-0": [0, 1]}, lambda: "both back")

        # It is the same member throughout: with its older epoch, it may commit only what it kept.
        report = runs.batch(6, 6, while_planned=visit)
        assert report.attempts == 2
        assert "attempt 2 for 1 source partitions" in caplog.text
        assert f"spark-eos-0 at epoch {before}" in caplog.text
        assert code_name(STALE_EPOCH) in caplog.text
        runs.written_once(6, 6)


def test_a_member_lost_between_two_batches_joins_again(flow: Flow) -> None:
    _set_timeouts(flow)
    with running(flow) as runs:
        runs.batch(3, 3)
        drop_members(flow, "spark-eos-0")
        until(lambda: runs.coordinator_changed, lambda: "a heartbeat")
        # Before the batch is planned: its tasks meet no refusal.
        assert runs.batch(6, 6).attempts == 1
        runs.written_once(6, 6)


@contextmanager
def _running_query(
    spark: SparkSession, flow: Flow, **options: Any
) -> Iterator[tuple[Any, list[BatchReport]]]:
    """A query that runs until the block ends; its batches' reports."""
    reports: list[BatchReport] = []
    sink = ExactlyOnceSink(**arguments(**{**flow.options(), **options}, on_batch=reports.append))
    query = sink.write(relay(sink.read(spark, subscribe=flow.source))).start()
    try:
        yield query, reports
    finally:
        query.stop()
        sink.close()


def _await_committed(flow: Flow, offsets: dict[int, int]) -> None:
    until(lambda: flow.committed() == offsets, lambda: f"{offsets}, have {flow.committed()}")


def _exactly_once(flow: Flow, values: Iterable[Any]) -> None:
    assert sorted(flow.values()) == sorted(map(str, values))
    assert flow.open_transactions() == []


@pytest.mark.slow
def test_all_sessions_end_while_the_driver_is_stopped(flow: Flow, tmp_path: Path) -> None:
    # As on a virtual machine that is paused, in the middle of a batch.
    _set_timeouts(flow, session_ms=1_000)
    for partition in (0, 1):
        values = [f"{partition}/{n}" for n in range(100)] + ["hold"]
        # Large enough for the rows before the held one to leave all buffers on the way.
        flow.produce(values, partition, key=b"x" * 16_000)
    with QueryProcess(
        flow,
        tmp_path / "query.log",
        available_now=False,
        hold=[str(tmp_path / "go"), "hold"],
        config={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"},
    ) as query:
        query.until(lambda: len(flow.open_transactions()) == 2, "two open transactions")
        os.kill(query.process.pid, signal.SIGSTOP)
        query.until(lambda: flow.members() == [], "all sessions to end")
        # The workers continue as members that no longer exist, and commit nothing.
        (tmp_path / "go").touch()
        query.until(lambda: flow.open_transactions() == [], "the transactions to be aborted")
        assert flow.committed() == {0: 0, 1: 0}
        os.kill(query.process.pid, signal.SIGCONT)
        query.until(query.reports, "the batch")
        assert query.reports()[0]["attempts"] == 2
        # And it goes on.
        flow.produce(["later", "later"])
        query.until(lambda: flow.committed() == {0: 102, 1: 102}, "the next batch")
        assert [len(owned) for owned in _partitions(flow).values()] == [2]
    expected = [f"{p}/{n}" for p in (0, 1) for n in range(100)]
    _exactly_once(flow, [*expected, "hold", "hold", "later", "later"])


# With help -----------------------------------------------------------------------------------


@contextmanager
def _foreign_member(
    flow: Flow, seen: Callable[[], bool], protocol: str = "consumer"
) -> Iterator[None]:
    """A consumer that has joined, and that a heartbeat has noticed."""
    with foreign_consumer(flow, protocol):
        until(seen, lambda: "a heartbeat to find it")
        yield


@pytest.mark.slow
def test_a_foreign_consumer_joins_under_a_running_query(
    flow: Flow, spark_eos_session: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    _set_timeouts(flow)
    flow.produce(range(20))
    with _running_query(spark_eos_session, flow) as (query, _reports):
        _await_committed(flow, {0: 10, 1: 10})
        with _foreign_member(flow, lambda: "'somebody-else' on host" in caplog.text):
            flow.produce(range(20, 40))
            with pytest.raises(
                StreamingQueryException, match=r"'somebody-else' on host /127\.0\.0\.1"
            ):
                query.awaitTermination(120)
    _exactly_once(flow, range(20))
    # Once it is gone, a start goes on where the group is.
    run_available(spark_eos_session, flow)
    _exactly_once(flow, range(40))
    assert flow.committed() == {0: 20, 1: 20}


@pytest.mark.slow
def test_a_foreign_consumer_without_partitions_is_named_too(new_flow: Callable[..., Flow]) -> None:
    # The member keeps the only partition: just its epoch tells.
    flow = new_flow(partitions=1)
    _set_timeouts(flow)
    with running(flow) as runs:
        runs.batch(3)
        before = _partitions(flow)
        with _foreign_member(flow, lambda: runs.foreign_member_seen, "classic"):
            assert {**before, "": []} == _partitions(flow)
            with pytest.raises(
                errors.ForeignMemberError, match=r"'somebody-else' on host /127\.0\.0\.1"
            ):
                runs.batch(6)
    runs.written_once(3)


def test_a_foreign_consumer_that_came_and_went_is_named(flow: Flow) -> None:
    _set_timeouts(flow)
    with running(flow) as runs:
        runs.batch(3, 3)
        with _foreign_member(flow, lambda: runs.foreign_member_seen):
            pass
        until(lambda: len(flow.members()) == 1, lambda: "it to leave")
        with pytest.raises(errors.ForeignMemberError, match="'somebody-else' on host"):
            runs.batch(6, 6)
    runs.written_once(3, 3)


def test_an_offset_committed_by_another_client_is_no_progress(flow: Flow) -> None:
    # The member goes unnoticed, because its instance id is like ours; its commit reveals it.
    _set_timeouts(flow)
    with running(flow) as runs:
        runs.batch(3, 3)
        with flow.connections() as connections:
            group = ManualMembers(flow, connections)
            group.join("spark-eos-visitor")
            until(lambda: _has_one(group, "spark-eos-visitor"), lambda: "its share")
            visitor = group.members["spark-eos-visitor"]
            codes = commit_offsets(
                connections,
                flow.group_id,
                visitor.identity,
                {TopicPartition(flow.source, 1): 5},
                group.topic_ids,
                deadline(),
            )
            assert codes == {(flow.source, 1): 0}
            group.leave("spark-eos-visitor")
        until(lambda: runs.coordinator_changed, lambda: "a heartbeat")
        with pytest.raises(
            errors.OffsetsLostError,
            match=rf"{flow.source}-1 up to 3 and now has 5.*offsets 3 to 4 are not written",
        ):
            runs.batch(6, 6)
        assert sorted(flow.values()) == [f"{p}/{n}" for p in (0, 1) for n in range(3)]


@pytest.mark.slow
def test_offsets_that_a_classic_group_has_left_are_taken_over(
    flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(range(20))
    with foreign_consumer(flow, "classic", offsets={0: 7, 1: 3}):
        pass
    assert flow.members() == []
    assert flow.committed() == {0: 7, 1: 3}
    (report,) = run_available(spark_eos_session, flow)
    assert report.rows_skipped == 0
    # Even numbers are in partition 0, odd ones in partition 1.
    _exactly_once(flow, [*range(14, 20, 2), *range(7, 20, 2)])
    assert flow.committed() == {0: 10, 1: 10}
