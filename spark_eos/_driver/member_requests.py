"""Requests of single group members: join, leave, heartbeat, and what a refusal means (KIP-848)."""

from collections.abc import Iterable, Mapping

from spark_eos import acls
from spark_eos._client.error_codes import Code, code_name
from spark_eos._driver.assigned_partitions import Member, after_heartbeat
from spark_eos._kafka import groups, heartbeats
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError

Topics = Mapping[str, TopicInfo]


class MemberRequests:
    """Speaks for a group's members to its coordinator."""

    def __init__(self, connections: Connections, group_id: str) -> None:
        self._connections = connections
        self._group_id = group_id

    def join(
        self, instance_id: str, member_id: str, topics: Topics, deadline: Deadline
    ) -> tuple[Member, float]:
        """Joins as a static member."""
        answer = heartbeats.heartbeat(
            self._connections,
            self._group_id,
            member_id,
            heartbeats.JOIN_EPOCH,
            instance_id,
            deadline,
            subscription=topics,
            owned=frozenset(),
        )
        if answer.code == Code.UNRELEASED_INSTANCE_ID:
            raise RetriableError(f"member {instance_id} is held by another run")
        self.check(answer, topics)
        member = Member(instance_id, member_id, answer.member_epoch)
        return after_heartbeat(member, answer.member_epoch, answer.assigned), answer.interval

    def leave(
        self, member_id: str, instance_id: str, epoch: int, topics: Topics, deadline: Deadline
    ) -> None:
        """Makes a member leave, so that whatever its member id still sends is refused."""
        answer = heartbeats.heartbeat(
            self._connections, self._group_id, member_id, epoch, instance_id, deadline
        )
        if answer.code in (Code.FENCED_INSTANCE_ID, Code.UNKNOWN_MEMBER_ID):
            raise RetriableError(f"member {instance_id} changed hands: {code_name(answer.code)}")
        self.check(answer, topics)

    def leave_for_good(self, members: Iterable[Member], deadline: Deadline) -> None:
        """Makes members leave (-1), whatever the broker answers."""
        for member in members:
            heartbeats.heartbeat(
                self._connections,
                self._group_id,
                member.member_id,
                heartbeats.LEAVE_GROUP_MEMBER_EPOCH,
                member.instance_id,
                deadline,
            )

    def heartbeat(
        self, members: Iterable[Member], topics: Topics, deadline: Deadline
    ) -> list[tuple[Member, heartbeats.HeartbeatAnswer]]:
        """Sends a heartbeat of each member; returns the members, each with its answer.

        Always sends the full state: the answer then has the assignment even if an earlier answer
        was lost, and the list of owned partitions confirms every change.
        """
        sent = list(members)
        states = [heartbeats.Heartbeat(m.member_id, m.epoch, m.instance_id, m.owned) for m in sent]
        answers = heartbeats.heartbeats(self._connections, self._group_id, states, topics, deadline)
        return list(zip(sent, answers, strict=True))

    def holder(self, instance_id: str, deadline: Deadline) -> groups.DescribedMember | None:
        """The live member that has the instance id now, if there is one."""
        group = groups.describe_group(self._connections, self._group_id, deadline)
        return next((m for m in group.members if m.instance_id == instance_id), None)

    def check(self, answer: heartbeats.HeartbeatAnswer, topics: Topics) -> None:
        """Raises the error of a heartbeat's answer, if it has one."""
        if answer.code:
            needed = [acls.read_group(self._group_id), *map(acls.read_topic, topics)]
            what = f"group {self._group_id!r}: {answer.message}".rstrip(": ")
            raise self._connections.refusal(what, answer.code, needed)
