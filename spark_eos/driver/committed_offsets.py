"""What a query's group has committed, as its run knows it: read, adopted and settled."""

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from spark_eos.acls import Operation, query_acls, transactional_ids
from spark_eos.batch.plan import BatchRange, Positions
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.error_codes import Code, Verdict, code_names, refusal, verdict
from spark_eos.client.printable import printable
from spark_eos.driver.membership import GroupMembership
from spark_eos.driver.missing_offsets import Evidence, origins
from spark_eos.driver.offset_log import Note
from spark_eos.errors import (
    AuthorizationError,
    DeadlineExceededError,
    KafkaResponseError,
    OffsetsLostError,
    SparkEosError,
)
from spark_eos.kafka import cluster
from spark_eos.kafka.cluster import TopicInfo
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.group_members import RENEWAL_INSTANCE
from spark_eos.kafka.groups import describe_group
from spark_eos.kafka.hanging_transactions import holder_of_offsets
from spark_eos.kafka.list_offsets import start_offsets
from spark_eos.kafka.offset_metadata import CommittedOffset, Doubt, KnownPartitions
from spark_eos.kafka.offsets import all_group_offsets, commit_offsets, group_offsets
from spark_eos.kafka.open_transactions import open_transactions
from spark_eos.kafka.topic_cache import TopicCache, source_topics
from spark_eos.kafka.transactional_ids import id_pattern
from spark_eos.kafka.transactions import MemberIdentity, fence_producer

logger = logging.getLogger(__name__)

# Seconds between two looks for what cancelled tasks have left.
_SWEEP: Final = 0.25
# Seconds between the brokers' looks for transactions that are over their timeout
# (transaction.abort.timed.out.transaction.cleanup.interval.ms).
_ABORT_INTERVAL: Final = 10
# Seconds after which offsets are stable if all transactions that held them have been ended.
_SETTLING: Final = 5.0
# Seconds that the coordinator of a transaction may take to end it; it may be away.
_ENDING: Final = 10.0
_EPOCH_MOVED = {Code.STALE_MEMBER_EPOCH, Code.FENCED_MEMBER_EPOCH}


