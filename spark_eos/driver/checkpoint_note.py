"""What a query notes in its checkpoint: the group and the road that its offsets belong to; pure."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_eos.kafka.offset_metadata import SourcePartition

DIRECT: Final = "direct"
"""The road on which a source partition's own offset is the progress."""
MIRRORED: Final = "mirrored"
"""The road from another cluster: progress partitions stand for its source partitions."""
STAGED: Final = "staged"
"""The road on which batches are staged in files, and progress partitions hold the progress."""


@dataclass(frozen=True)
class Note:
    """What a checkpoint's offsets belong to.

    Attributes:
        group_id: The group whose query last wrote from the checkpoint; None if none has.
        topic_ids: Ids of the topics that it has read, or of its progress topic.
        delivery: The road that the query takes: `DIRECT`, `MIRRORED` or `STAGED`.
        progress_partitions: Number of progress partitions that a staged query has used.
        sources: The source partitions of a mirrored query, by number of the progress partition
            that stands for each.

    Example:
        >>> note = Note("orders", {"in": uuid.UUID(int=7)})
        >>> Note.parse(note.text()) == note
        True
        >>> Note.parse("something else") == Note()
        True
    """

    group_id: str | None = None
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)
    delivery: str = DIRECT
    progress_partitions: int = 0
    sources: Mapping[int, SourcePartition] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Note":
        """Reads a note; an empty one if the text isn't a note."""
        try:
            fields = json.loads(text)
            ids = {topic: uuid.UUID(text) for topic, text in fields["topic_ids"].items()}
            return cls(
                str(fields["group_id"]),
                ids,
                str(fields.get("delivery", DIRECT)),
                int(fields.get("progress_partitions", 0)),
                {int(k): SourcePartition.parse(s) for k, s in fields.get("sources", {}).items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def text(self) -> str:
        """The note as a line of JSON."""
        ids = {topic: str(topic_id) for topic, topic_id in sorted(self.topic_ids.items())}
        fields: dict[str, Any] = {"group_id": self.group_id, "topic_ids": ids}
        if self.delivery != DIRECT:
            fields["delivery"] = self.delivery
        if self.delivery == STAGED:
            fields["progress_partitions"] = self.progress_partitions
        if self.delivery == MIRRORED:
            fields["sources"] = {k: source.as_json() for k, source in sorted(self.sources.items())}
        return json.dumps(fields)
