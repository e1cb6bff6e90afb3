"""Typed requests to group coordinators about members and heartbeats (KIP-848)."""

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
    """One member's heartbeat.

    Attributes:
        member_id: The member id.
        epoch: The member epoch, or one of this module's ``*_EPOCH`` constants.
        instance_id: The ``group.instance.id`` of the static member.
        owned: The partitions it owns, as (topic id, partition) pairs.
    """

    member_id: str
    epoch: int
    instance_id: str
    owned: IdPartitions | None


@dataclass(frozen=True)
class HeartbeatAnswer:
    """The coordinator's answer to one heartbeat.

    Attributes:
        code: Kafka's error code; the other attributes are valid only if it is 0.
        message: The broker's error message, or "".
        member_epoch: The new member epoch.
        interval: Seconds until the next heartbeat is due.
        assigned: The assigned (topic id, partition) pairs; None if they did not change.
    """

    code: int
    message: str
    member_epoch: int
    interval: float
    assigned: IdPartitions | None


@dataclass(frozen=True)
class DescribedMember:
    """A live member of a group.

    Attributes:
        member_id: The member id.
        instance_id: The ``group.instance.id``; None for a dynamic member.
        client_id: The ``client.id``.
        client_host: The member's host, as the broker sees it.
        epoch: The member epoch; None for a member of the classic protocol.
        assigned: The assigned (topic, partition) pairs; None for one of the classic protocol.
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
    """The coordinator's description of a group.

    Attributes:
        stable: Whether every member has the partitions of the latest target assignment.
        members: The live members, of either protocol.
        state: The broker's name for the group's state; None if the group does not exist.
        epoch: The group epoch; None for a group of the classic protocol.
        assignment_epoch: The group epoch of the target assignment; None for a classic group.
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
    """Sends one ConsumerGroupHeartbeat to join, stay in or leave the group.

    Args:
        wire: The connections.
        group_id: The consumer group.
        member_id: The member id, which the client chooses (KIP-1082).
        epoch: The member epoch, or one of this module's ``*_EPOCH`` constants.
        instance_id: The ``group.instance.id`` of the static member.
        deadline: Limits all attempts together.
        subscription: Topic names; if given, the answer always contains the assignment.
        owned: The partitions it owns, as (topic id, partition) pairs; required with a
            subscription.
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
    """Sends full heartbeats for several members without waiting in between.

    Heartbeats without an answer are repeated one by one.

    Args:
        wire: The connections.
        group_id: The consumer group.
        beats: One heartbeat per member.
        subscription: Topic names, the same for all members.
        deadline: Limits all attempts together.

    Returns:
        The answers in the order of the members.
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
        # A full heartbeat has all three fields; a leaving member sends none of them.
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
    """Checks whether this client may join the group; changes nothing.

    Sends a leave for a member that does not exist: the broker checks authorization first.

    Raises:
        AuthorizationError: This client may not join the group.
    """
    nobody = str(uuid.uuid4())
    answer = heartbeat(wire, group_id, nobody, LEAVE_GROUP_MEMBER_EPOCH, nobody, deadline)
    if answer.code == Code.GROUP_AUTHORIZATION_FAILED:
        raise refusal(
            f"membership of group {group_id!r}", answer.code, [read_group(group_id)], wire.grantee
        )


def describe_group(wire: Wire, group_id: str, deadline: Deadline) -> DescribedGroup:
    """Describes a group of either protocol; a group that does not exist has no members.

    Raises:
        KafkaResponseError: The group can't be described.
        AuthorizationError: The group, or a topic of its members, may not be described.
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
        # Brokers before Kafka 4.1 report a group that does not exist as Dead.
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
            # The broker does not say which topic.
            what += f" ({wire.grantee.who} lacks Describe on a topic of its members)"
        needed = [describe(ResourceType.GROUP, group_id)]
        raise refusal(what, group.error_code, needed, wire.grantee)
    return group
