"""Typed heartbeats with which members join, stay in and leave a group (KIP-848)."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spark_eos._client.error_codes import Code, feature_upgrade
from spark_eos._client.printable import printable
from spark_eos._kafka.cluster import by_topic
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.protocol import ConsumerGroupHeartbeatRequest
from spark_eos._kafka.transactions import MemberIdentity
from spark_eos.acls import Operation, read_group
from spark_eos.errors import UnsupportedBrokerError

JOIN_EPOCH = 0
LEAVE_GROUP_MEMBER_EPOCH = -1
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2
REBALANCE_TIMEOUT_MS = 60_000

IdPartitions = frozenset[tuple[uuid.UUID, int]]


@dataclass(frozen=True)
class HeartbeatAnswer:
    """The coordinator's answer to a heartbeat; only code and message are valid if code isn't 0."""

    code: int
    message: str
    member_epoch: int
    # Seconds until the next heartbeat is due.
    interval: float
    # None if the assignment did not change.
    assigned: IdPartitions | None


def heartbeat_request(
    group_id: str,
    member: MemberIdentity,
    subscription: Iterable[str] | None = None,
    owned: IdPartitions | None = None,
) -> Any:
    # A full heartbeat has a subscription and the partitions that the member owns; a leaving member
    # sends neither.
    partitions = None
    if owned is not None:
        partitions = [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in by_topic(owned).items()
        ]
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rebalance_timeout_ms=-1 if subscription is None else REBALANCE_TIMEOUT_MS,
        subscribed_topic_names=None if subscription is None else sorted(subscription),
        topic_partitions=partitions,
    )


def heartbeat(
    connections: Connections,
    group_id: str,
    member: MemberIdentity,
    deadline: Deadline,
    *,
    subscription: Iterable[str] | None = None,
    owned: IdPartitions | None = None,
) -> HeartbeatAnswer:
    """Join, stay in or leave the group, depending on the member's epoch (see ``*_EPOCH``)."""
    request = heartbeat_request(group_id, member, subscription, owned)
    answer = connections.ask_coordinator(
        CoordinatorType.GROUP,
        group_id,
        request,
        deadline,
        codes=lambda r: [r.error_code],
        operation=Operation.READ,
    )
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
    """Check that this client may join the group, without changing anything."""
    # Make a nonexistent member leave: the broker checks authorization first.
    nobody = str(uuid.uuid4())
    member = MemberIdentity(nobody, LEAVE_GROUP_MEMBER_EPOCH, nobody)
    answer = heartbeat(connections, group_id, member, deadline)
    if answer.code == Code.GROUP_AUTHORIZATION_FAILED:
        raise connections.refusal(
            f"membership of group {group_id!r}", answer.code, [read_group(group_id)]
        )
    if answer.code == Code.UNSUPPORTED_VERSION:
        # The brokers know the request (or it would not have been sent), but have disabled it.
        servers = connections.bootstrap_servers
        raise UnsupportedBrokerError(
            f"the brokers at {servers} refuse ConsumerGroupHeartbeat (35 UNSUPPORTED_VERSION): the "
            "consumer group protocol (KIP-848) is switched off. Upgrade its feature "
            f"({feature_upgrade(connections.principal, 'group.version', 1)}), and if "
            "group.coordinator.rebalance.protocols is set on the brokers, add 'consumer'"
        )
