"""Reads transactions, their markers and offsets from a broker's own log files on disk.

kafka-python reads the batches. Records of the two internal topics have the format of Kafka's
``TransactionLogKey``/``Value.json`` and ``OffsetCommitKey``/``Value.json``.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.record import MemoryRecords

from spark_eos._kafka.topic_partition import TopicPartition

TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
_OFFSET_KEYS = (0, 1)  # other versions are records of groups and their members
_FLEXIBLE = 1  # first version of TransactionLogValue with flexible fields


@dataclass(frozen=True)
class Batch:
    """A record batch. ``commit`` is None unless it is a marker, whose time is the broker's."""

    partition: TopicPartition
    producer_id: int
    transactional: bool
    commit: bool | None
    time_ms: int
    records: list[Any]


@dataclass(frozen=True)
class State:
    """A record of ``__transaction_state``."""

    transactional_id: str
    producer_id: int
    name: str
    partitions: frozenset[TopicPartition]
    time_ms: int


@dataclass(frozen=True)
class GroupOffset:
    """A record of ``__consumer_offsets``; the offset is None in a tombstone.

    Of two committed records, the later one in the log counts, regardless of when their
    transactions ended.
    """

    position: int
    group_id: str
    partition: TopicPartition
    offset: int | None


def batches(data: Path, topic: str) -> Iterator[Batch]:
    """All batches of a topic, in log order for each partition."""
    for directory in sorted(data.glob(f"{topic}-*")):
        name, _, number = directory.name.rpartition("-")
        if name == topic and number.isdigit():
            for segment in sorted(directory.glob("*.log")):
                yield from _batches(TopicPartition(topic, int(number)), segment)


def _batches(partition: TopicPartition, segment: Path) -> Iterator[Batch]:
    # A batch that is still being written at the end is incomplete, and skipped.
    for batch in MemoryRecords(segment.read_bytes()):
        records = list(batch)
        commit = not records[0].abort if batch.is_control_batch else None
        yield Batch(
            partition,
            batch.producer_id,
            batch.is_transactional,
            commit,
            batch.max_timestamp,
            records,
        )


def states(data: Path) -> Iterator[State]:
    """The state records of all transactional ids, in log order for each id."""
    for batch in batches(data, TRANSACTIONS):
        for record in batch.records:
            if record.value is not None:
                key, value = _Reader(record.key), _Reader(record.value)
                key.number("h")
                yield _state(key.text(), value)


def _state(transactional_id: str, value: "_Reader") -> State:
    flexible = value.number("h") >= _FLEXIBLE
    producer_id, _epoch, _timeout, state = value.numbers("qhib")
    partitions = []
    for _ in range(value.length("i", flexible=flexible)):
        topic = value.text(flexible=flexible)
        partitions += [
            TopicPartition(topic, value.number("i"))
            for _ in range(value.length("i", flexible=flexible))
        ]
        if flexible:
            value.skip_tags()
    time_ms = value.number("q")
    return State(transactional_id, producer_id, _STATES[state], frozenset(partitions), time_ms)


def group_offset(record: Any) -> GroupOffset | None:
    """The offset in a record of ``__consumer_offsets``; None for other records."""
    key = _Reader(record.key)
    if key.number("h") not in _OFFSET_KEYS:
        return None
    group_id, topic, partition = key.text(), key.text(), key.number("i")
    offset = None
    if record.value is not None:
        value = _Reader(record.value)
        value.number("h")
        offset = value.number("q")
    return GroupOffset(record.offset, group_id, TopicPartition(topic, partition), offset)


class _Reader:
    """Reads the types of Kafka's protocol, one after another."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def numbers(self, kinds: str) -> tuple[int, ...]:
        found = struct.unpack_from(f">{kinds}", self._content, self._at)
        self._at += struct.calcsize(f">{kinds}")
        return found

    def number(self, kind: str) -> int:
        return self.numbers(kind)[0]

    def length(self, kind: str, *, flexible: bool = False) -> int:
        """The length of an array or a text; 0 for null."""
        return max(0, (self._varint() - 1) if flexible else self.number(kind))

    def text(self, *, flexible: bool = False) -> str:
        size = self.length("h", flexible=flexible)
        self._at += size
        return self._content[self._at - size : self._at].decode()

    def skip_tags(self) -> None:
        for _ in range(self._varint()):
            self._varint()
            self._at += self._varint()

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._content[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return found
