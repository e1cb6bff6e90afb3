"""The owner of a group's offsets: it fences, ends open transactions, reads, then commits."""

import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from spark_eos._checks.open_transactions import ABORT_INTERVAL, OpenTransactions
from spark_eos._client.error_codes import Code, Verdict, code_names, verdict
from spark_eos._exactly_once.checks import (
    check_no_suspects,
    check_not_moved_back,
    check_not_moved_on,
    check_same_pairs,
    check_same_staged,
    check_same_target,
    suspect_ranges,
)
from spark_eos._exactly_once.members import GroupMembership
from spark_eos._kafka import cluster
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.offset_metadata import Committed, CommittedOffset, KnownPartitions, has_text
from spark_eos._kafka.offsets import all_group_offsets, commit_offsets, group_offsets
from spark_eos._kafka.stored_text import Owner, StagedBatch, SuspectRange
from spark_eos._kafka.topic_cache import TopicCache, source_topics
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._kafka.transactions import MemberIdentity
from spark_eos._worker.plan import (
    BatchPlan,
    BatchRange,
    Partitions,
    batch_plan,
)
from spark_eos._worker.sources import Sources
from spark_eos._worker.task_report import JobOutcome
from spark_eos._worker.writer_settings import WriterSettings
from spark_eos.acls import query_acls
from spark_eos.errors import DeadlineExceededError, KafkaResponseError

Codes = dict[TopicPartition, int]

# Seconds to wait for stable offsets before looking for open transactions again.
_SETTLING: Final = 5.0
_EPOCH_MOVED: Final = {Code.STALE_MEMBER_EPOCH, Code.FENCED_MEMBER_EPOCH}


