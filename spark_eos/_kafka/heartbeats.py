"""Typed heartbeats of group members: joining, staying, leaving (KIP-848)."""

import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_eos._client.error_codes import Code
from spark_eos._client.printable import printable
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest
from spark_eos.acls import read_group

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


class Heartbeat(NamedTuple):
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


def heartbeat(
    connections: Connections,
    group_id: str,
    member_id: str,
    epoch: int,
    instance_id: str,
    deadline: Deadline,
    *,
    subscription: Iterable[str] | None = None,
    owned: IdPartitions | None = None,
) -> HeartbeatAnswer:
    """Sends one ConsumerGroupHeartbeat to join, stay in or leave the group."""
    request = _heartbeat_request(
        group_id, Heartbeat(member_id, epoch, instance_id, owned), subscription
    )
    return _heartbeat_answer(
        connections.ask_coordinator(
            CoordinatorType.GROUP, group_id, request, deadline, codes=lambda r: [r.error_code]
        )
    )


def heartbeats(
    connections: Connections,
    group_id: str,
    sent: Sequence[Heartbeat],
    subscription: Collection[str],
    deadline: Deadline,
) -> list[HeartbeatAnswer]:
    """Sends full heartbeats for several members without waiting in between.

    Heartbeats without an answer are repeated one by one.
    """
    requests = [_heartbeat_request(group_id, one, subscription) for one in sent]
    node = connections.find_coordinator(CoordinatorType.GROUP, group_id, deadline)
    answers = connections.send_together(requests, deadline, node=node)
    return [
        _heartbeat_answer(answer)
        if answer is not None and answer.error_code not in _TO_REPEAT
        else heartbeat(
            connections,
            group_id,
            one.member_id,
            one.epoch,
            one.instance_id,
            deadline,
            subscription=subscription,
            owned=one.owned,
        )
        for one, answer in zip(sent, answers, strict=True)
    ]


def _heartbeat_request(
    group_id: str, heartbeat: Heartbeat, subscription: Iterable[str] | None
) -> Any:
    owned = heartbeat.owned
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
        member_id=heartbeat.member_id,
        member_epoch=heartbeat.epoch,
        instance_id=heartbeat.instance_id,
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


def check_membership(connections: Connections, group_id: str, deadline: Deadline) -> None:
    """Checks whether this client may join the group; changes nothing.

    Sends a leave for a member that does not exist: the broker checks authorization first.
    """
    nobody = str(uuid.uuid4())
    answer = heartbeat(connections, group_id, nobody, LEAVE_GROUP_MEMBER_EPOCH, nobody, deadline)
    if answer.code == Code.GROUP_AUTHORIZATION_FAILED:
        raise connections.refusal(
            f"membership of group {group_id!r}", answer.code, [read_group(group_id)]
        )
