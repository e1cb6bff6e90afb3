"""The assigned-partition rule (KAFKA-20191) over a member's assignment epochs (KIP-1251); pure.

The rule: a member may commit a partition only while
``assignment epoch <= client epoch <= broker epoch``, where the assignment epoch is the member
epoch at which this member was given the partition. Kafka 4.4 checks it only for a client epoch
older than the member's, so the driver checks it for every partition it plans.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

IdPartition = tuple[uuid.UUID, int]


@dataclass(frozen=True)
class Member:
    """One static group member as its owner knows it; a value, replaced at every heartbeat.

    Attributes:
        instance_id: group.instance.id.
        member_id: the id made when it joined; never used again after a takeover.
        epoch: the member epoch of the last heartbeat's answer.
        assignment_epochs: the partitions assigned, each with the member epoch at which it came.
        acknowledged: the partitions that the broker was last told are owned.
    """

    instance_id: str
    member_id: str
    epoch: int
    assignment_epochs: Mapping[IdPartition, int] = field(default_factory=dict)
    acknowledged: frozenset[IdPartition] = frozenset()

    @property
    def owned(self) -> frozenset[IdPartition]:
        """The partitions assigned now."""
        return frozenset(self.assignment_epochs)


def after_heartbeat(member: Member, epoch: int, assigned: Iterable[IdPartition] | None) -> Member:
    """The member after a heartbeat's answer.

    Args:
        member: the member before.
        epoch: the member epoch answered.
        assigned: the partitions answered; None where the answer left them unchanged.
    """
    if assigned is None:
        return replace(member, epoch=epoch)
    before = member.assignment_epochs
    return replace(
        member,
        epoch=epoch,
        assignment_epochs={partition: before.get(partition, epoch) for partition in assigned},
    )


def may_commit(member: Member, partition: IdPartition, client_epoch: int) -> bool:
    """Whether the member may commit the partition with ``client_epoch``.

    False for a partition that is assigned to nobody or to another member, or that was revoked
    and given back since ``client_epoch``.
    """
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