class GroupRequests:
    """Reads and commits a group's offsets as a member, so that brokers refuse late requests."""

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
        """Commit offsets as a member; return error codes. Call ``on_lost`` if an answer is lost."""
        return commit_offsets(
            self._connections,
            self._group_id,
            member,
            {partition: committed.offset for partition, committed in offsets.items()},
            self._membership.topic_ids,
            deadline,
            metadata={partition: committed.metadata for partition, committed in offsets.items()},
            on_lost=on_lost,
        )

    def renew(
        self, offsets: Committed, deadline: Deadline, on_lost: Callable[[], None] | None = None
    ) -> set[int]:
        """Commit offsets again with the same texts, whoever wrote them; return error codes."""
        member, assigned = self._membership.assignment()
        own = {partition: offset for partition, offset in offsets.items() if partition in assigned}
        codes = self.commit(member, own, deadline, on_lost)
        return {code for code in codes.values() if code}

    @property
    def member(self) -> MemberIdentity:
        """The run's member; it may also commit partitions that are assigned to no member."""
        return self._membership.assignment().member

    def all(self, deadline: Deadline) -> Committed:
        """Return all committed offsets of the group."""
        return all_group_offsets(self._connections, self._group_id, deadline)

    def fetch(self, partitions: Partitions, deadline: Deadline, *, wait: bool = False) -> Committed:
        """Return the committed offsets.

        If an open transaction holds some, raise an error or, with ``wait``, wait until it ends.
        """
        return group_offsets(
            self._connections,
            self._group_id,
            partitions,
            self._membership.topic_ids,
            deadline,
            member=self.member,
            wait=wait,
        )

    def stable(
        self, partitions: Partitions, settings: WriterSettings, transactions: OpenTransactions
    ) -> Committed:
        """End open transactions, then read the offsets once nobody else can move them."""
        transactions.end()
        # The group's coordinator decides when the offsets are stable. It knows every open
        # transaction that holds offsets of the group, whichever broker coordinates the transaction,
        # and answers OffsetFetch with error 88 while there is one. If a transaction could not be
        # ended above, the brokers end it when it times out. If a transaction's coordinator is down,
        # the transaction was not even listed. If the unlisted transaction holds offsets, this read
        # waits until the transaction ends. If it holds none, its producer can't add any, because
        # the members are fenced, and spark-eos's producers never commit without offsets.
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
                    # The broker has dropped the member. If a newer run holds the member now, this
                    # call raises.
                    self._membership.take_over_own(self._membership.topics, partitions)
                elif error.code == Code.UNSTABLE_OFFSET_COMMIT:
                    if next_look.expired:
                        transactions.warn_of_hidden(
                            "an open transaction that the query can't see holds the group's "
                            "offsets. If transactions.id_prefix has changed, end it with "
                            "spark-eos abort --prefix and the former prefix"
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
        """Return what an operator can do about offsets that stay unstable."""
        tool = partial(self._connections.principal.tool, "kafka-transactions.sh")
        where = ("--topic", "__consumer_offsets")
        partition, start = ("--partition", "PARTITION"), ("--start-offset", "OFFSET")
        return (
            "A transaction that this query may not end holds offsets of group "
            f"{self._group_id!r}. If transactions.id_prefix has changed, spark-eos abort "
            "--prefix with the former prefix ends it. If its coordinator has forgotten it "
            "(KIP-664), only an "
            f"administrator can end it: `{tool('find-hanging', *where)}` lists it with its "
            "partition and start offset, and "
            f"`{tool('abort', *where, *partition, *start)}` ends it; then start again"
        )


RENEWED_AFTER: Final = 3600.0
"""Seconds after which offsets that have not moved are committed again. Brokers let offsets expire
after ``offsets.retention.minutes``: seven days by default, and at least one minute."""


class GroupOffsets:
    """A group's committed offsets, as brokers last reported or accepted them.

    Only the methods of this class may change the fields.
    """

    def __init__(
        self,
        connections: Connections,
        settings: WriterSettings,
        membership: GroupMembership,
        transactions: OpenTransactions,
    ) -> None:
        self._connections = connections
        self._settings = settings
        self._membership = membership
        self._topics = TopicCache(connections, settings.limits)
        self._transactions = transactions
        self.requests = GroupRequests(connections, settings.group_id, membership)
        # True if brokers may accept offsets by topic name, so that this class itself must detect
        # recreated topics.
        self._by_name = False
        # True if the answer to a commit was lost, so that the commit may still be carried out.
        self._needs_reading = False
        self._all_committed_at: float | None = None
        # The partitions that the run needs, and their committed offsets.
        self.needed: frozenset[TopicPartition] = frozenset()
        self.committed: Positions = {}
        # Partitions whose offset was set by an operator (without a text), or by another client
        # (with its own text).
        self.set_by_operator: frozenset[TopicPartition] = frozenset()
        self.set_by_others: frozenset[TopicPartition] = frozenset()
        # The staged commits that a read may return, unless a newer run has written.
        self._expected: Mapping[TopicPartition, Collection[StagedBatch | None]] = {}
        # The facts stated in the offsets' metadata texts.
        self.known = KnownPartitions()
        # The source partitions that the group's partitions stand for, according to these texts.
        self.sources = Sources()

    # Fence and read ---------------------------------------------------------------------------

    def topics(
        self, partitions: Partitions, noted: Mapping[str, uuid.UUID] | None = None
    ) -> dict[str, TopicInfo]:
        """Return the partitions' topics; refuse topics recreated since the member joined."""
        known = self._membership.topic_ids if noted is None else noted
        names = {topic for topic, _ in partitions}
        return source_topics(self._topics, names, known, self._settings.group_id)

    @property
    def topic_ids(self) -> dict[str, uuid.UUID]:
        """The ids of the partitions' topics, by name."""
        return self._membership.topic_ids

    def refresh_metadata(self, stable: Committed | None = None) -> None:
        """Read the metadata texts of the group's offsets, without fencing any run."""
        # The offsets in `stable` take precedence, because the response to `requests.all` may be
        # stale: a new coordinator does not wait for its high watermark to catch up with its
        # predecessor's.
        offsets = self.requests.all(self._settings.group_deadline()) | (stable or {})
        read, before = KnownPartitions.of(offsets), self.known
        # Keep sources that no offset mentions yet.
        self.learn(replace(read, sources={**before.sources, **read.sources}, owner=before.owner))

    def join(
        self, topics: Mapping[str, TopicInfo], partitions: Partitions, *, by_name: bool
    ) -> None:
        """Fence all older runs, end their transactions, and read every offset of the group."""
        self._by_name = by_name
        self._membership.start(topics, partitions)
        self.refresh_metadata(self._read(partitions))

    def restrict_to(self, partitions: Partitions) -> None:
        """Forget the offsets of partitions that the run does not need."""
        self.needed = frozenset(partitions)
        self.committed = {p: at for p, at in self.committed.items() if p in partitions}

    def fence(self) -> None:
        """Fence every task that knows the run's current member, then read the offsets."""
        self._fence(self.needed)

    def refence_if_changed(self, partitions: Partitions) -> None:
        """Fence and read again if the group or the partitions have changed."""
        membership = self._membership
        if not (
            set(partitions) - membership.assignment().partitions
            or set(partitions) != self.needed
            or membership.changed
            or self._needs_reading
        ):
            return
        answer = self._fence(partitions)
        self._needs_reading = False
        # A newer run may have come and gone, and written records.
        self.refresh_metadata(answer)
        own = self.committed.keys() - self.set_by_operator - self.set_by_others
        self._know(set(partitions) & own)
        # An earlier run may have marked the new partitions, too.
        self.refuse_suspects()

    def refuse_suspects(self) -> None:
        """Refuse partitions that an earlier run has marked as possibly incomplete."""
        check_no_suspects(self._settings.group, self.sources, self.known, self.needed)

    def _fence(self, partitions: Partitions) -> Committed:
        marked = self.known.suspects
        self._membership.take_over_own(self.topics(partitions), partitions)
        answer = self._read(partitions)
        # `marked` has all of this run's marks, so a newer run, since ended, has set the new one.
        if self.known.suspects != marked:
            self.refuse_suspects()
        return answer

    def _read(self, partitions: Partitions) -> Committed:
        answer = self.requests.stable(partitions, self._settings, self._transactions)
        now, group = KnownPartitions.of(answer), self._settings.group
        committed = {partition: read.offset for partition, read in answer.items()}
        by_operator = frozenset(p for p, read in answer.items() if not has_text(read))
        if self._all_committed_at is not None:  # so this run has replaced all earlier texts
            own = {p: read for p, read in answer.items() if p in self.committed}
            check_same_target(group.id, self.known, KnownPartitions.of(own))
        check_same_pairs(group.id, self.known, now)
        check_same_staged(group.id, self._expected, now)
        check_not_moved_back(group.id, self.sources, self.committed, committed, partitions)
        check_not_moved_on(
            group, self.sources, self.committed, committed, by_operator | now.set_by_others
        )
        # Keep the ranges that another run has marked in the meantime.
        self._suspect(now.suspects)
        self.committed = committed
        self.set_by_operator = by_operator
        self.set_by_others = now.set_by_others - by_operator
        self.needed = frozenset(partitions)
        return answer

    def _know(self, partitions: Partitions) -> None:
        self.known = self.known.including(partitions, self._membership.topic_ids)

    def _suspect(self, suspects: Mapping[TopicPartition, SuspectRange]) -> None:
        marked = dict(self.known.suspects)
        for partition, suspect in suspects.items():
            before = marked.get(partition, suspect)
            marked[partition] = SuspectRange(
                min(before.first, suspect.first), max(before.after, suspect.after)
            )
        self.known = replace(self.known, suspects=marked)

    # Plan -------------------------------------------------------------------------------------

    def plan(self, batch: BatchRange) -> BatchPlan:
        """Return the plan of what tasks do with each partition of a batch."""
        assignment = self._membership.assignment()
        return batch_plan(batch, self.committed, assignment, self.topic_ids, self.known)

    def note_committed(self, outcome: JobOutcome) -> None:
        """Note the offsets that a job's tasks have committed."""
        reported = outcome.partitions.items()
        self.accept({p: o.next_offset for p, o in reported if o.next_offset is not None})

    # Commit -----------------------------------------------------------------------------------

    def commit(self, wanted: Positions, *, again: Collection[TopicPartition] = ()) -> None:
        """Commit the wanted offsets that are higher than the committed ones; lower no offset.

        Partitions in ``again`` are committed even if their offset stays the same.
        """
        left = set(again)

        def attempt() -> None:
            committed = self.committed
            pending = {
                partition: max(offset, committed.get(partition, offset))
                for partition, offset in wanted.items()
                if partition in left or committed.get(partition, -1) < offset
            }
            if not pending:
                return
            if self._by_name:
                # The brokers would accept these offsets for any topic that now has the name.
                self.topics(pending)
            member, assigned = self._membership.assignment()
            if unassigned := sorted(pending.keys() - assigned):
                self.fence()
                raise RetriableError(f"{unassigned[0]} is not assigned")
            texts = self.known.texts(pending)
            offsets = {p: CommittedOffset(offset, texts[p]) for p, offset in pending.items()}
            deadline = self._settings.group_deadline()
            codes = self.requests.commit(member, offsets, deadline, self._on_lost)
            done = {p for p, code in codes.items() if code == Code.NONE}
            self.accept({p: pending[p] for p in done})
            left.difference_update(done)
            if refused := {code for code in codes.values() if code}:
                self._refused(pending.keys(), refused)

        deadline = self._settings.group_deadline()
        deadline.attempts("committing offsets of the batch")(attempt)
        if self._needs_reading:
            # The unanswered request may still arrive, and would then undo what the next batch
            # commits. After fencing, the request's member no longer exists, and the broker refuses
            # the request.
            self.fence()
            self._needs_reading = False

    def _on_lost(self) -> None:
        self._needs_reading = True

    def _refused(self, partitions: Partitions, codes: set[int]) -> None:
        if codes == {Code.UNKNOWN_TOPIC_ID}:
            self.topics(partitions)
            raise RetriableError(code_names(codes))
        if verdict(codes) is Verdict.REJECTED:
            self.fence()
            raise RetriableError(code_names(codes))
        settings = self._settings
        raise self._connections.refusal(
            f"committing offsets of group {settings.group_id!r}",
            min(codes),
            query_acls(settings.group_id, settings.id_prefix, {t for t, _ in partitions}, []),
        )

    def commit_end(self, ends: Positions) -> None:
        """Commit a batch's end, together with all other offsets if they might expire."""
        if self.overdue:
            self._commit_all(ends)
        else:
            self.commit(ends)

    def initialize(self, initial: Positions) -> None:
        """Give partitions their first offsets; after that, a missing offset is a lost one."""
        # Commit before any text names the partitions as known. If the run dies in between, the next
        # run must not mistake their missing offsets for lost ones.
        self.commit(initial)
        self._know(self.needed)
        self._commit_all({})

    def _commit_all(self, wanted: Positions) -> None:
        """Commit all offsets, whether or not they moved, because each expires separately."""
        committed = self.committed
        self.commit({p: committed[p] for p in self.needed} | wanted, again=self.needed)
        self._all_committed_at = time.monotonic()

    @property
    def overdue(self) -> bool:
        """True if all offsets were last committed so long ago that they may expire."""
        since = self._all_committed_at
        return since is not None and time.monotonic() - since >= RENEWED_AFTER

    def renew(self, deadline: Deadline) -> None:
        """Commit all offsets again between batches; don't retry if that fails."""
        if self._may_renew(deadline):
            # Brokers may still be ending the last batch's transactions.
            current = self.requests.fetch(self.needed, deadline, wait=True)
            # Nobody else should commit between batches; if somebody did, don't undo it.
            committed = self.committed
            unmoved = {p: now for p, now in current.items() if now.offset == committed.get(p)}
            self.requests.renew(unmoved, deadline, self._on_lost)
        self._all_committed_at = time.monotonic()

    def _may_renew(self, deadline: Deadline) -> bool:
        """Return True if the partitions' topics are the ones that the member joined with."""
        if not self._by_name:
            return True
        ids = self._membership.topic_ids
        now = cluster.topics(self._connections, {topic for topic, _ in self.needed}, deadline)
        return all(name in now and now[name].topic_id == ids[name] for name in ids)

    # What the offsets mean --------------------------------------------------------------------

    def stage(self, partition: TopicPartition, staged: StagedBatch) -> None:
        """Commit the name of the staged files that count for a batch."""
        before = self.known.staged.get(partition)
        self.known = replace(self.known, staged={**self.known.staged, partition: staged})
        # Until the answer arrives, the commit may or may not have taken effect.
        self._expected = {**self._expected, partition: (before, staged)}
        self.commit({partition: self.committed[partition]}, again=[partition])
        self.expect_staged_commit(partition)

    def expect_staged_commit(self, partition: TopicPartition) -> None:
        """From now on, refuse to continue if another run has replaced the staged commit."""
        self._expected = {**self._expected, partition: (self.known.staged.get(partition),)}

    def accept(self, offsets: Positions) -> None:
        """Note offsets that were committed, or positions that an operator's offsets stand for."""
        self.committed = {**self.committed, **offsets}

    def set_owner(self, owner: Owner) -> None:
        """From now on, name this query as the owner in the texts of offsets."""
        self.known = replace(self.known, owner=owner)

    def learn(self, known: KnownPartitions) -> None:
        """Note the facts from the offsets' texts."""
        self.known = known
        self.sources = Sources({p: source.topic_partition for p, source in known.sources.items()})

    def mark(self, starts: Positions, partitions: Partitions) -> dict[str, SuspectRange]:
        """Mark and return ranges below the committed offsets whose rows may be missing."""
        seen = {p: self.committed.get(p, 0) for p in partitions}
        # With two tasks, a later commit may have lowered an offset. Forget the partitions'
        # offsets, so that the read doesn't mistake the lower offset for an operator's reset.
        self.committed = {p: at for p, at in self.committed.items() if p not in partitions}
        self.fence()
        suspects = suspect_ranges(starts, seen, self.committed)
        self._suspect(suspects)
        self.commit({p: self.committed[p] for p in suspects}, again=suspects)
        return {self.name(partition): suspects[partition] for partition in sorted(suspects)}

    # Messages ---------------------------------------------------------------------------------

    def name(self, partition: TopicPartition) -> str:
        """Return a partition's name for messages."""
        return self.sources.name(partition)

    def command(self, partitions: Partitions) -> str:
        """Return the command with which an operator sets the offsets of partitions."""
        wanted = dict.fromkeys(sorted(partitions), "N")
        return self.sources.how_to_set(self._settings.group, wanted)
