"""Maps a group's partitions to source partitions and back, for rows, reports and messages."""

# A mirrored query commits offsets of progress partitions. Rows get the group's partition when they
# enter a task, and reports and messages name the source partition again. The code in between does
# not distinguish the two.

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from spark_eos._client.commands import Group
from spark_eos._kafka.topic_partition import TopicPartition


@dataclass(frozen=True)
class Sources:
    """Maps between a group's partitions and source partitions, which are usually the same."""

    by_partition: Mapping[TopicPartition, TopicPartition] = field(default_factory=dict)

    @cached_property
    def _by_source(self) -> Mapping[TopicPartition, TopicPartition]:
        return {source: partition for partition, source in self.by_partition.items()}

    def source(self, partition: TopicPartition) -> TopicPartition:
        """Return the source partition that a partition of the group stands for."""
        return self.by_partition.get(partition, partition)

    def partition(self, source: TopicPartition) -> TopicPartition:
        """Return the group's partition whose offset is the progress of a source partition."""
        return self._by_source.get(source, source)

    def name(self, partition: TopicPartition) -> str:
        """Return the name of a group's partition for messages."""
        if partition not in self.by_partition:
            return str(partition)
        return f"{self.source(partition)} (its progress is {partition})"

    def how_to_set(
        self, group: Group, wanted: Mapping[TopicPartition, int | str], *more: str
    ) -> str:
        """Return the command that sets the group's offsets while the query is stopped."""
        named = [(*self.source(partition), offset) for partition, offset in wanted.items()]
        if self.by_partition:
            # Kafka's tool allows no offset beyond the log's end, and progress partitions are empty.
            sets = (("--set", f"{topic}:{index}={offset}") for topic, index, offset in named)
            return group.own_tool("progress", *chain(*sets), *more)
        reset = ("--reset-offsets", "--execute", "--topic")
        return "; ".join(
            group.tool(*reset, f"{topic}:{index}", "--to-offset", str(offset))
            for topic, index, offset in named
        )
