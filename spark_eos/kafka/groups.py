"""Typed calls to a consumer group's coordinator (KIP-848): who its members are."""

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeGroupsRequest

from spark_eos.acls import ResourceType, describe, read_group
from spark_eos.client.error_codes import Code, refusal
from spark_eos.client.printable import printable
from spark_eos.kafka.connection import CoordinatorType, Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.protocol import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest

JOIN_EPOCH = 0
LEAVE_GROUP_MEMBER_EPOCH = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2
REBALANCE_TIMEOUT_MS = 60_000
_TO_REPEAT = {
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
}

IdPartitions = frozenset[tuple[uuid.UUID, int]]


class Beat(NamedTuple):
    """What one member has to say: its ids, its epoch, and the partitions it owns, by topic id."""

    member_id: str
    epoch: int
    instance_id: str
    owned: IdPartitions | None


@dataclass(frozen=True)
class HeartbeatAnswer:
    """One heartbeat's outcome.

    Attributes:
        code: Kafka's error code; the rest counts only where it is 0.
        message: The broker's own words about the error, or "".
        member_epoch: The member's epoch from now on.
        interval: Seconds until the next heartbeat is due.
        assigned: The partitions assigned, by topic id; None if they did not change.
    """

    code: int
    message: str
    member_epoch: int
    interval: float
    assigned: IdPartitions | None


