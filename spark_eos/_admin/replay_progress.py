"""How far a partition of a dead-letter topic was replayed, and which letters were left in it.

Both are kept in the offset that a replay commits: the letters that were left, as the offset's
metadata. Another client of the group may have written that text, so it is bounded and checked.
"""

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from spark_eos._admin.dead_letter_topic import DeadLetterTopic
from spark_eos._client.header_values import MAX_OFFSET, header_number
from spark_eos._kafka import cluster
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.offsets import group_offsets
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import replay_group

# Within offset.metadata.max.bytes, 4096 by default.
_MAX_TEXT: Final = 3_800
_MAX_READ: Final = 4_096
_TEXT: Final = re.compile(r"left ([0-9,-]+)")


@dataclass(frozen=True)
class PartitionProgress:
    """How far one partition was replayed.

    Example:
        >>> progress = PartitionProgress(20, ((3, 7), (12, 13)))
        >>> progress.text
        'left 3-6,12'
        >>> PartitionProgress.of(CommittedOffset(20, "left 3-6,12"), 5)
        PartitionProgress(offset=20, left=((5, 7), (12, 13)))
    """

    offset: int  # of the first letter that no replay has seen
    # Ranges below it whose letters were left, as first offset and offset after the last.
    left: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, committed: CommittedOffset, low: int) -> "PartitionProgress":
        """Reads a committed offset; without what is deleted below the partition's first offset."""
        offset = max(low, committed.offset)
        # The Python client commits the zero byte that ends a text in C as well.
        found = _TEXT.fullmatch(committed.metadata[:_MAX_READ].removesuffix("\0"))
        ranges: list[tuple[int, int]] = []
        for part in found[1].split(",") if found else ():
            first, _, last = part.partition("-")
            begin = header_number(first, MAX_OFFSET)
            end = header_number(last or first, MAX_OFFSET)
            if begin is None or end is None or begin < (ranges[-1][1] if ranges else 0):
                # Nobody's text, or an operator's: the offset is taken as it is.
                return cls(offset)
            ranges.append((begin, end + 1))
        clipped = ((max(low, first), min(offset, after)) for first, after in ranges)
        return cls(offset, tuple(one for one in clipped if one[0] < one[1]))

    def due(self, offset: int) -> bool:
        """Whether the letter at an offset was not replayed yet."""
        return offset >= self.offset or any(a <= offset < end for a, end in self.left)

    @property
    def start(self) -> int:
        """Where to begin to read."""
        return self.left[0][0] if self.left else self.offset

    @property
    def text(self) -> str:
        """The metadata of the offset."""
        parts = (f"{a}-{end - 1}" if end - a > 1 else f"{a}" for a, end in self.left)
        return f"left {','.join(parts)}" if self.left else ""


class PartitionScan:
    """One replay's way through a partition."""

    def __init__(self, before: PartitionProgress) -> None:
        self._before = before
        self._at = before.start
        self._left: list[tuple[int, int]] = []
        # Whether the last letter was left, so that a further one makes its range longer.
        self._leaving = False

    def due(self, offset: int) -> bool:
        """Whether the letter at an offset, the next of the partition, was not replayed yet."""
        due = self._before.due(offset)
        if not due:
            self._leaving = False
        return due

    def replay(self, offset: int) -> None:
        """Passes a letter that is replayed, or of no further use."""
        self._at, self._leaving = offset + 1, False

    def leave(self, offset: int) -> bool:
        """Passes a letter that is left for a later replay; returns whether there is room to."""
        if self._leaving:
            self._left[-1] = self._left[-1][0], offset + 1
        else:
            self._left.append((offset, offset + 1))
            if len(self.progress.text) > _MAX_TEXT:
                del self._left[-1]
                return False
        self._at, self._leaving = offset + 1, True
        return True

    @property
    def progress(self) -> PartitionProgress:
        """How far the partition is replayed now."""
        rest = ((max(self._at, a), end) for a, end in self._before.left if end > self._at)
        return PartitionProgress(max(self._before.offset, self._at), (*self._left, *rest))


def replay_offsets(
    letters: DeadLetterTopic, partitions: Iterable[int] | None = None, *, stable: bool = True
) -> dict[int, CommittedOffset]:
    """A topic's offsets, by partition; not by librdkafka, which hides why it can't tell.

    Without partitions, those of all. ``stable`` waits for a replay's open transaction. Brokers
    forget the offsets some time after the last replay.

    Raises:
        AuthorizationError: The group may not be described.
    """
    deadline = Deadline(letters.timeout, "--timeout")
    with closing(Connections(letters.settings)) as connections:
        found = cluster.topics(connections, [letters.name], deadline)
        ids = {name: one.topic_id for name, one in found.items()}
        if partitions is None:
            partitions = range(found[letters.name].partitions) if found else ()
        own = [TopicPartition(letters.name, partition) for partition in partitions]
        group = replay_group(letters.name)
        offsets = group_offsets(connections, group, own, ids, deadline, stable=stable)
    return {partition: committed for (_, partition), committed in offsets.items()}


def replayed(letters: DeadLetterTopic) -> dict[int, PartitionProgress]:
    """How far each partition was replayed, as far as it is known; raises as `replay_offsets`."""
    found = replay_offsets(letters, stable=False)
    return {partition: PartitionProgress.of(one, 0) for partition, one in found.items()}
