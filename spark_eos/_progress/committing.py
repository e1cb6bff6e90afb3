"""The one place that commits a query's offsets outside its transactions."""

from collections.abc import Callable

from spark_eos._batch.plan import Partitions
from spark_eos._driver.assigned_partitions import by_member
from spark_eos._driver.membership import GroupMembership
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.offsets import commit_offsets, group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity

Committed = dict[TopicPartition, CommittedOffset]
Codes = dict[TopicPartition, int]


class OffsetCommits:
    """Reads and commits a group's offsets as a member, so that a late request is refused."""

    def __init__(
        self, connections: Connections, group_id: str, membership: GroupMembership
    ) -> None:
        self._connections = connections
        self._group_id = group_id
        self._membership = membership

    def send(
        self,
        member: MemberIdentity,
        offsets: Committed,
        deadline: Deadline,
        on_lost: Callable[[], None],
    ) -> Codes:
        """Commits offsets as a member; returns their error codes.

        ``on_lost``: called if an answer is lost, so that the request may still be carried out.
        """
        return commit_offsets(
            self._connections,
            self._group_id,
            member,
            {partition: one.offset for partition, one in offsets.items()},
            self._membership.topic_ids,
            deadline,
            metadata={partition: one.metadata for partition, one in offsets.items()},
            on_lost=on_lost,
        )

    def fetch(self, partitions: Partitions, deadline: Deadline, *, wait: bool = False) -> Committed:
        """The partitions' offsets now; raises, or waits, if a transaction holds some."""
        return group_offsets(
            self._connections,
            self._group_id,
            partitions,
            self._membership.topic_ids,
            deadline,
            member=self._membership.any_member(),
            wait=wait,
        )

    def renew(self, found: Committed, deadline: Deadline, on_lost: Callable[[], None]) -> set[int]:
        """Commits offsets again with their texts, which may be an operator's; returns refusals."""
        members = self._membership.identities()
        codes: Codes = {}
        for member, own in by_member(found, members).items():
            codes |= self.send(member, own, deadline, on_lost)
        return {code for code in codes.values() if code}

    def any_member(self) -> MemberIdentity | None:
        """One of the members, for offsets of partitions that none of them has."""
        return next(iter(self._membership.identities().values()), None)
