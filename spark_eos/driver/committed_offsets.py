"""A group's committed offsets as its run knows them, and when they may be trusted."""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from spark_eos.batch.plan import BatchRange, Positions
from spark_eos.batch.source_places import SourcePlaces
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.error_codes import Code
from spark_eos.driver.group_deadline import group_deadline
from spark_eos.driver.leftover_transactions import ABORT_INTERVAL, LeftoverTransactions
from spark_eos.driver.membership import GroupMembership
from spark_eos.errors import (
    DeadlineExceededError,
    FencedByNewerRunError,
    KafkaResponseError,
    OffsetsLostError,
)
from spark_eos.kafka.cluster import TopicInfo
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.hanging_transactions import holder_of_offsets
from spark_eos.kafka.offset_metadata import (
    CommittedOffset,
    KnownPartitions,
    StagedBatch,
    has_text,
)
from spark_eos.kafka.offsets import all_group_offsets, group_offsets
from spark_eos.kafka.topic_cache import TopicCache, source_topics

# Seconds to wait for stable offsets before looking for open transactions again.
_SETTLING: Final = 5.0
_EPOCH_MOVED: Final = {Code.STALE_MEMBER_EPOCH, Code.FENCED_MEMBER_EPOCH}


class CommittedOffsets:
    """The group's offsets, read in the one order that makes them final: fence, end, read.

    Args:
        wire: Connections.
        settings: Writer settings.
        membership: The group's members.
        leftovers: Ends the query's open transactions.
        group_timeout_ms: Time limit of each call to the group, in milliseconds.

    Attributes:
        committed: Next offset to read, by (topic, partition).
        known: Partitions that the group has ever had offsets for.
        commit_in_doubt: Whether the answer to a commit of the driver's was lost, so that the
            broker may still carry it out.
        places: What the group's offsets stand for.
        by_hand: Partitions whose committed offset has no text at all, so that an operator has set
            it; as last read.
        foreign: Partitions whose committed offset has another client's text; as last read.
        ledgers: What the ledger may say, by (topic, partition), as long as no newer run has
            written: what it said last, and what this run is about to write.
    """

    def __init__(
        self,
        wire: Wire,
        settings: WriterSettings,
        membership: GroupMembership,
        leftovers: LeftoverTransactions,
        group_timeout_ms: int,
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._membership = membership
        self._leftovers = leftovers
        self._group_timeout_ms = group_timeout_ms
        self._topics = TopicCache(
            wire, max_block_ms=settings.max_block_ms, max_idle_ms=settings.metadata_max_idle_ms
        )
        self.committed: Positions = {}
        self.known = KnownPartitions()
        self.places = SourcePlaces()
        self.commit_in_doubt = False
        self.by_hand: set[tuple[str, int]] = set()
        self.foreign: frozenset[tuple[str, int]] = frozenset()
        self.ledgers: dict[tuple[str, int], Collection[StagedBatch | None]] = {}
        self._batch_partitions: set[tuple[str, int]] = set()
        self._settling = Deadline(_SETTLING, "")

    def source_topics(
        self,
        partitions: Collection[tuple[str, int]],
        noted: Mapping[str, uuid.UUID] | None = None,
    ) -> dict[str, TopicInfo]:
        """The partitions' topics as they are now.

        Args:
            partitions: (topic, partition) pairs.
            noted: Ids that the topics must have; by default those from when the members joined.

        Raises:
            OffsetsLostError: A topic has another id, so the committed offsets aren't its own.
            TopicNotFoundError: A topic doesn't exist.
        """
        names = {topic for topic, _partition in partitions}
        known = self._membership.topic_ids if noted is None else noted
        return source_topics(self._topics, names, known, self._settings.group_id)

    # Reading ------------------------------------------------------------------------------------

    def end_and_read(self, batch: BatchRange) -> None:
        """Ends all open transactions of the query, then reads the committed offsets.

        Everyone older must be fenced by now, or the offsets could still move.

        Raises:
            OffsetsLostError: An offset is behind what this run itself has seen committed.
            FencedByNewerRunError: A newer run has staged a batch in the meantime.
            DeadlineExceededError: A transaction that can't be ended holds offsets.
        """
        self._leftovers.end()
        # The group's coordinator decides when the offsets are stable: it knows every open
        # transaction that holds offsets of the group, whichever broker coordinates that
        # transaction, and answers OffsetFetch with 88 while there is one. A transaction that could
        # not be ended above, the brokers end. One that was not even seen, because its broker is
        # away, either holds offsets and is waited for here, or holds none and gets none: its
        # producer has lost its members, and commits no transaction without offsets.
        left = self._settings.transaction_timeout_ms / 1000 + ABORT_INTERVAL
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
                    group_deadline(self._group_timeout_ms),
                    member=self._membership.any_member(),
                    wait=False,
                )
            except KafkaResponseError as error:
                if error.code == Code.UNKNOWN_MEMBER_ID:
                    # The broker dropped the member. If a newer run holds it now, this raises.
                    self._membership.take_over_own(self._membership.topics, batch.ends)
                elif error.code == Code.UNSTABLE_OFFSET_COMMIT:
                    self._end_again_if_overdue()
                elif error.code not in _EPOCH_MOVED:
                    raise
                raise RetriableError(str(error)) from error

        try:
            answer = deadline.attempts("reading the group's offsets", pause=0.01)(attempt)
        except DeadlineExceededError as error:
            if f"{Code.UNSTABLE_OFFSET_COMMIT:d} " not in str(error.__cause__):
                raise
            held = holder_of_offsets(
                self._wire, self._settings.group_id, group_deadline(self._group_timeout_ms)
            )
            raise DeadlineExceededError(f"{error}. {held}") from error
        told = KnownPartitions.of(answer)
        self._check_alone(told)
        found = {place: committed.offset for place, committed in answer.items()}
        for (topic, partition), before in self.committed.items():
            if (topic, partition) in batch.ends and found.get((topic, partition), -1) < before:
                name = self.places.name((topic, partition))
                raise OffsetsLostError(
                    f"group {self._settings.group_id!r} had committed {name} up to {before} and "
                    f"now has {found.get((topic, partition), 'no offset')}: somebody has set or "
                    "deleted the group's offsets while the query was running"
                )
        self.committed = found
        self.by_hand = {place for place, one in answer.items() if not has_text(one)}
        self.foreign = told.set_by_others - self.by_hand
        self._batch_partitions = set(batch.ends)

    def _check_alone(self, found: KnownPartitions) -> None:
        """Refuses to go on if a newer run came and went, and gave offsets another meaning.

        They are then positions in a copy that it has staged, or in partitions that it has mirrored.
        """
        for place, source in found.sources.items():
            if self.known.sources.get(place, source) != source:
                raise FencedByNewerRunError(
                    f"group {self._settings.group_id!r} has another source for {place[0]}-"
                    f"{place[1]}, {source}: a newer run has used it in the meantime. This run "
                    "stops, and has left nothing half written"
                )
        for place, expected in self.ledgers.items():
            staged = found.staged.get(place)
            if staged not in expected:
                what = "has no ledger any more" if staged is None else f"has staged {staged}"
                raise FencedByNewerRunError(
                    f"group {self._settings.group_id!r} {what}: a newer run has used it in the "
                    "meantime, or somebody has set its offsets. This run stops, and has left "
                    "nothing half written"
                )

    def _end_again_if_overdue(self) -> None:
        if not self._settling.expired:
            return
        self._leftovers.warn_of_hidden(
            "an open transaction that the query can't see holds the group's offsets"
        )
        # Another broker may coordinate the transaction by now, and list it.
        self._leftovers.end()
        self._settling = Deadline(_SETTLING, "")

    def read_known(self) -> None:
        """Reads, from all offsets of the group, which partitions it has ever known.

        Raises:
            KafkaResponseError: The offsets can't be read.
        """
        found = all_group_offsets(
            self._wire, self._settings.group_id, group_deadline(self._group_timeout_ms)
        )
        known = KnownPartitions.of(found)
        # Sources that no offset tells of yet stay known.
        self.known = replace(known, sources={**self.known.sources, **known.sources})

    def narrow(self, batch: BatchRange) -> None:
        """Forgets the offsets of partitions that a batch does not have.

        Args:
            batch: The run's first batch, of which more offsets were read than it has partitions.
        """
        self.committed = {p: offset for p, offset in self.committed.items() if p in batch.ends}
        self._batch_partitions = set(batch.ends)

    def check_doubts(self, batch: BatchRange) -> None:
        """Refuses partitions that an earlier run has marked as perhaps not fully written.

        Raises:
            OffsetsLostError: Records below a committed offset may be missing from the output.
        """
        for (topic, partition), doubt in sorted(self.known.doubts.items()):
            if (topic, partition) in batch.ends:
                name = self.places.name((topic, partition))
                raise OffsetsLostError(
                    f"offsets {doubt.first} to {doubt.after - 1} of {name} may not all be "
                    f"written: an earlier run of group {self._settings.group_id!r} got their rows "
                    "out of order or in two tasks, after some of them had been committed. Find "
                    "out which are missing (spark-eos verify). Then set the group's offset while "
                    f"the query is stopped: to {doubt.first} to write them all again, to "
                    f"{doubt.after} to continue after them ({self._command((topic, partition))}), "
                    "and start with an empty checkpoint_location"
                )

    def _command(self, place: tuple[str, int]) -> str:
        return self.places.how_to_set(self._settings.group_id, {place: "N"})

    # Taking over --------------------------------------------------------------------------------

    def take_over(self, batch: BatchRange) -> None:
        """Fences every task that knows the run's current members, then reads the offsets.

        Raises:
            FencedByNewerRunError: A newer run holds the members.
            OffsetsLostError: As `source_topics` and `end_and_read`.
        """
        self._membership.take_over_own(self.source_topics(batch.ends), batch.ends)
        self.end_and_read(batch)

    def take_over_if_changed(self, batch: BatchRange) -> None:
        """Takes over if the group or the source partitions have changed since the last batch.

        Raises:
            OffsetsLostError: Somebody else has committed offsets in the meantime.
        """
        unassigned = batch.ends.keys() - self._membership.identities().keys()
        if not (
            unassigned
            or batch.ends.keys() != self._batch_partitions
            or self._membership.changed
            or self.commit_in_doubt
        ):
            return
        before, alone = self.committed, not self._membership.session_lost
        self.take_over(batch)
        self.commit_in_doubt = False
        if not alone:
            # A newer run may have come and gone, written records and marked offsets.
            self.read_known()
            own = batch.ends.keys() & self.committed.keys()
            self.known = self.known.including(own, self._membership.topic_ids)
        # New partitions may be marked as well.
        self.check_doubts(batch)
        for (topic, partition), offset in before.items():
            found = self.committed.get((topic, partition), offset)
            # After a lost session a newer run may have written these; otherwise none has.
            if alone and found > offset:
                name = self.places.name((topic, partition))
                raise OffsetsLostError(
                    f"group {self._settings.group_id!r} had committed {name} up to {offset} and "
                    f"now has {found}: a consumer other than spark-eos has used the group while "
                    f"the query was running, and offsets {offset} to {found - 1} are not written. "
                    f"To write them, set the group's offset back to {offset} while the query is "
                    f"stopped ({self._command((topic, partition))}); otherwise the next start "
                    "continues after them"
                )
