"""The assigned-partition rule (KAFKA-20191) over assignment epochs (KIP-1251); pure."""

# The rule: a member may commit a partition only while
# assignment epoch <= client epoch <= broker epoch, where the assignment epoch is the member epoch
# at which this member got the partition. Kafka 4.4 checks it only if the client's epoch is older
# than the member's, so the driver checks it for every partition it plans.

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity

IdPartition = tuple[uuid.UUID, int]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Member:
    """One static member as its owner knows it; each partition with the epoch at which it came."""

    instance_id: str
    member_id: str
    epoch: int
    assignment_epochs: Mapping[IdPartition, int] = field(default_factory=dict)
    # As last sent to the broker.
    acknowledged: frozenset[IdPartition] = frozenset()

    @property
    def identity(self) -> MemberIdentity:
        """How requests name it."""
        return MemberIdentity(self.member_id, self.epoch, self.instance_id)

    @property
    def owned(self) -> frozenset[IdPartition]:
        """The partitions assigned now."""
        return frozenset(self.assignment_epochs)


def after_heartbeat(member: Member, epoch: int, assigned: Iterable[IdPartition] | None) -> Member:
    """The member after a heartbeat's answer."""
    if assigned is None:
        return replace(member, epoch=epoch)
    before = member.assignment_epochs
    return replace(
        member,
        epoch=epoch,
        assignment_epochs={partition: before.get(partition, epoch) for partition in assigned},
    )


def may_commit(member: Member, partition: IdPartition, client_epoch: int) -> bool:
    """Whether the member has held the partition since ``client_epoch``, or before."""
    assignment_epoch = member.assignment_epochs.get(partition)
    return assignment_epoch is not None and assignment_epoch <= client_epoch <= member.epoch


def owners(members: Iterable[Member]) -> dict[IdPartition, Member]:
    """The member that may commit each partition with its current epoch."""
    return {
        partition: member
        for member in members
        for partition in member.assignment_epochs
        if may_commit(member, partition, member.epoch)
    }


def by_member(
    values: Mapping[TopicPartition, Value], members: Mapping[TopicPartition, MemberIdentity]
) -> dict[MemberIdentity, dict[TopicPartition, Value]]:
    """Groups values by the member that may commit their partitions."""
    grouped: dict[MemberIdentity, dict[TopicPartition, Value]] = {}
    for partition, value in values.items():
        if partition in members:
            grouped.setdefault(members[partition], {})[partition] = value
    return grouped
