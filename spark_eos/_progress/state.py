"""What a run knows of its group's offsets; a value."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from spark_eos._batch.partition_pairs import PartitionPairs
from spark_eos._batch.plan import Partitions, Positions
from spark_eos._kafka.offset_metadata import CommittedOffset, KnownPartitions, has_text
from spark_eos._kafka.stored_text import StagedBatch, SuspectRange
from spark_eos._kafka.topic_partition import TopicPartition

Expected = Mapping[TopicPartition, Collection[StagedBatch | None]]


@dataclass(frozen=True)
class State:
    """The group's offsets and what their metadata tells.

    Attributes:
        committed: Next offset, by the group's partitions that the run holds.
        by_hand: Held partitions whose offset has no metadata: an operator has set it.
        foreign: Held partitions whose offset has another client's metadata.
        expected: What a staged commit may say as long as no newer run has written.
    """

    committed: Positions = field(default_factory=dict)
    known: KnownPartitions = field(default_factory=KnownPartitions)
    by_hand: frozenset[TopicPartition] = frozenset()
    foreign: frozenset[TopicPartition] = frozenset()
    expected: Expected = field(default_factory=dict)

    @cached_property
    def pairs(self) -> PartitionPairs:
        """What the group's offsets stand for: of a mirrored query, partitions of the source."""
        sources = self.known.sources.items()
        return PartitionPairs({p: source.topic_partition for p, source in sources})

    def reading(self, answer: Mapping[TopicPartition, CommittedOffset]) -> "State":
        """The state after the offsets of all held partitions were read.

        Example:
            >>> first, second = TopicPartition("in", 0), TopicPartition("in", 1)
            >>> State({first: 1}).reading({second: CommittedOffset(5, "")}).committed
            {TopicPartition(topic='in', partition=1): 5}
        """
        by_hand = frozenset(p for p, found in answer.items() if not has_text(found))
        now = KnownPartitions.of(answer)
        return replace(
            # What another run has marked since stays marked.
            self.suspecting(now.suspects),
            committed={partition: found.offset for partition, found in answer.items()},
            by_hand=by_hand,
            foreign=now.set_by_others - by_hand,
        )

    def moved(self, offsets: Mapping[TopicPartition, int]) -> "State":
        """The state after offsets were committed, or after an operator's were understood."""
        return replace(self, committed={**self.committed, **offsets})

    def only(self, partitions: Partitions) -> "State":
        """The state of some partitions, with what is known of all."""
        kept = {p: offset for p, offset in self.committed.items() if p in partitions}
        return replace(self, committed=kept)

    def with_known(self, known: KnownPartitions) -> "State":
        """The state with what is known of all partitions."""
        return replace(self, known=known)

    def knowing(self, read: KnownPartitions) -> "State":
        """The state after all metadata was read; pairs that no offset tells of yet stay known."""
        sources = {**self.known.sources, **read.sources}
        return self.with_known(replace(read, sources=sources, owner=self.known.owner))

    def suspecting(self, suspects: Mapping[TopicPartition, SuspectRange]) -> "State":
        """The state with further ranges that may not be written.

        Example:
            >>> source = TopicPartition("in", 0)
            >>> state = State().suspecting({source: SuspectRange(5, 9)})
            >>> state.suspecting({source: SuspectRange(7, 12)}).known.suspects[source]
            SuspectRange(first=5, after=12)
        """
        marked = dict(self.known.suspects)
        for partition, found in suspects.items():
            before = marked.get(partition, found)
            marked[partition] = SuspectRange(
                min(before.first, found.first), max(before.after, found.after)
            )
        return replace(self, known=replace(self.known, suspects=marked))

    def staging(self, partition: TopicPartition, staged: StagedBatch) -> "State":
        """The state while a staged commit is on its way: it may arrive, or may not."""
        before = self.known.staged.get(partition)
        known = replace(self.known, staged={**self.known.staged, partition: staged})
        return replace(self, known=known, expected={**self.expected, partition: (before, staged)})

    def expecting(self, partition: TopicPartition) -> "State":
        """The state from which on whoever moves the staged commit is noticed."""
        staged = (self.known.staged.get(partition),)
        return replace(self, expected={**self.expected, partition: staged})
