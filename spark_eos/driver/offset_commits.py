"""Offsets that the driver commits itself, outside of transactions."""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from spark_eos.acls import query_acls
from spark_eos.batch.plan import BatchRange, Positions
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.error_codes import Code, Verdict, code_names, refusal, verdict
from spark_eos.driver.assigned_partitions import by_member
from spark_eos.driver.checkpoint_note import Note
from spark_eos.driver.committed_offsets import CommittedOffsets
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.driver.membership import GroupMembership
from spark_eos.driver.missing_offsets import Evidence, initial_offsets
from spark_eos.kafka import cluster
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.list_offsets import start_offsets
from spark_eos.kafka.offset_metadata import Doubt, StagedBatch
from spark_eos.kafka.offsets import commit_offsets, group_offsets
from spark_eos.kafka.transactions import MemberIdentity

logger = logging.getLogger(__name__)


class OffsetCommits:
    """Commits offsets as the group's members, and keeps `CommittedOffsets` up to date.

    Args:
        wire: Connections.
        settings: Writer settings.
        membership: The group's members.
        offsets: The group's committed offsets.
        group_timeout_ms: Time limit of each call to the group, in milliseconds.
        first_offsets: Finds the first offsets of partitions that are new; by default in the logs
            of these partitions themselves.

    Attributes:
        by_name: Whether brokers may accept offsets by topic name instead of topic id, so that a
            recreated topic has to be noticed here.
    """

    def __init__(
        self,
        wire: Wire,
        settings: WriterSettings,
        membership: GroupMembership,
        offsets: CommittedOffsets,
        group_timeout_ms: int,
        first_offsets: Callable[[Collection[tuple[str, int]]], Positions] | None = None,
    ) -> None:
        self._firsts = first_offsets or self._first_offsets
        self._wire = wire
        self._settings = settings
        self._membership = membership
        self._offsets = offsets
        self._group_timeout_ms = group_timeout_ms
        self.by_name = False
        # Partitions to commit again even if their offsets have not moved.
        self._to_renew: set[tuple[str, int]] = set()

    def anchor(self, batch: BatchRange, note: Note, *, begun_now: bool) -> None:
        """Gives each of the batch's partitions a committed offset before anything is written.

        From then on, a partition without an offset is one whose offset was lost. Offsets that
        exist are committed again, since each offset expires by its own age.

        Args:
            batch: The batch.
            note: Which group last wrote from the checkpoint, and its topics.
            begun_now: Whether no earlier run can have written any row of the batch.

        Raises:
            OffsetsLostError: An offset was lost, and nothing proves what it was.
        """
        committed = self._offsets.committed
        missing = batch.ends.keys() - committed.keys()
        firsts = self._firsts(missing - batch.starts.keys())
        ids = self._membership.topic_ids
        places = self._offsets.places
        evidence = Evidence(
            self._settings.group_id, self._offsets.known, ids, note, begun_now, places
        )
        initial = initial_offsets(batch, committed, firsts, evidence)
        for (topic, partition), offset in initial.items():
            if batch.batch_id > 0 and (topic, partition) in batch.starts:
                logger.warning(
                    "group %s: the offset of %s was lost (expired or deleted) and is restored "
                    "from the checkpoint: %d. If the query may be stopped for this long, raise "
                    "the brokers' offsets.retention.minutes",
                    self._settings.group_id,
                    places.name((topic, partition)),
                    offset,
                )
        # Commit these before any metadata names their partitions as known: if the run dies in
        # between, the next one must not take partitions without an offset for lost ones.
        self._commit(batch, initial)
        self._offsets.known = self._offsets.known.including(batch.ends, ids)
        self.renew_with_next_commit(batch)
        self._commit(batch, {place: self._offsets.committed[place] for place in batch.ends})

    def _first_offsets(self, places: Collection[tuple[str, int]]) -> Positions:
        topics = {topic for topic, _partition in places}
        return start_offsets(self._wire, topics, group_deadline(self._group_timeout_ms))

    def renew_with_next_commit(self, batch: BatchRange) -> None:
        """Makes the driver's next commit include offsets of the batch that have not moved."""
        self._to_renew |= batch.ends.keys()

    def renew(self, batch: BatchRange, deadline: Deadline) -> None:
        """Commits all offsets of a batch's partitions again between batches, so none expires.

        Nothing is repeated here: whatever fails is left to the next batch.

        Args:
            batch: The last batch, which is finished.
            deadline: Time limit of all calls.

        Raises:
            SparkEosError: A call failed or was not answered in time.
        """
        if self.by_name:
            ids = self._membership.topic_ids
            now = cluster.topics(self._wire, {topic for topic, _ in batch.ends}, deadline)
            if any(name not in now or now[name].topic_id != ids[name] for name in ids):
                return
        # Nobody else should commit between batches; if somebody did, don't undo it.
        found = group_offsets(
            self._wire,
            self._settings.group_id,
            batch.ends,
            self._membership.topic_ids,
            deadline,
            member=self._membership.any_member(),
            wait=False,
        )
        committed = self._offsets.committed
        unmoved = {
            place: committed[place]
            for place in batch.ends.keys() & found.keys()
            if found[place].offset == committed.get(place)
        }
        for member, own in by_member(unmoved, self._membership.identities()).items():
            self._commit_as(member, own, deadline)

    def mark(self, batch: BatchRange, places: Collection[tuple[str, int]]) -> dict[str, Doubt]:
        """Marks offsets of the batch that may not be written although later ones are.

        For rows that came out of order, or in two tasks: the group's offset may be past some that
        were not written. The mark is part of the committed offset until an operator resets it.

        Args:
            batch: The batch.
            places: (topic, partition) pairs with such rows.

        Returns:
            The offsets in doubt, by the partition's name. Partitions of which this batch committed
            nothing are left out.
        """
        # With two tasks, the later commit may have moved the offset back behind the earlier one.
        seen = {place: self._offsets.committed.pop(place, 0) for place in places}
        self._offsets.take_over(batch)
        committed, known = self._offsets.committed, self._offsets.known
        after = {place: max(offset, committed.get(place, 0)) for place, offset in seen.items()}
        doubts = {
            place: Doubt(batch.starts.get(place, 0), after[place])
            for place in places
            if after[place] > batch.starts.get(place, 0)
        }
        self._offsets.known = replace(known, doubts={**known.doubts, **doubts})
        self._to_renew |= doubts.keys()
        self._commit(batch, {place: committed[place] for place in doubts})
        return {self._offsets.places.name(place): doubts[place] for place in sorted(doubts)}

    def commit_ledger(
        self, batch: BatchRange, ledger: tuple[str, int], staged: StagedBatch
    ) -> None:
        """Makes a staged copy the one that counts.

        Args:
            batch: The batch.
            ledger: The (topic, partition) whose offset is the ledger.
            staged: The copy.

        Raises:
            FencedByNewerRunError: A newer run holds the members, or has staged a batch.
        """
        offsets = self._offsets
        before = offsets.known.staged.get(ledger)
        offsets.known = replace(offsets.known, staged={**offsets.known.staged, ledger: staged})
        offsets.ledgers[ledger] = (before, staged)
        self._to_renew.add(ledger)
        self._commit(batch, {ledger: offsets.committed[ledger]})
        offsets.ledgers[ledger] = (staged,)

    def settle(self, batch: BatchRange) -> None:
        """Commits the ends of offset ranges whose last records produced no output.

        Args:
            batch: The batch, all of whose rows are written.
        """
        self._commit(batch, batch.ends)

    def _commit(self, batch: BatchRange, wanted: Positions) -> None:
        """Commits offsets that are not committed yet or need renewal; never moves one back."""

        def attempt() -> None:
            committed = self._offsets.committed
            pending = {
                place: max(offset, committed.get(place, offset))
                for place, offset in wanted.items()
                if place in self._to_renew or committed.get(place, -1) < offset
            }
            if pending and self.by_name:
                # The brokers would accept these for any topic that now has the name.
                self._offsets.source_topics(pending)
            members = self._membership.identities()
            if unassigned := sorted(pending.keys() - members.keys()):
                self._offsets.take_over(batch)
                topic, partition = unassigned[0]
                raise RetriableError(f"{topic}-{partition} is not assigned")
            for member, own in by_member(pending, members).items():
                deadline = group_deadline(self._group_timeout_ms)
                if refused := self._commit_as(member, own, deadline):
                    self._handle_refusal(batch, own, refused)

        deadline = group_deadline(self._group_timeout_ms)
        deadline.attempts("committing offsets of the batch")(attempt)
        if self._offsets.commit_in_doubt:
            # A request that arrives late would undo what the next batch commits. After a takeover
            # its member no longer exists, and the broker refuses it.
            self._offsets.take_over(batch)
            self._offsets.commit_in_doubt = False

    def _on_lost_answer(self) -> None:
        self._offsets.commit_in_doubt = True

    def _commit_as(
        self, member: MemberIdentity, offsets: Positions, deadline: Deadline
    ) -> set[int]:
        """Commits offsets as one member; returns the error codes of those refused."""
        codes = commit_offsets(
            self._wire,
            self._settings.group_id,
            (member.member_id, member.epoch, member.instance_id),
            offsets,
            self._membership.topic_ids,
            deadline,
            metadata=self._offsets.known.texts(offsets),
            on_lost=self._on_lost_answer,
        )
        accepted = {place: offsets[place] for place, code in codes.items() if code == Code.NONE}
        self._offsets.committed.update(accepted)
        self._to_renew -= accepted.keys()
        return {code for code in codes.values() if code}

    def _handle_refusal(self, batch: BatchRange, offsets: Positions, refused: set[int]) -> None:
        if refused == {Code.UNKNOWN_TOPIC_ID}:
            self._offsets.source_topics(offsets)
            raise RetriableError(code_names(refused))
        if verdict(refused) is Verdict.REJECTED:
            self._offsets.take_over(batch)
            raise RetriableError(code_names(refused))
        raise refusal(
            f"committing offsets of batch {batch.batch_id} of group {self._settings.group_id!r}",
            min(refused),
            query_acls(
                self._settings.group_id, self._settings.id_prefix, {t for t, _ in offsets}, []
            ),
            self._settings.client.grantee,
        )
