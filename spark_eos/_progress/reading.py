"""Reads a group's offsets once no open transaction can move them any more."""

from typing import Final

from spark_eos._batch.plan import Partitions
from spark_eos._batch.writer_settings import WriterSettings
from spark_eos._client.error_codes import Code
from spark_eos._driver.membership import GroupMembership
from spark_eos._driver.open_transactions import ABORT_INTERVAL, OpenTransactions
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.offset_metadata import KnownPartitions
from spark_eos._kafka.offsets import all_group_offsets
from spark_eos._progress.committing import Committed, OffsetCommits
from spark_eos.errors import DeadlineExceededError, KafkaResponseError

# Seconds to wait for stable offsets before looking for open transactions again.
_SETTLING: Final = 5.0
_EPOCH_MOVED: Final = {Code.STALE_MEMBER_EPOCH, Code.FENCED_MEMBER_EPOCH}


class OffsetReader:
    """Ends the query's open transactions, then reads. Everyone older must be fenced by then."""

    def __init__(
        self,
        connections: Connections,
        settings: WriterSettings,
        membership: GroupMembership,
        transactions: OpenTransactions,
        commits: OffsetCommits,
    ) -> None:
        self._connections = connections
        self._settings = settings
        self._membership = membership
        self._transactions = transactions
        self._commits = commits
        self._next_look = Deadline(_SETTLING, "")

    def stable(self, partitions: Partitions) -> Committed:
        """The partitions' offsets, once nobody can move them."""
        self._transactions.end()
        # The group's coordinator decides when the offsets are stable: it knows every open
        # transaction that holds offsets of the group, whichever broker coordinates that
        # transaction, and answers OffsetFetch with 88 while there is one. A transaction that could
        # not be ended above, the brokers end. One that was not even seen, because its broker is
        # away, either holds offsets and is waited for here, or holds none and gets none: its
        # producer has lost its members, and commits no transaction without offsets.
        both = self._settings.limits.group_timeout_ms + self._settings.transactions.timeout_ms
        deadline = Deadline(
            both / 1000 + ABORT_INTERVAL, "group_timeout_ms, transactions.timeout_ms"
        )
        self._next_look = Deadline(_SETTLING, "")

        def attempt() -> Committed:
            try:
                return self._commits.fetch(partitions, self._settings.group_deadline())
            except KafkaResponseError as error:
                if error.code == Code.UNKNOWN_MEMBER_ID:
                    # The broker dropped the member. If a newer run holds it now, this raises.
                    self._membership.take_over_own(self._membership.topics, partitions)
                elif error.code == Code.UNSTABLE_OFFSET_COMMIT:
                    self._look_again_if_overdue()
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
            f"{self._settings.group_id!r}. If its coordinator has forgotten it (KIP-664), only an "
            f"administrator can end it: `{tool} find-hanging {where}` lists it with its partition "
            f"and start offset, `{tool} abort {where} --partition <partition> --start-offset "
            "<start offset>` ends it; then start again"
        )

    def _look_again_if_overdue(self) -> None:
        if not self._next_look.expired:
            return
        self._transactions.warn_of_hidden(
            "an open transaction that the query can't see holds the group's offsets"
        )
        # Another broker may coordinate the transaction by now, and list it.
        self._transactions.end()
        self._next_look = Deadline(_SETTLING, "")

    def all(self) -> Committed:
        """All offsets of the group."""
        return all_group_offsets(
            self._connections, self._settings.group_id, self._settings.group_deadline()
        )

    def known(self) -> KnownPartitions:
        """What the metadata of all offsets of the group tells."""
        return KnownPartitions.of(self.all())