class CommittedOffsets:
    """The group's offsets, and the order in which they may be trusted: fence, end, then read.

    Args:
        wire: the connections.
        settings: the writer's settings.
        coordinator: the group's members.
        group_timeout_ms: milliseconds that each call to the group may take.

    Attributes:
        committed: next offset by (topic, partition).
        known: the partitions that the group has had offsets for.
        commits_by_name: whether the brokers may take offsets by a topic's name, not its id.
    """

    def __init__(
        self,
        wire: Wire,
        settings: WriterSettings,
        membership: GroupMembership,
        group_timeout_ms: int,
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._membership = membership
        self._group_timeout_ms = group_timeout_ms
        self._topics = TopicCache(
            wire, max_block_ms=settings.max_block_ms, max_idle_ms=settings.metadata_max_idle_ms
        )
        self.committed: Positions = {}
        self.known = KnownPartitions()
        self.commits_by_name = False
        self._batch_partitions: set[tuple[str, int]] = set()
        # To be committed once more, even if their offsets stay.
        self._to_renew: set[tuple[str, int]] = set()
        self._commit_in_doubt = False
        self._warned = False
        self._silent: set[str] = set()
        self._settling = Deadline(_SETTLING, "")

    def _deadline(self) -> Deadline:
        return Deadline(self._group_timeout_ms / 1000, "group_timeout_ms")

    def source_topics(
        self,
        partitions: Collection[tuple[str, int]],
        noted: Mapping[str, uuid.UUID] | None = None,
    ) -> dict[str, TopicInfo]:
        """The partitions' topics as they are now.

        Args:
            partitions: (topic, partition) pairs.
            noted: ids that the topics must have; as they were when the members last joined,
                unless given.

        Raises:
            OffsetsLostError, TopicNotFoundError: they are not those whose offsets are committed.
        """
        names = {topic for topic, _partition in partitions}
        known = self._membership.topic_ids if noted is None else noted
        return source_topics(self._topics, names, known, self._settings.group_id)

    def end_and_fetch(self, batch: BatchRange) -> None:
        """Ends all open transactions of the query, then reads the committed offsets.

        Raises:
            OffsetsLostError: one lies before what the run itself has seen committed.
        """
        # Only now that everyone older is fenced do the offsets stand still.
        self._end_open_transactions(self._deadline())
        # Offsets that a transaction holds are stable once it has ended; one that could not be ended
        # here, the brokers end. So what decides is the coordinator of the group, by its answer to
        # OffsetFetch: it knows of each open transaction that holds offsets of the group, whichever
        # broker coordinates that transaction, and answers 88 as long as there is one. One that was
        # not seen, with a broker that is away, either holds offsets, and is waited for, or holds
        # none, and gets none any more: whoever has it open has lost its members, and commits no
        # transaction without offsets.
        left = self._settings.transaction_timeout_ms / 1000 + _ABORT_INTERVAL
        deadline = Deadline(
            self._group_timeout_ms / 1000 + left, "group_timeout_ms, transaction_timeout_ms"
        )
        self._settling = Deadline(_SETTLING, "")

        def attempt() -> dict[tuple[str, int], CommittedOffset]:
            try:
                return group_offsets(
                    self._wire,
                    self._settings.group_id,
                    batch.ends,
                    self._membership.topic_ids,
                    self._deadline(),
                    member=self._membership.any_member(),
                    wait=False,
                )
            except KafkaResponseError as error:
                if error.code == Code.UNKNOWN_MEMBER_ID:
                    # Dropped by the broker; if a newer run holds the members, this raises.
                    self._membership.take_over_own(self._membership.topics, batch.ends)
                elif error.code == Code.UNSTABLE_OFFSET_COMMIT:
                    self._look_again()
                elif error.code not in _EPOCH_MOVED:
                    raise
                raise RetriableError(str(error)) from error

        try:
            answer = deadline.attempts("reading the group's offsets", pause=0.01)(attempt)
        except DeadlineExceededError as error:
            if f"{Code.UNSTABLE_OFFSET_COMMIT:d} " not in str(error.__cause__):
                raise
            held = holder_of_offsets(self._wire, self._settings.group_id, self._deadline())
            raise DeadlineExceededError(f"{error}. {held}") from error
        found = {place: committed.offset for place, committed in answer.items()}
        for (topic, partition), before in self.committed.items():
            if (topic, partition) in batch.ends and found.get((topic, partition), -1) < before:
                raise OffsetsLostError(
                    f"group {self._settings.group_id!r} had committed {topic}-{partition} up to "
                    f"{before} and has {found.get((topic, partition), 'no offset')} now: somebody "
                    "has set or deleted the group's offsets under the query"
                )
        self.committed = found
        self._batch_partitions = set(batch.ends)

    def _look_again(self) -> None:
        if not self._settling.expired:
            return
        self._warn_of_hidden("an open transaction that is not seen holds its offsets")
        # Another broker may coordinate it by now, and lists it.
        self._end_open_transactions(self._deadline())
        self._settling = Deadline(_SETTLING, "")

    def end_after_stop(self, seconds: float) -> None:
        """Ends what cancelled tasks leave open: at once, and until all of them have ended.

        For a run whose members have left, so that nobody can commit offsets any more.

        Args:
            seconds: for so long a task may go on.
        """
        until = time.monotonic() + seconds
        try:
            while True:
                deadline = Deadline(min(5.0, self._group_timeout_ms / 1000), "group_timeout_ms")
                # In this order: what was open before the group had no members is not a newer run's.
                names = self.open_transactions(deadline)
                if self._has_run(deadline):
                    return
                for name in names:
                    if self._has_run(deadline):
                        return
                    self._end([name], deadline)
                if time.monotonic() >= until:
                    return
                time.sleep(_SWEEP)
        except SparkEosError as error:
            logger.info(
                "group %s: open transactions will time out: %s", self._settings.group_id, error
            )

    def _has_run(self, deadline: Deadline) -> bool:
        group = describe_group(self._wire, self._settings.group_id, deadline)
        return any(member.instance_id != RENEWAL_INSTANCE for member in group.members)

    def open_transactions(self, deadline: Deadline | None = None) -> list[str]:
        """Transactional ids of the query that have a transaction open.

        Raises:
            AuthorizationError: the query may not see them.
        """
        pattern = id_pattern(self._settings.transactional_id_prefix, self._settings.group_id)
        return open_transactions(
            self._wire, pattern, deadline or self._deadline(), self._note_silent
        )

    def _note_silent(self, what: str) -> None:
        """Once for a run: the text names the brokers."""
        if what in self._silent:
            return
        self._silent.add(what)
        logger.warning(
            "group %s: %s, and is passed over. Transactions that it coordinates are not ended at "
            "once, if there are any: no record is lost or doubled by that, but their source "
            "partitions, and consumers of the output, wait until the brokers end them",
            self._settings.group_id,
            what,
        )

    def _end_open_transactions(self, deadline: Deadline) -> None:
        # Whoever may still write has lost its members by now: what it has open can get no further
        # offsets, and those that it holds are not read before it has ended. So what can't be found
        # or ended here takes time, and nothing else.
        try:
            names = self.open_transactions(deadline)
        except AuthorizationError as error:
            self._warn_of_hidden(str(error))
            return
        self._end(names, deadline)

    def _end(self, names: Collection[str], deadline: Deadline) -> None:
        timeout_ms = self._settings.transaction_timeout_ms
        for name in names:
            logger.info("ending the open transaction of %s", printable(name))
            each = Deadline(min(_ENDING, deadline.remaining()), deadline.setting)
            try:
                fence_producer(self._wire, name, timeout_ms, each)
            except AuthorizationError as error:
                self._warn_of_hidden(str(error))
            except DeadlineExceededError as error:
                logger.info(
                    "the open transaction of %s is left to the brokers: %s", printable(name), error
                )

    def _warn_of_hidden(self, what: str) -> None:
        """Once for a run: transactions that can't be found or ended end by their timeout."""
        if self._warned:
            return
        self._warned = True
        settings = self._settings
        needed = transactional_ids(settings.id_prefix, Operation.WRITE)
        logger.warning(
            "group %s: %s. What a killed worker has left open is then not ended at once, but by "
            "the brokers: up to transaction_timeout_ms=%d and %d s after it began. No record is "
            "lost or doubled by that, but until then its source partitions are not written, and "
            "consumers of the output wait. To end it at once the query needs %s: %s",
            settings.group_id,
            what,
            settings.transaction_timeout_ms,
            _ABORT_INTERVAL,
            needed,
            settings.client.grantee.command(needed),
        )

    def take_over(self, batch: BatchRange) -> None:
        """Fences every task that knows the run's members so far, then reads what is committed."""
        self._membership.take_over_own(self.source_topics(batch.ends), batch.ends)
        self.end_and_fetch(batch)

    def adopt_changes(self, batch: BatchRange) -> None:
        """Takes over, if the group or the source partitions are not as they were left.

        Raises:
            OffsetsLostError: somebody else has committed offsets meanwhile.
        """
        unassigned = batch.ends.keys() - self._membership.identities().keys()
        if not (
            unassigned
            or batch.ends.keys() != self._batch_partitions
            or self._membership.changed
            or self._commit_in_doubt
        ):
            return
        before, alone = self.committed, not self._membership.session_lost
        self.take_over(batch)
        self._commit_in_doubt = False
        if not alone:
            # A newer run may have written meanwhile, and marked what it has met.
            self.learn()
            self.check_doubts(batch)
            own = batch.ends.keys() & self.committed.keys()
            self.known = self.known.including(own, self._membership.topic_ids)
        for (topic, partition), offset in before.items():
            found = self.committed.get((topic, partition), offset)
            # Without a member a newer run may have written them; with all members, none has.
            if alone and found > offset:
                raise OffsetsLostError(
                    f"group {self._settings.group_id!r} had committed {topic}-{partition} up to "
                    f"{offset} and has {found} now: a consumer that is not spark-eos' has used the "
                    f"group under the query, and offsets {offset} to {found - 1} are not written. "
                    f"To write them, set the group's offset back to {offset} while the query is "
                    "stopped (kafka-consumer-groups.sh --reset-offsets); started without that, "
                    "it goes on after them"
                )

    # Committing outside of transactions ---------------------------------------------------------

    def learn(self) -> None:
        """Reads from all offsets of the group which partitions it has known.

        Raises:
            KafkaResponseError: they can't be read.
        """
        found = all_group_offsets(self._wire, self._settings.group_id, self._deadline())
        self.known = KnownPartitions.of(found)

    def check_doubts(self, batch: BatchRange) -> None:
        """Refuses partitions whose offsets an earlier run has marked.

        Raises:
            OffsetsLostError: records below an offset may not be written.
        """
        for (topic, partition), doubt in sorted(self.known.doubts.items()):
            if (topic, partition) in batch.ends:
                raise OffsetsLostError(
                    f"offsets {doubt.first} to {doubt.after - 1} of {topic}-{partition} may not "
                    f"all be written: an earlier run of group {self._settings.group_id!r} has met "
                    "their rows out of order or in two tasks, after others of them were "
                    "committed. Find out which are missing (spark-eos verify). Then set the "
                    f"group's offset while the query is stopped: to {doubt.first} to write them "
                    f"all again, to {doubt.after} to go on after them "
                    f"(kafka-consumer-groups.sh --reset-offsets --group "
                    f"{self._settings.group_id} --topic {topic}:{partition} --to-offset N "
                    "--execute), and start with an empty checkpoint_location"
                )

    def anchor(self, batch: BatchRange, note: Note, *, begun_now: bool) -> None:
        """Gives each of the batch's partitions an offset before anything is written.

        So that from then on a partition without one is a partition whose offset was lost. Those
        that have one are committed once more, since each offset expires by its own age.

        Args:
            batch: the batch.
            note: with what the checkpoint was last written from.
            begun_now: whether no earlier run can have written any row of the batch.

        Raises:
            OffsetsLostError: an offset was lost, and nothing proves what it was.
        """
        missing = batch.ends.keys() - self.committed.keys()
        added = {topic for topic, partition in missing if (topic, partition) not in batch.starts}
        firsts = start_offsets(self._wire, added, self._deadline())
        ids = self._membership.topic_ids
        evidence = Evidence(self._settings.group_id, self.known, ids, note, begun_now)
        anchors = origins(batch, self.committed, firsts, evidence)
        for (topic, partition), offset in anchors.items():
            if batch.batch_id > 0 and (topic, partition) in batch.starts:
                logger.warning(
                    "group %s: the offset of %s-%d was lost (expired or deleted) and is restored "
                    "from the checkpoint: %d. Raise the brokers' offsets.retention.minutes if the "
                    "query may be stopped for so long",
                    self._settings.group_id,
                    topic,
                    partition,
                    offset,
                )
        # Before any offset tells of them: a run that dies in between has not known them.
        self._commit(batch, anchors)
        self.known = self.known.including(batch.ends, ids)
        self.expect_renewal(batch)
        self._commit(batch, {place: self.committed[place] for place in batch.ends})

    def expect_renewal(self, batch: BatchRange) -> None:
        """Has the next commit of the driver include the offsets that do not move."""
        self._to_renew |= batch.ends.keys()

    def renew(self, batch: BatchRange, deadline: Deadline) -> None:
        """Commits all offsets of a batch's partitions once more, so that none expires.

        For the time between batches: nothing is repeated, and what comes in the way is left to
        the next batch.

        Raises:
            SparkEosError: no answer.
        """
        if self.commits_by_name:
            ids = self._membership.topic_ids
            now = cluster.topics(self._wire, {topic for topic, _ in batch.ends}, deadline)
            if any(name not in now or now[name].topic_id != ids[name] for name in ids):
                return
        # Nobody commits between batches; should somebody have, it is not taken back.
        found = group_offsets(
            self._wire,
            self._settings.group_id,
            batch.ends,
            self._membership.topic_ids,
            deadline,
            member=self._membership.any_member(),
            wait=False,
        )
        members = self._membership.identities()
        by_member: dict[MemberIdentity, Positions] = {}
        for place in batch.ends.keys() & members.keys() & found.keys():
            if found[place].offset == self.committed.get(place):
                by_member.setdefault(members[place], {})[place] = self.committed[place]
        for member, offsets in by_member.items():
            self._commit_as(member, offsets, deadline)

    def mark(self, batch: BatchRange, places: Collection[tuple[str, int]]) -> dict[str, Doubt]:
        """Marks offsets of the batch that may not be written, though others after them are.

        For rows that were found out of order, or in two tasks: the group's offset may lie past
        some that are not written. The mark is part of the committed offset, until an operator
        sets that.

        Returns:
            The offsets in doubt, by ``topic-partition``; those of partitions of which nothing was
            committed in this batch are not.
        """
        # One of two tasks may have taken the other's offset back.
        seen = {place: self.committed.pop(place, 0) for place in places}
        self.take_over(batch)
        after = {place: max(offset, self.committed.get(place, 0)) for place, offset in seen.items()}
        doubts = {
            place: Doubt(batch.starts.get(place, 0), after[place])
            for place in places
            if after[place] > batch.starts.get(place, 0)
        }
        self.known = replace(self.known, doubts={**self.known.doubts, **doubts})
        self._to_renew |= doubts.keys()
        self._commit(batch, {place: self.committed[place] for place in doubts})
        return {f"{topic}-{index}": doubts[topic, index] for topic, index in sorted(doubts)}

    def settle(self, batch: BatchRange) -> None:
        """Commits the ends of ranges whose last rows have no output.

        Args:
            batch: the batch, all of whose rows are written.
        """
        self._commit(batch, batch.ends)

    def _commit(self, batch: BatchRange, wanted: Positions) -> None:
        """Commits offsets that are not committed yet or are to be renewed; moves none back."""

        def attempt() -> None:
            pending = {
                place: max(offset, self.committed.get(place, offset))
                for place, offset in wanted.items()
                if place in self._to_renew or self.committed.get(place, -1) < offset
            }
            if pending and self.commits_by_name:
                # Such brokers may take the offsets by name, whichever topic bears it by now.
                self.source_topics(pending)
            by_member: dict[MemberIdentity, Positions] = {}
            members = self._membership.identities()
            for place, offset in pending.items():
                if place not in members:
                    self.take_over(batch)
                    raise RetriableError(f"{place[0]}-{place[1]} is not assigned")
                by_member.setdefault(members[place], {})[place] = offset
            for member, offsets in by_member.items():
                refused = self._commit_as(member, offsets, self._deadline())
                if refused:
                    self._answer_refusal(batch, offsets, refused)

        self._deadline().attempts("committing offsets of the batch")(attempt)
        if self._commit_in_doubt:
            # Should the request come late, it finds its member gone: it would take back what the
            # next batch commits.
            self.take_over(batch)
            self._commit_in_doubt = False

    def _doubt_commit(self) -> None:
        self._commit_in_doubt = True

    def _commit_as(
        self, member: MemberIdentity, offsets: Positions, deadline: Deadline
    ) -> set[int]:
        """Commits offsets as one member; returns the codes of refusals."""
        doubts = self.known.doubts
        texts = {topic: self.known.metadata(topic) for topic, _ in offsets}
        codes = commit_offsets(
            self._wire,
            self._settings.group_id,
            (member.member_id, member.epoch, member.instance_id),
            offsets,
            self._membership.topic_ids,
            deadline,
            metadata={
                place: self.known.metadata(place[0], doubts[place])
                if place in doubts
                else texts[place[0]]
                for place in offsets
            },
            on_lost=self._doubt_commit,
        )
        accepted = {place: offsets[place] for place, code in codes.items() if code == Code.NONE}
        self.committed.update(accepted)
        self._to_renew -= accepted.keys()
        return {code for code in codes.values() if code}

    def _answer_refusal(self, batch: BatchRange, offsets: Positions, refused: set[int]) -> None:
        if refused == {Code.UNKNOWN_TOPIC_ID}:
            self.source_topics(offsets)
            raise RetriableError(code_names(refused))
        if verdict(refused) is Verdict.REJECTED:
            self.take_over(batch)
            raise RetriableError(code_names(refused))
        raise refusal(
            f"committing offsets of batch {batch.batch_id} of group {self._settings.group_id!r}",
            min(refused),
            query_acls(
                self._settings.group_id, self._settings.id_prefix, {t for t, _ in offsets}, []
            ),
            self._settings.client.grantee,
        )
