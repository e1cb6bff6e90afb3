"""The one place that commits a query's offsets outside its transactions."""

from collections.abc import Callable, Iterator, Mapping

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


def _nothing() -> None:
    pass


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
        offsets: Committed,
        members: Mapping[TopicPartition, MemberIdentity],
        deadline: Deadline,
        on_lost: Callable[[], None] = _nothing,
    ) -> Iterator[Codes]:
        """Commits each offset as the member that has its partition; yields each answer's codes."""
        for member, own in by_member(offsets, members).items():
            yield commit_offsets(
                self._connections,
                self._group_id,
                member,
                {partition: one.offset for partition, one in own.items()},
                self._membership.topic_ids,
                deadline,
                metadata={partition: one.metadata for partition, one in own.items()},
                on_lost=on_lost,
            )

    def send_as_any(self, offsets: Committed, deadline: Deadline) -> Iterator[Codes]:
        """Commits offsets of partitions that no member has, as one of the members, if any."""
        for member in [*self._membership.identities().values()][:1]:
            yield from self.send(offsets, dict.fromkeys(offsets, member), deadline)

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

    def renew(self, found: Committed, deadline: Deadline) -> set[int]:
        """Commits offsets again with their texts, which may be an operator's; returns refusals."""
        answers = self.send(found, self._membership.identities(), deadline)
        return {code for codes in answers for code in codes.values() if code}
