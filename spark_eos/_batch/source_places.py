"""What source partition each offset of a group stands for; pure.

On the direct road an offset stands for its own partition. On the mirrored road the source is in
another cluster: there the group's offset of a progress partition, which holds no records, is the
next offset to read of a source partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spark_eos._batch.plan import BatchPlan

Place = tuple[str, int]
"""A (topic, partition) pair."""
Value = TypeVar("Value")


@dataclass(frozen=True)
class SourcePlaces:
    """Translates between a group's partitions and the source partitions that they stand for.

    Attributes:
        sources: The source partition of each progress partition; empty on the direct road, where
            both are the same.

    Example:
        >>> places = SourcePlaces({("spark-eos-progress", 4): ("orders", 0)})
        >>> places.source(("spark-eos-progress", 4)), places.progress(("orders", 0))
        (('orders', 0), ('spark-eos-progress', 4))
        >>> SourcePlaces().source(("orders", 0))
        ('orders', 0)
    """

    sources: Mapping[Place, Place] = field(default_factory=dict)
    _progress: Mapping[Place, Place] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reverse = {source: place for place, source in self.sources.items()}
        object.__setattr__(self, "_progress", reverse)

    def source(self, place: Place) -> Place:
        """The source partition that one of the group's partitions stands for."""
        return self.sources.get(place, place)

    def progress(self, source: Place) -> Place:
        """The partition whose offset in the group is the progress of a source partition."""
        return self._progress.get(source, source)

    def by_source(self, values: Mapping[Place, Value]) -> dict[Place, Value]:
        """Values by source partition, of values by the group's partitions."""
        return {self.source(place): value for place, value in values.items()}

    def by_progress(self, values: Mapping[Place, Value]) -> dict[Place, Value]:
        """Values by the group's partitions, of values by source partition."""
        return {self.progress(source): value for source, value in values.items()}

    def task_plan(self, planned: BatchPlan) -> BatchPlan:
        """A plan for tasks, which see rows of source partitions."""
        if not self.sources:
            return planned
        return {
            self.source(place): replace(part, progress=place) for place, part in planned.items()
        }

    # Words for the user -----------------------------------------------------------------------

    def name(self, place: Place) -> str:
        """How to call one of the group's partitions.

        Example:
            >>> SourcePlaces({("spark-eos-progress", 4): ("orders", 0)}).name(
            ...     ("spark-eos-progress", 4)
            ... )
            'orders-0 (its progress is spark-eos-progress-4)'
            >>> SourcePlaces().name(("orders", 0))
            'orders-0'
        """
        topic, partition = self.source(place)
        name = f"{topic}-{partition}"
        if place not in self.sources:
            return name
        return f"{name} (its progress is {place[0]}-{place[1]})"

    def how_to_set(self, group_id: str, wanted: Mapping[Place, int | str]) -> str:
        """The command that sets the group's offsets while the query is stopped.

        ``kafka-consumer-groups.sh`` can't set those of progress partitions: it limits them to the
        end of the log, which is empty.

        Example:
            >>> SourcePlaces().how_to_set("orders", {("in", 0): 7})
            'kafka-consumer-groups.sh --reset-offsets --group orders --execute --topic in:0 \
--to-offset 7'
            >>> SourcePlaces({("p", 4): ("in", 0)}).how_to_set("orders", {("p", 4): "N"})
            'spark-eos progress --group-id orders --set in:0=N'
        """
        named = [(*self.source(place), offset) for place, offset in wanted.items()]
        if self.sources:
            sets = " ".join(f"--set {topic}:{index}={offset}" for topic, index, offset in named)
            return f"spark-eos progress --group-id {group_id} {sets}"
        return "; ".join(
            f"kafka-consumer-groups.sh --reset-offsets --group {group_id} --execute --topic "
            f"{topic}:{index} --to-offset {offset}"
            for topic, index, offset in named
        )
