"""The one place that commits a query's offsets outside its transactions, and reads them."""

from collections.abc import Callable
from typing import Final

from spark_eos._batch.plan import Partitions
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._client.error_codes import Code
from spark_eos._driver.assigned_partitions import by_member
from spark_eos._driver.membership import GroupMembership
from spark_eos._driver.open_transactions import ABORT_INTERVAL, OpenTransactions
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.offsets import all_group_offsets, commit_offsets, group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity
from spark_eos.errors import DeadlineExceededError, KafkaResponseError

Committed = dict[TopicPartition, CommittedOffset]
Codes = dict[TopicPartition, int]

# Seconds to wait for stable offsets before looking for open transactions again.
_SETTLING: Final = 5.0
_EPOCH_MOVED: Final = {Code.STALE_MEMBER_EPOCH, Code.FENCED_MEMBER_EPOCH}


class GroupRequests:
    """Reads and commits a group's offsets as a member, so that a late request is refused."""

    def __init__(
        self, connections: Connections, group_id: str, membership: GroupMembership
    ) -> None:
        self._connections = connections
        self._group_id = group_id
        self._membership = membership

    def commit(
        self,
        member: MemberIdentity,
        offsets: Committed,
        deadline: Deadline,
        on_lost: Callable[[], None] | None = None,
    ) -> Codes:
        """Commits offsets as a member; ``on_lost``: an answer is lost, so it may still be done."""
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

    def renew(
        self, found: Committed, deadline: Deadline, on_lost: Callable[[], None] | None = None
    ) -> set[int]:
        """Commits offsets again with their texts, which may be an operator's; returns refusals."""
        codes: Codes = {}
        for member, own in by_member(found, self._membership.identities()).items():
            codes |= self.commit(member, own, deadline, on_lost)
        return {code for code in codes.values() if code}

    def any_member(self) -> MemberIdentity | None:
        """One of the members, for offsets of partitions that none of them has."""
        return next(iter(self._membership.identities().values()), None)

    def all(self, deadline: Deadline) -> Committed:
        """All offsets of the group."""
        return all_group_offsets(self._connections, self._group_id, deadline)

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

    def stable(
        self, partitions: Partitions, settings: WriterSettings, transactions: OpenTransactions
    ) -> Committed:
        """Ends what is open, and reads once nobody can move the offsets: all older are fenced."""
        transactions.end()
        # The group's coordinator decides when the offsets are stable: it knows every open
        # transaction that holds offsets of the group, whichever broker coordinates that
        # transaction, and answers OffsetFetch with 88 while there is one. A transaction that could
        # not be ended above, the brokers end. One that was not even seen, because its broker is
        # away, either holds offsets and is waited for here, or holds none and gets none: its
        # producer has lost its members, and commits no transaction without offsets.
        both = settings.limits.group_timeout_ms + settings.transactions.timeout_ms
        deadline = Deadline(
            both / 1000 + ABORT_INTERVAL, "group_timeout_ms, transactions.timeout_ms"
        )
        next_look = Deadline(_SETTLING, "")

        def attempt() -> Committed:
            nonlocal next_look
            try:
                return self.fetch(partitions, settings.group_deadline())
            except KafkaResponseError as error:
                if error.code == Code.UNKNOWN_MEMBER_ID:
                    # The broker dropped the member. If a newer run holds it now, this raises.
                    self._membership.take_over_own(self._membership.topics, partitions)
                elif error.code == Code.UNSTABLE_OFFSET_COMMIT:
                    if next_look.expired:
                        transactions.warn_of_hidden(
                            "an open transaction that the query can't see holds the group's offsets"
                        )
                        # Another broker may coordinate the transaction by now, and list it.
                        transactions.end()
                        next_look = Deadline(_SETTLING, "")
                elif error.code not in _EPOCH_MOVED:
                    raise
                raise RetriableError(error.text, error.code) from error

        try:
            return deadline.attempts("reading the group's offsets", pause=0.01)(attempt)
        except DeadlineExceededError as error:
            last = error.__cause__
            if not isinstance(last, RetriableError) or last.code != Code.UNSTABLE_OFFSET_COMMIT:
                raise
            raise DeadlineExceededError(f"{error.text}. {self._hanging()}") from error

    def _hanging(self) -> str:
        """What an operator can do about offsets that stay unstable."""
        tool = f"kafka-transactions.sh --bootstrap-server {self._connections.bootstrap_servers}"
        where = "--topic __consumer_offsets"
        return (
            "A transaction that this query may not end holds offsets of group "
            f"{self._group_id!r}. If its coordinator has forgotten it (KIP-664), only an "
            f"administrator can end it: `{tool} find-hanging {where}` lists it with its partition "
            f"and start offset, `{tool} abort {where} --partition <partition> --start-offset "
            "<start offset>` ends it; then start again"
        )