@dataclass(frozen=True)
class DescribedMember:
    """A live member of a group.

    ``epoch`` and ``assigned``, its (topic, partition) pairs, are None for one of the classic
    protocol.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int | None
    assigned: tuple[tuple[str, int], ...] | None

    def __str__(self) -> str:
        return (
            f"client id {self.client_id!r} on host {printable(self.client_host)} "
            f"(member id {self.member_id!r})"
        )


@dataclass(frozen=True)
class DescribedGroup:
    """A group as its coordinator describes it.

    Attributes:
        stable: Every member has the partitions that the latest target gives it.
        members: The live members, whichever protocol they speak.
        state: The broker's word for the group's state; None if there is no such group.
        epoch: The group epoch; None for a group of the classic protocol.
        assignment_epoch: The group epoch that the target assignment was made for; likewise.
    """

    stable: bool
    members: tuple[DescribedMember, ...]
    state: str | None
    epoch: int | None
    assignment_epoch: int | None


def heartbeat(
    wire: Wire,
    group_id: str,
    member_id: str,
    epoch: int,
    instance_id: str,
    deadline: Deadline,
    *,
    subscription: Iterable[str] | None = None,
    owned: IdPartitions | None = None,
) -> HeartbeatAnswer:
    """Sends one ConsumerGroupHeartbeat: join, beat, leave, as ``epoch`` says.

    Args:
        wire: The connections.
        group_id: The consumer group.
        member_id: A client-made id (KIP-1082).
        epoch: The member's epoch, or one of this module's ``*_EPOCH`` constants.
        instance_id: Group.instance.id of the static member.
        deadline: Over all attempts.
        subscription: Topic names. With it, the answer always tells the assignment.
        owned: Partitions owned, by topic id; needed with a subscription.
    """
    request = _heartbeat_request(group_id, Beat(member_id, epoch, instance_id, owned), subscription)
    return _heartbeat_answer(
        wire.ask_coordinator(
            CoordinatorType.GROUP, group_id, request, deadline, codes=lambda r: [r.error_code]
        )
    )


def heartbeats(
    wire: Wire,
    group_id: str,
    beats: Sequence[Beat],
    subscription: Collection[str],
    deadline: Deadline,
) -> list[HeartbeatAnswer]:
    """Sends a full heartbeat for each of many members, without waiting in between.

    Args:
        wire: The connections.
        group_id: The consumer group.
        beats: What each member has to say.
        subscription: Topic names, the same for all.
        deadline: Over all attempts.

    Returns:
        The answers, in the members' order; those that did not come at once are asked for again.
    """
    requests = [_heartbeat_request(group_id, beat, subscription) for beat in beats]
    node = wire.find_coordinator(CoordinatorType.GROUP, group_id, deadline)
    answers = wire.send_together(requests, deadline, node=node)
    return [
        _heartbeat_answer(answer)
        if answer is not None and answer.error_code not in _TO_REPEAT
        else heartbeat(
            wire,
            group_id,
            beat.member_id,
            beat.epoch,
            beat.instance_id,
            deadline,
            subscription=subscription,
            owned=beat.owned,
        )
        for beat, answer in zip(beats, answers, strict=True)
    ]


def _heartbeat_request(group_id: str, beat: Beat, subscription: Iterable[str] | None) -> Any:
    owned = beat.owned
    partitions = None
    if owned is not None:
        partitions = [
            ConsumerGroupHeartbeatRequest.TopicPartitions(
                topic_id=topic_id, partitions=sorted(p for t, p in owned if t == topic_id)
            )
            for topic_id in sorted({t for t, _ in owned})
        ]
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=beat.member_id,
        member_epoch=beat.epoch,
        instance_id=beat.instance_id,
        # A full request has all three; a leaving member sends none of them.
        rebalance_timeout_ms=-1 if subscription is None else REBALANCE_TIMEOUT_MS,
        subscribed_topic_names=None if subscription is None else sorted(subscription),
        topic_partitions=partitions,
    )


def _heartbeat_answer(answer: Any) -> HeartbeatAnswer:
    assigned = None
    if answer.assignment is not None:
        assigned = frozenset(
            (t.topic_id, p) for t in answer.assignment.topic_partitions for p in t.partitions
        )
    return HeartbeatAnswer(
        code=answer.error_code,
        message=printable(answer.error_message or ""),
        member_epoch=answer.member_epoch,
        interval=answer.heartbeat_interval_ms / 1000,
        assigned=assigned,
    )


def check_membership(wire: Wire, group_id: str, deadline: Deadline) -> None:
    """Finds out whether we may be a member of the group; changes nothing.

    Lets a member leave that never was: authorization is what the broker checks first.

    Raises:
        AuthorizationError: We may not.
    """
    nobody = str(uuid.uuid4())
    answer = heartbeat(wire, group_id, nobody, LEAVE_GROUP_MEMBER_EPOCH, nobody, deadline)
    if answer.code == Code.GROUP_AUTHORIZATION_FAILED:
        raise refusal(
            f"membership of group {group_id!r}", answer.code, [read_group(group_id)], wire.grantee
        )


def describe_group(wire: Wire, group_id: str, deadline: Deadline) -> DescribedGroup:
    """Describes a group, of whichever protocol; one that does not exist has no members.

    Raises:
        KafkaResponseError: The group can't be described, for lack of authorization say.
    """
    request = ConsumerGroupDescribeRequest(
        group_ids=[group_id], include_authorized_operations=False
    )
    group = _described(wire, group_id, request, deadline)
    if group is not None:
        return DescribedGroup(
            stable=group.group_state == "Stable" and group.assignment_epoch == group.group_epoch,
            members=tuple(
                DescribedMember(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.member_epoch,
                    tuple(
                        (t.topic_name, p)
                        for t in m.assignment.topic_partitions
                        for p in t.partitions
                    ),
                )
                for m in group.members
            ),
            state=group.group_state,
            epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
        )
    classic = _described(
        wire,
        group_id,
        DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False),
        deadline,
    )
    return DescribedGroup(
        stable=False,
        members=tuple(
            DescribedMember(
                m.member_id, m.group_instance_id, m.client_id, m.client_host, None, None
            )
            for m in (classic.members if classic is not None else ())
        ),
        # Brokers before Kafka 4.1 call a group that does not exist dead.
        state=None if classic is None or classic.group_state == "Dead" else classic.group_state,
        epoch=None,
        assignment_epoch=None,
    )


def _described(wire: Wire, group_id: str, request: Any, deadline: Deadline) -> Any:
    group = wire.ask_coordinator(
        CoordinatorType.GROUP,
        group_id,
        request,
        deadline,
        codes=lambda r: [g.error_code for g in r.groups],
    ).groups[0]
    if group.error_code == Code.GROUP_ID_NOT_FOUND:
        return None
    if group.error_code:
        what = f"describing group {group_id!r}"
        if group.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
            # The broker does not say which.
            what += f" ({wire.grantee.who} lacks Describe on a topic of its members)"
        needed = [describe(ResourceType.GROUP, group_id)]
        raise refusal(what, group.error_code, needed, wire.grantee)
    return group
