"""The group's members and the workers' producers, on the real broker without Spark."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, NoReturn

import pytest
from kafka.protocol.producer import EndTxnRequest

from spark_eos import errors
from spark_eos._client.error_codes import Code
from spark_eos._delivery.renewal import renew_unattended
from spark_eos._exactly_once import members as membership
from spark_eos._kafka import cluster, heartbeats
from spark_eos._kafka.connection import CoordinatorType
from spark_eos._kafka.groups import DescribedGroup, own_group
from spark_eos._kafka.open_transactions import open_transactions
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import id_pattern
from spark_eos._kafka.transactions import fence_producer
from spark_eos._worker.producer import TransactionalProducer
from support.flow import Flow
from support.foreign_consumer import foreign_consumer
from support.manual_members import ManualMembers
from support.members import deadline, started, writer_settings
from support.proxy import KafkaProxy
from support.proxy_faults import Rewrite
from support.queries import until
from support.runs import running


def test_members_of_a_version_that_had_several_leave(flow: Flow) -> None:
    with flow.connections() as connections:
        several = ManualMembers(flow, connections)
        for number in range(4):
            several.join(f"spark-eos-{number}")
        several.settle()
        with started(flow) as group:
            member, partitions = group.assignment()
            assert [m.instance_id for m in flow.members()] == [member.instance_id]
            assert partitions == {TopicPartition(flow.source, p) for p in (0, 1)}


@contextmanager
def _after_the_first_look(
    monkeypatch: pytest.MonkeyPatch, join: Callable[[], object]
) -> Iterator[None]:
    """Lets somebody join the group after a start has seen who its members are."""
    todo = [join]

    def seen_before(*args: Any) -> DescribedGroup:
        found = own_group(*args)
        if todo:
            todo.pop()()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(membership, "own_group", seen_before)
        yield


def test_a_foreign_consumer_that_joins_during_a_start_is_named(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        # It takes no partition that the query needs.
        consumer = foreign_consumer(flow, topic=flow.target)
        with (
            _after_the_first_look(monkeypatch, lambda: stack.enter_context(consumer)),
            pytest.raises(errors.ForeignMemberError, match="'somebody-else' on host"),
            started(flow),
        ):
            pass


def test_a_start_that_is_taken_over_does_not_fight_back(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer: list[membership.GroupMembership] = []
    looks = 0

    def look(*args: Any) -> DescribedGroup:
        nonlocal looks
        looks += 1
        if looks == 2:  # The older start has joined, and looks once more.
            newer.append(stack.enter_context(started(flow)))
        return own_group(*args)

    monkeypatch.setattr(membership, "own_group", look)
    with ExitStack() as stack:
        with pytest.raises(errors.FencedByNewerRunError), started(flow):
            pass
        newer[0].check()
        assert newer[0].newer_run() is None
        (member,) = flow.members()
        assert member.member_id == newer[0].assignment().member.member_id


def test_another_runs_member_that_joins_during_a_start_leaves(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flow.connections() as connections:
        several, began = ManualMembers(flow, connections), time.monotonic()
        with (
            _after_the_first_look(monkeypatch, lambda: several.join("spark-eos-1")),
            started(flow) as group,
        ):
            assert [m.instance_id for m in flow.members()] == ["spark-eos-0"]
            assert len(group.assignment().partitions) == flow.partitions
    # The start does not wait until the member's session has expired.
    assert time.monotonic() - began < 20


def test_a_renewal_that_meets_a_run_leaves_the_group_to_it(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(flow) as runs:
        runs.batch(3, 3)
    with flow.connections() as connections, ExitStack() as stack:
        with _after_the_first_look(monkeypatch, lambda: stack.enter_context(started(flow))):
            renew_unattended(connections, flow.group_id, deadline())
        # Not even a member that has left for now: it would keep its share of the partitions.
        assert [m.instance_id for m in flow.members()] == ["spark-eos-0"]


def test_closed_connections_stay_closed(flow: Flow) -> None:
    with flow.connections() as connections:
        assert connections.brokers(deadline()) == [1]
    with pytest.raises(errors.SparkEosError, match="closed"):
        connections.brokers(deadline())


def test_the_older_of_two_coordinators_does_not_fight_back(flow: Flow) -> None:
    with started(flow) as older, started(flow) as newer:
        topics = {flow.source: cluster.TopicInfo(flow.source, newer.topic_ids[flow.source], 2)}
        with pytest.raises(errors.FencedByNewerRunError, match="spark-eos-"):
            older.take_over_own(topics, [TopicPartition(flow.source, 0)])
        newer.check()
        (member,) = flow.members()
        assert member.member_id == newer.assignment().member.member_id


def test_a_member_that_leaves_in_a_takeover_is_looked_up_again(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flow.connections() as connections:
        with started(flow):
            found = [own_group(connections, flow.group_id, deadline())]
        asked = 0

        def late(*args: Any) -> DescribedGroup:
            nonlocal asked
            asked += 1
            return found.pop() if found else own_group(*args)

        monkeypatch.setattr(membership, "own_group", late)
        with started(flow) as group:
            assert len(group.assignment().partitions) == flow.partitions
            assert [m.instance_id for m in flow.members()] == ["spark-eos-0"]
    # The member that had gone, and then none.
    assert asked >= 2


def test_a_coordinator_that_has_left_does_not_go_on(flow: Flow) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    heartbeat = f"spark-eos-heartbeat-{flow.group_id}"
    with started(flow) as group:
        assert heartbeat in names()
        group.leave()
        with pytest.raises(errors.SparkEosError, match="has left group"):
            group.check()
        until(lambda: heartbeat not in names(), lambda: f"the heartbeat thread to end: {names()}")


def _empty_transaction(producer: TransactionalProducer) -> int:
    producer.begin(lambda: None)
    producer.commit(deadline())
    return producer.identity.epoch


@pytest.mark.slow
def test_a_producer_outlives_clean_commits_only(flow_alone: Flow) -> None:
    with closing(TransactionalProducer(writer_settings(flow_alone))) as producer:
        first = _empty_transaction(producer)
        assert [_empty_transaction(producer) for _ in range(3)] == [first] * 3
        # A lost connection: a request of the last transaction may still be under way.
        flow_alone.broker.kill()
        flow_alone.broker.start()
        until(lambda: not producer.clean(), lambda: "librdkafka to notice")
        assert _empty_transaction(producer) > first


def test_a_producer_that_was_fenced_while_idle_is_replaced(flow: Flow) -> None:
    with (
        closing(TransactionalProducer(writer_settings(flow))) as producer,
        flow.connections() as connections,
    ):
        first = _empty_transaction(producer)
        transactional_id = producer.identity.transactional_id
        fence_producer(connections, transactional_id, 60_000, deadline())
        producer.drop()
        assert _empty_transaction(producer) > first + 1
        assert producer.identity.transactional_id == transactional_id


def test_the_epoch_is_the_producers_own(flow: Flow) -> None:
    # DescribeTransactions tells what the broker holds; a transaction shows that it is the same.
    with (
        closing(TransactionalProducer(writer_settings(flow))) as producer,
        flow.connections() as connections,
    ):
        producer.begin(lambda: None)
        pattern = id_pattern("spark-eos", flow.group_id)
        assert open_transactions(connections, pattern, deadline()) == []
        identity = producer.identity
        request = EndTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=False,
            max_version=4,
        )
        answer = connections.ask_coordinator(
            CoordinatorType.TRANSACTION,
            identity.transactional_id,
            request,
            deadline(),
            codes=lambda r: [r.error_code],
        )
        # INVALID_TXN_STATE, "nothing to end": an alien id or epoch would be refused as such.
        assert answer.error_code == Code.INVALID_TXN_STATE


def _beats_answer(proxy: KafkaProxy, code: int) -> None:
    def change(_request: Any, answer: Any) -> None:
        answer.error_code = code

    proxy.on(ConsumerGroupHeartbeatRequest, Rewrite(change), times=None)


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        (30, errors.AuthorizationError, "30 GROUP_AUTHORIZATION_FAILED"),
        (42, errors.KafkaResponseError, "42 INVALID_REQUEST"),
    ],
)
def test_a_refused_heartbeat_ends_the_run_with_its_reason(
    proxied_flow: Flow, proxy: KafkaProxy, code: int, expected: type[Exception], text: str
) -> None:
    with running(proxied_flow) as runs:
        runs.batch(5, 5)
        runs.hurry_heartbeats()
        _beats_answer(proxy, code)
        until(lambda: runs.refused, lambda: "a heartbeat")
        with pytest.raises(expected, match=text):
            runs.batch(10, 10)
        proxy.reset()
        runs.written_once(5, 5)


def test_a_refused_heartbeat_that_is_accepted_again_ends_nothing(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with running(proxied_flow) as runs:
        runs.batch(5, 5)
        runs.hurry_heartbeats()
        _beats_answer(proxy, 30)
        until(lambda: runs.refused, lambda: "a heartbeat")
        proxy.reset()
        until(lambda: not runs.refused, lambda: "a heartbeat that is accepted")
        runs.batch(10, 10)
        runs.written_once(10, 10)


def test_failing_heartbeats_are_quiet_until_the_session_ends(
    proxied_flow: Flow,
    proxy: KafkaProxy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def warnings() -> list[str]:
        records = [r for r in caplog.records if r.name == "spark_eos._exactly_once.members"]
        return [r.getMessage() for r in records if r.levelno >= logging.WARNING]

    def failed() -> bool:
        return "UNKNOWN_SERVER_ERROR" in caplog.text

    with caplog.at_level(logging.INFO, "spark_eos"), running(proxied_flow) as runs:
        runs.batch(5, 5)
        runs.hurry_heartbeats()
        _beats_answer(proxy, -1)
        until(failed, lambda: "a heartbeat that fails")
        assert warnings() == []
        monkeypatch.setattr(membership, "_SESSION_TIMEOUT", 0.0)
        until(warnings, lambda: "a warning")
        proxy.reset()
        until(lambda: "are answered again" in caplog.text, lambda: "heartbeats that go on")
        runs.batch(10, 10)
        runs.written_once(10, 10)
    (warning,) = warnings()
    assert "session timeout" in warning


def test_client_library_errors_hide_no_error_and_keep_no_run(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("the token endpoint is away")

    with started(flow) as members:
        monkeypatch.setattr(heartbeats, "heartbeat", refuse)
        # A batch has failed, and its error is to be raised.
        assert members.newer_run() is None
        members.leave()
        assert members.ended
