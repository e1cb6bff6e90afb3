"""A checkpoint's marker: the group and the delivery that its offsets belong to; pure."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_eos._kafka.stored_text import (
    SourcePartition,
    check_text_format,
    encode,
    numbers_in,
    ranges_of,
)
from spark_eos._kafka.topic_partition import TopicPartition

DIRECT: Final = "direct"
"""Delivery in which a source partition's own offset is the progress."""
MIRRORED: Final = "mirrored"
"""Delivery from another cluster: progress partitions stand for its source partitions."""
STAGED: Final = "staged"
"""Delivery by files: progress partitions hold the progress of each batch's staged files."""


@dataclass(frozen=True)
class Marker:
    """What a checkpoint's offsets belong to.

    Attributes:
        group_id: The group whose query last wrote from the checkpoint; None if none has.
        topic_ids: Ids of the topics that it has read, or of its progress topic.
        delivery: The query's delivery: `DIRECT`, `MIRRORED` or `STAGED`.
        progress_partitions: Number of progress partitions that a staged query has used.
        sources: The source partitions of a mirrored query, by number of the progress partition
            that stands for each.
        partitions: The partitions of each topic that a direct query has ever read.
        checkpoint_may_lag: Whether the checkpoint's logs may lie behind what is written, since
            Spark wrote them asynchronously.

    Example:
        >>> marker = Marker("orders", {"in": uuid.UUID(int=7)})
        >>> Marker.parse(marker.text()) == marker
        True
        >>> Marker.parse("something else") == Marker()
        True
    """

    group_id: str | None = None
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)
    delivery: str = DIRECT
    progress_partitions: int = 0
    sources: Mapping[int, SourcePartition] = field(default_factory=dict)
    partitions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    checkpoint_may_lag: bool = False

    def names(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Whether rows of a partition may have been written."""
        topic, index = partition
        if self.topic_ids.get(topic) != topic_id:
            return False
        return index in self.sources or index in self.partitions.get(topic, ())

    def has_begun(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Whether rows of a partition may have been written that the checkpoint has offsets of."""
        # All progress partitions that a staged query has are its own.
        staged = bool(self.progress_partitions) and self.topic_ids.get(partition.topic) == topic_id
        return staged or self.names(partition, topic_id)

    def following(self, before: "Marker") -> "Marker":
        """This marker with what an earlier one of the checkpoint tells beyond it.

        Of the same group, the partitions stay that its topics have had, unless the topic was
        created anew.
        """
        ids = {**before.topic_ids, **self.topic_ids}
        partitions = dict(self.partitions)
        if before.group_id == self.group_id:
            for topic, read in before.partitions.items():
                if before.topic_ids.get(topic) == ids.get(topic):
                    partitions[topic] = read | partitions.get(topic, frozenset())
        sources = {**before.sources, **self.sources}
        return replace(self, topic_ids=ids, sources=sources, partitions=partitions)

    @classmethod
    def parse(cls, text: str) -> "Marker":
        """Reads a marker; an empty one if the text isn't a marker, or not a whole one."""
        try:
            fields = json.loads(text)
            if "group_id" in fields:
                check_text_format(fields, "the checkpoint's marker")
            ids = {topic: uuid.UUID(text) for topic, text in fields["topic_ids"].items()}
            return cls(
                str(fields["group_id"]),
                ids,
                str(fields.get("delivery", DIRECT)),
                int(fields.get("progress_partitions", 0)),
                {int(k): SourcePartition.parse(s) for k, s in fields.get("sources", {}).items()},
                {t: frozenset(numbers_in(r)) for t, r in fields.get("partitions", {}).items()},
                checkpoint_may_lag=True in (fields.get("checkpoint_may_lag"), fields.get("behind")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        """The marker as a line of JSON."""
        ids = {topic: str(topic_id) for topic, topic_id in sorted(self.topic_ids.items())}
        fields: dict[str, Any] = {"group_id": self.group_id, "topic_ids": ids}
        if self.delivery != DIRECT:
            fields["delivery"] = self.delivery
        if self.progress_partitions:
            fields["progress_partitions"] = self.progress_partitions
        if self.sources:
            fields["sources"] = {k: source.as_json() for k, source in sorted(self.sources.items())}
        if self.partitions:
            read = sorted(self.partitions.items())
            fields["partitions"] = {topic: ranges_of(numbers) for topic, numbers in read}
        if self.checkpoint_may_lag:
            fields["checkpoint_may_lag"] = True
        return encode(fields)
