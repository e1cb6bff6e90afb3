"""Typed requests that describe consumer groups (KIP-848) and refuse foreign members."""

from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client.error_codes import Code
from spark_eos._client.kafka_python import DescribeGroupsRequest
from spark_eos._client.printable import printable
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.protocol import ConsumerGroupDescribeRequest
from spark_eos._kafka.silent_brokers import SilentBrokers
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import ResourceType, describe
from spark_eos.errors import ForeignMemberError

INSTANCE_PREFIX = "spark-eos-"
RENEWAL_INSTANCE = f"{INSTANCE_PREFIX}renewal"
"""Instance id of the member that briefly joins to renew offsets while no query runs.

Queries ignore this member.
"""


@dataclass(frozen=True)
class DescribedMember:
    """A live member of a group; its epoch and partitions are None in the classic protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int | None = None
    assigned: tuple[TopicPartition, ...] | None = None

    def __str__(self) -> str:
        return (
            f"client id {self.client_id!r} on host {printable(self.client_host)} "
            f"(member id {self.member_id!r})"
        )


@dataclass(frozen=True)
class DescribedGroup:
    """The coordinator's description of a group, with the live members of either protocol."""

    members: tuple[DescribedMember, ...] = ()
    # None if the group does not exist.
    state: str | None = None
    # None in the classic protocol.
    epoch: int | None = None
    assignment_epoch: int | None = None


UNKNOWN: Final = DescribedGroup()
"""A group whose coordinator does not answer."""


def describe_if_known(
    connections: Connections, group_id: str, deadline: Deadline, silent: SilentBrokers
) -> DescribedGroup:
    """Describe a group, or return `UNKNOWN` if its coordinator has been skipped as silent."""
    node = connections.find_coordinator(CoordinatorType.GROUP, group_id, deadline)
    return UNKNOWN if node in silent else describe_group(connections, group_id, deadline)


def describe_group(connections: Connections, group_id: str, deadline: Deadline) -> DescribedGroup:
    """Describe a group of either protocol; a group that doesn't exist has no members."""
    request = ConsumerGroupDescribeRequest(
        group_ids=[group_id], include_authorized_operations=False
    )
    group = _described(connections, group_id, request, deadline)
    if group is not None:
        return DescribedGroup(
            tuple(
                DescribedMember(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.member_epoch,
                    tuple(
                        TopicPartition(t.topic_name, p)
                        for t in m.assignment.topic_partitions
                        for p in t.partitions
                    ),
                )
                for m in group.members
            ),
            group.group_state,
            group.group_epoch,
            group.assignment_epoch,
        )
    request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
    classic = _described(connections, group_id, request, deadline)
    # Brokers before Kafka 4.1 report a group that does not exist as Dead.
    if classic is None or classic.group_state == "Dead":
        return DescribedGroup()
    return DescribedGroup(
        tuple(
            DescribedMember(m.member_id, m.group_instance_id, m.client_id, m.client_host)
            for m in classic.members
        ),
        classic.group_state,
    )


def _described(connections: Connections, group_id: str, request: Any, deadline: Deadline) -> Any:
    group = connections.ask_coordinator(
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
            # The broker does not name the topic.
            what += f" ({connections.principal.who} lacks Describe on a topic of its members)"
        needed = [describe(ResourceType.GROUP, group_id)]
        raise connections.refusal(what, group.error_code, needed)
    return group


def own_group(connections: Connections, group_id: str, deadline: Deadline) -> DescribedGroup:
    """Describe a group whose live members must all belong to spark-eos."""
    group = describe_group(connections, group_id, deadline)
    for member in group.members:
        if member.epoch is None or not (member.instance_id or "").startswith(INSTANCE_PREFIX):
            raise ForeignMemberError(
                f"group {group_id!r} has a live member that does not belong to spark-eos: "
                f"{member}. If another client consumes with this group, records are lost: stop "
                "that consumer, or give the query a group_id of its own"
            )
    return group
