"""A checkpoint's marker: the group and the delivery that its offsets belong to; no I/O."""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final, Protocol

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
    """The group and delivery of a checkpoint's offsets; an empty marker has no group."""

    group_id: str | None = None
    topic_ids: Mapping[str, uuid.UUID] = field(default_factory=dict)
    delivery: str = DIRECT
    # The number of progress partitions that a staged query has used.
    progress_partitions: int = 0
    # A mirrored query's source partitions, by the number of their progress partition.
    sources: Mapping[int, SourcePartition] = field(default_factory=dict)
    # The partitions that a direct query has ever read, by topic.
    partitions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    # True if Spark wrote its logs asynchronously, so that they may lag behind the written rows.
    checkpoint_may_lag: bool = False

    def names(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Return True if the marker lists a partition of a direct or mirrored query."""
        topic, index = partition
        if self.topic_ids.get(topic) != topic_id:
            return False
        return index in self.sources or index in self.partitions.get(topic, ())

    def has_begun(self, partition: TopicPartition, topic_id: uuid.UUID | None) -> bool:
        """Return True if rows of a partition may have been written with this checkpoint."""
        # A staged query owns all of its progress partitions.
        staged = bool(self.progress_partitions) and self.topic_ids.get(partition.topic) == topic_id
        return staged or self.names(partition, topic_id)

    def following(self, before: "Marker") -> "Marker":
        """Return this marker plus the entries that only the checkpoint's earlier marker has."""
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
        """Parse a marker; return an empty marker if the text is not a complete one."""
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
        """Return the marker as a line of JSON."""
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


_DIRECTORY: Final = "spark-eos/marker"
_DIRECTORY_BEFORE: Final = "spark-eos/note"
_NAME: Final = re.compile(r"(\d{1,18})-[0-9a-f]{8}")


class Files(Protocol):
    """The file operations on a checkpoint; paths are relative to its location."""

    location: str

    def read(self, path: str) -> str | None:
        """Return a file's text, or None if the file does not exist."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""

    def write(self, path: str, text: str) -> None:
        """Create a directory with one file of one line."""

    def delete(self, path: str) -> None:
        """Delete a directory with everything in it, if it exists."""


class MarkerFiles:
    """Reads and writes the marker files of a checkpoint."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._marker: Marker | None = None
        self._last = 0
        # The files that the next marker replaces.
        self._seen: list[str] = []
        self._written = False

    def read(self) -> Marker:
        """Return the marker that this run last read or wrote; an empty marker if there is none."""
        if self._marker is None:
            paths = self._paths()
            latest = self._latest(paths)
            # Another run may have written its own marker and removed the listed one.
            while latest is None and paths != (again := self._paths()):
                paths, latest = again, self._latest(again)
            self._marker = latest or Marker()
        return self._marker

    def write(self, marker: Marker) -> None:
        """Write the marker; call this before the first row is written."""
        marker = marker.following(self.read())
        # Each run must write `checkpoint_may_lag` itself. Otherwise an older run that was frozen
        # would clear it.
        if marker == self.read() and (self._written or not marker.checkpoint_may_lag):
            return
        self._last += 1
        path = f"{_DIRECTORY}/{self._last}-{uuid.uuid4().hex[:8]}"
        self._files.write(path, marker.text())
        replaced, self._seen = self._seen, [path]
        self._marker, self._written = marker, True
        for old in replaced:
            self._files.delete(old)

    def _paths(self) -> list[str]:
        listed = self._files.names
        return [f"{d}/{name}" for d in (_DIRECTORY, _DIRECTORY_BEFORE) for name in listed(d)]

    def _latest(self, paths: list[str]) -> Marker | None:
        """Return the complete marker with the highest number; None if no marker is complete."""
        self._seen = [path for path in paths if _number(path)]
        self._last = max(map(_number, paths), default=0)
        own = [path for path in paths if path.startswith(f"{_DIRECTORY}/")]
        others = [path for path in paths if path not in own]
        latest = self._latest_of(own)
        if latest is None:
            return self._latest_of(others)
        # After a temporary downgrade, the earlier version's directory has its own numbering.
        before = self._latest_of([path for path in others if _number(path)])
        return latest if before is None else _both(before, latest)

    def _latest_of(self, paths: list[str]) -> Marker | None:
        for number in sorted(set(map(_number, paths)), reverse=True):
            markers = [self._parsed(path) for path in paths if _number(path) == number]
            whole = [marker for marker in markers if marker.group_id is not None]
            if whole:
                # There are two markers if a run was frozen while a newer run began. Nothing shows
                # which marker is newer: a takeover leaves the member epoch unchanged. So combine
                # the markers.
                return reduce(_both, whole)
        return None

    def _parsed(self, path: str) -> Marker:
        paths = [f"{path}/{part}" for part in self._files.names(path)] if _number(path) else [path]
        return Marker.parse(next(filter(None, map(self._files.read, paths)), ""))


def _number(path: str) -> int:
    """Return a marker's number; 0 for any other file, which has the lowest rank."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return int(match[1]) if match else 0


def _both(marker: Marker, other: Marker) -> Marker:
    return replace(
        other.following(marker),
        checkpoint_may_lag=marker.checkpoint_may_lag or other.checkpoint_may_lag,
    )
