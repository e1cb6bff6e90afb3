"""Group members that join, send heartbeats and leave one at a time; without Spark."""

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from spark_eos._exactly_once.members import Member, after_heartbeat
from spark_eos._kafka import cluster, groups, heartbeats
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import (
    MemberIdentity,
    ProducerIdAndEpoch,
    fence_producer,
    producer_id_and_epoch,
    txn_offset_commit,
)
from support.flow import Flow
from support.members import deadline
from support.queries import until


class ManualMembers:
    """Static members of a flow's group, each at the epoch that its last heartbeat returned."""

    def __init__(self, flow: Flow, connections: Connections, group_id: str | None = None) -> None:
        self.connections = connections
        self.group_id = group_id or flow.group_id
        self.source = flow.source
        self.topics = cluster.topics(connections, [flow.source, flow.target], deadline())
        self.members: dict[str, Member] = {}
        self._transactional_id = f"members-{self.group_id}"

    @property
    def topic_ids(self) -> dict[str, uuid.UUID]:
        return {name: topic.topic_id for name, topic in self.topics.items()}

    def join(self, instance_id: str) -> None:
        self._heartbeat(Member(instance_id, str(uuid.uuid4()), heartbeats.JOIN_EPOCH))

    def heartbeat(self, *instance_ids: str) -> None:
        """Members report their partitions and learn their assignment."""
        for instance_id in instance_ids or list(self.members):
            self._heartbeat(self.members[instance_id])

    def _heartbeat(self, member: Member) -> None:
        answer = heartbeats.heartbeat(
            self.connections,
            self.group_id,
            member.identity,
            deadline(),
            subscription=[self.source],
            owned=member.owned,
        )
        assert answer.code == 0, answer
        self.members[member.instance_id] = after_heartbeat(
            replace(member, acknowledged=member.owned), answer.member_epoch, answer.assigned
        )

    def leave(self, instance_id: str) -> None:
        leave(self.connections, self.group_id, self.members.pop(instance_id).member_id, instance_id)

    def settle(self) -> None:
        """All members send heartbeats until the group is stable and all of them know it."""

        def stable() -> bool:
            self.heartbeat()
            group = groups.describe_group(self.connections, self.group_id, deadline())
            return group.state == "Stable" and group.epoch == group.assignment_epoch

        until(stable, lambda: f"group {self.group_id} to be stable")
        self.heartbeat()

    def owned(self, instance_id: str) -> set[int]:
        """The source partitions assigned to a member."""
        return {partition for _topic_id, partition in self.members[instance_id].owned}

    def codes(
        self, instance_id: str, epoch: int, partitions: Collection[int], topic: str | None = None
    ) -> dict[int, int]:
        """The broker's answer to a member's TxnOffsetCommit; nothing is committed.

        Each partition has its own request: if Kafka 4.4.0 refuses one partition for its epoch,
        it refuses the whole request.
        """
        member = MemberIdentity(self.members[instance_id].member_id, epoch, instance_id)
        found = {}
        with self._transaction() as producer:
            for partition in partitions:
                answer = self._txn_offset_commit(producer, member, topic or self.source, partition)
                found.update(answer)
        return {partition: code for (_, partition), code in found.items()}

    def _txn_offset_commit(
        self, producer: ProducerIdAndEpoch, member: MemberIdentity, topic: str, partition: int
    ) -> dict[TopicPartition, int]:
        answer = txn_offset_commit(
            self.connections,
            self.group_id,
            producer,
            member,
            {TopicPartition(topic, partition): 1},
            self.topic_ids,
            deadline(),
            lambda: None,
        )
        return dict(answer.codes)

    @contextmanager
    def _transaction(self) -> Iterator[ProducerIdAndEpoch]:
        # A producer without a client: it has its own id, and its request opens a transaction.
        fence_producer(self.connections, self._transactional_id, 60_000, deadline())
        yield producer_id_and_epoch(self.connections, self._transactional_id, deadline())
        fence_producer(self.connections, self._transactional_id, 60_000, deadline())


def leave(connections: Connections, group_id: str, member_id: str, instance_id: str) -> None:
    """Lets any member leave; any client that knows its ids can do this."""
    member = MemberIdentity(member_id, heartbeats.LEAVE_GROUP_MEMBER_EPOCH, instance_id)
    left = heartbeats.heartbeat(connections, group_id, member, deadline())
    assert left.code == 0, left


def drop_members(flow: Flow, *instance_ids: str) -> None:
    """Removes members, by default all, without their knowledge, like an expired session."""
    with flow.connections() as connections:
        for member in flow.members():
            name = member.instance_id or ""
            if not instance_ids or name in instance_ids:
                leave(connections, flow.group_id, member.member_id, name)
