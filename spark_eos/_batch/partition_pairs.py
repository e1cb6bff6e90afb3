"""What source partition each offset of a group stands for; pure.

With direct delivery an offset stands for its own partition. With mirrored delivery the source is in
another cluster: there the group's offset of a progress partition, which holds no records, is the
next offset to read of a source partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spark_eos._batch.plan import BatchPlan
from spark_eos._kafka.topic_partition import TopicPartition

Value = TypeVar("Value")


@dataclass(frozen=True)
class PartitionPairs:
    """Translates between a group's partitions and the source partitions that they stand for.

    Attributes:
        sources: The source partition of each progress partition; empty with direct delivery, where
            both are the same.

    Example:
        >>> orders, progress = TopicPartition("orders", 0), TopicPartition("spark-eos-progress", 4)
        >>> pairs = PartitionPairs({progress: orders})
        >>> print(pairs.source(progress), pairs.progress(orders))
        orders-0 spark-eos-progress-4
        >>> print(PartitionPairs().source(orders))
        orders-0
    """

    sources: Mapping[TopicPartition, TopicPartition] = field(default_factory=dict)
    _progress: Mapping[TopicPartition, TopicPartition] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        reverse = {source: partition for partition, source in self.sources.items()}
        object.__setattr__(self, "_progress", reverse)

    def source(self, partition: TopicPartition) -> TopicPartition:
        """The source partition that one of the group's partitions stands for."""
        return self.sources.get(partition, partition)

    def progress(self, source: TopicPartition) -> TopicPartition:
        """The partition whose offset in the group is the progress of a source partition."""
        return self._progress.get(source, source)

    def by_source(self, values: Mapping[TopicPartition, Value]) -> dict[TopicPartition, Value]:
        """Values by source partition, of values by the group's partitions."""
        return {self.source(partition): value for partition, value in values.items()}

    def by_progress(self, values: Mapping[TopicPartition, Value]) -> dict[TopicPartition, Value]:
        """Values by the group's partitions, of values by source partition."""
        return {self.progress(source): value for source, value in values.items()}

    def task_plan(self, planned: BatchPlan) -> BatchPlan:
        """A plan for tasks, which see rows of source partitions."""
        if not self.sources:
            return planned
        return {
            self.source(partition): replace(part, progress=partition)
            for partition, part in planned.items()
        }

    # Words for the user -----------------------------------------------------------------------

    def name(self, partition: TopicPartition) -> str:
        """How to call one of the group's partitions.

        Example:
            >>> orders, progress = TopicPartition("orders", 0), TopicPartition("progress", 4)
            >>> PartitionPairs({progress: orders}).name(progress)
            'orders-0 (its progress is progress-4)'
            >>> PartitionPairs().name(orders)
            'orders-0'
        """
        if partition not in self.sources:
            return str(partition)
        return f"{self.source(partition)} (its progress is {partition})"

    def how_to_set(self, group_id: str, wanted: Mapping[TopicPartition, int | str]) -> str:
        """The command that sets the group's offsets while the query is stopped.

        ``kafka-consumer-groups.sh`` can't set those of progress partitions: it limits them to the
        end of the log, which is empty.

        Example:
            >>> source = TopicPartition("in", 0)
            >>> PartitionPairs().how_to_set("orders", {source: 7})
            'kafka-consumer-groups.sh --reset-offsets --group orders --execute --topic in:0 \
--to-offset 7'
            >>> progress = TopicPartition("progress", 4)
            >>> PartitionPairs({progress: source}).how_to_set("orders", {progress: "N"})
            'spark-eos progress --group-id orders --set in:0=N'
        """
        named = [(*self.source(partition), offset) for partition, offset in wanted.items()]
        if self.sources:
            sets = " ".join(f"--set {topic}:{index}={offset}" for topic, index, offset in named)
            return f"spark-eos progress --group-id {group_id} {sets}"
        return "; ".join(
            f"kafka-consumer-groups.sh --reset-offsets --group {group_id} --execute --topic "
            f"{topic}:{index} --to-offset {offset}"
            for topic, index, offset in named
        )
