"""The group coordinator's possible answers to a run's members, and missing answers.

The proxy sets the error code; membership and offsets are those of the real broker.
"""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from spark_eos._client.error_codes import Code, code_name
from spark_eos._exactly_once import offsets
from spark_eos._exactly_once.members import GroupMembership
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest
from spark_eos.errors import DeadlineExceededError
from support import proxy_faults as faults
from support.flow import Flow
from support.members import started
from support.proxied_worker import answered, unstable
from support.proxy import KafkaProxy
from support.queries import until
from support.runs import running
from support.writing import take_over

# Membership ------------------------------------------------------------------------------------


def _of(flow: Flow, condition: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda m: m.group_id == flow.group_id and condition(m)


def _assert_members_are_its_own(flow: Flow, membership: GroupMembership) -> None:
    membership.check()
    member, partitions = membership.assignment()
    assert sorted(partitions) == [(flow.source, p) for p in range(flow.partitions)]
    assert [m.member_id for m in flow.members()] == [member.member_id]


def test_the_answer_to_a_join_at_the_start_and_at_a_takeover(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    joins = _of(proxied_flow, lambda m: m.member_epoch == 0)
    lost = proxy.on(ConsumerGroupHeartbeatRequest, faults.CutAfter(), where=joins)
    with started(proxied_flow) as membership:
        assert len(lost.hits) == 1
        _assert_members_are_its_own(proxied_flow, membership)
        lost = proxy.on(ConsumerGroupHeartbeatRequest, faults.CutAfter(), where=joins)
        # The member whose join got no answer is the run's own, not a newer run's.
        take_over(proxied_flow, membership)
        assert len(lost.hits) == 1
        _assert_members_are_its_own(proxied_flow, membership)


def test_the_answer_to_a_heartbeat_that_brought_the_assignment(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    def brings_partitions(answer: Any) -> bool:
        return answer.assignment is not None and bool(answer.assignment.topic_partitions)

    fault = faults.CutAfter(brings_partitions)
    heartbeats = _of(proxied_flow, lambda m: m.member_epoch >= 0)
    proxy.on(ConsumerGroupHeartbeatRequest, fault, times=None, where=heartbeats)
    with started(proxied_flow) as membership:
        assert fault.cuts == 1
        _assert_members_are_its_own(proxied_flow, membership)
    with running(proxied_flow) as runs:
        report = runs.batch(2, 1)
    assert (report.attempts, report.rows_written) == (1, 3)


# Offsets of the group --------------------------------------------------------------------------


def _group_code(code: int) -> faults.Rewrite:
    def change(_request: Any, answer: Any) -> None:
        answer.groups[0].error_code = code
        answer.groups[0].topics = []

    return faults.Rewrite(change)


def _of_a_member(request: Any) -> bool:
    """True for a member's request; before a run joins, it reads texts even of pending offsets."""
    return bool(request.groups[0].member_id)


@pytest.mark.parametrize(
    "fault",
    [
        faults.Rewrite(unstable),
        _group_code(Code.STALE_MEMBER_EPOCH),
        _group_code(Code.FENCED_MEMBER_EPOCH),
        _group_code(Code.UNKNOWN_MEMBER_ID),
    ],
    ids=[
        "88 UNSTABLE_OFFSET_COMMIT",
        "113 STALE_MEMBER_EPOCH",
        "110 FENCED_MEMBER_EPOCH",
        "25 UNKNOWN_MEMBER_ID",
    ],
)
def test_the_offsets_are_read_again(
    fault: faults.Fault, proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    refused = proxy.on(OffsetFetchRequest, fault, times=2, where=_of_a_member)
    with running(proxied_flow) as runs:
        report = runs.batch(2, 1)
        assert len(refused.hits) == 2
        assert (report.attempts, report.rows_written) == (1, 3)
        proxy.reset()
        assert proxied_flow.committed() == {0: 2, 1: 1}


def test_only_an_offset_that_is_held_back_is_a_transactions(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else the error's text contains, such as a group's name."""
    monkeypatch.setattr(offsets, "ABORT_INTERVAL", 0)
    proxy.on(
        OffsetFetchRequest,
        _group_code(Code.STALE_MEMBER_EPOCH),
        times=None,
        where=_of_a_member,
    )
    briefly: dict[str, Any] = {"group_timeout_ms": 2_000, "transaction_timeout_ms": 1_000}
    name = f"{proxied_flow.group_id} 88 "
    with (
        running(proxied_flow, group_id=name, max_transaction_ms=500, **briefly) as runs,
        pytest.raises(DeadlineExceededError, match=f"{name}.*113 STALE_MEMBER_EPOCH") as failure,
    ):
        runs.batch(2, 1)
    assert "find-hanging" not in str(failure.value)


@pytest.mark.parametrize(
    "code",
    [Code.STALE_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH],
    ids=code_name,
)
def test_ends_are_settled_by_members_that_were_taken_over(
    code: int, proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with running(proxied_flow) as runs:
        before = runs.batch(2, 1)
        joined = len(runs.run._membership._own_ids)
        refused = proxy.on(OffsetCommitRequest, answered(0, code))
        runs.batch(5, 3, without_output=1)
        assert len(refused.hits) == 1
        assert len(runs.run._membership._own_ids) == joined + 1
        assert before.partitions[0].end == 2
        assert proxied_flow.committed() == {0: 5, 1: 3}


def test_ends_are_settled_by_another_coordinator_after_error_16(
    proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with running(proxied_flow) as runs:
        runs.batch(1, 1)
        refused = proxy.on(OffsetCommitRequest, answered(0, Code.NOT_COORDINATOR))
        runs.batch(3, 2, without_output=1)
        assert len(refused.hits) == 1
        assert proxied_flow.committed() == {0: 3, 1: 2}


@pytest.mark.parametrize(
    "fault", [faults.CutBefore, faults.CutAfter], ids=lambda fault: fault.__name__
)
def test_an_end_that_is_settled_late_takes_no_offset_back(
    fault: type[faults.Fault], proxied_flow: Flow, proxy: KafkaProxy
) -> None:
    with running(proxied_flow) as runs:
        # Its first commit is of what it begins with.
        runs.batch(1, 1)
        lost = proxy.on(OffsetCommitRequest, fault())
        runs.batch(3, 2, without_output=1)
        fenced = runs.run._membership.assignment()
        runs.batch(6, 4)
        # Once is enough.
        assert runs.run._membership.assignment() == fenced
        answer = proxy.deliver(lost.await_hit())
        assert {p.error_code for t in answer.topics for p in t.partitions} == {
            Code.UNKNOWN_MEMBER_ID
        }
        assert proxied_flow.committed() == {0: 6, 1: 4}


def test_a_renewal_that_arrives_late_takes_no_offset_back(
    proxied_flow: Flow, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(proxied_flow) as runs:
        runs.batch(3, 2)
        lost = proxy.on(OffsetCommitRequest, faults.CutBefore())
        monkeypatch.setattr(offsets, "RENEWED_AFTER", 0.1)
        until(lambda: lost.hits, lambda: "a renewal")
        monkeypatch.setattr(offsets, "RENEWED_AFTER", 3600.0)
        runs.batch(6, 4)
        answer = proxy.deliver(lost.await_hit())
        codes = {p.error_code for t in answer.topics for p in t.partitions}
        assert codes == {Code.UNKNOWN_MEMBER_ID}
        runs.written_once(6, 4)
