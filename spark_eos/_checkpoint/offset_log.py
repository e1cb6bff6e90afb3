"""Spark's offset log: which source offsets a micro-batch covers."""

# Formats: Spark's OffsetSeqLog v1, one JSON line per source in source order, and v2 (Spark 4.1),
# with each line prefixed by the source's name. A batch's end offsets are in offsets/<batch>, its
# start offsets in offsets/<batch - 1>. Batch 0's start offsets are in sources/<source>/0.

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from cachetools import LRUCache

from spark_eos._checkpoint.marker import Files, MarkerFiles
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import CheckpointError

_PREFIX: Final = re.compile(r"^[^\s{\"]+:(?=\{)")
_NO_OFFSET: Final = "-"
_PARTS: Final = ("commits", "offsets", "sources", "state")
_RESTORE: Final = "Restore that file from a copy of the checkpoint"
CONTINUE_EMPTY: Final = (
    "start with an empty checkpoint_location and the same group_id: the query then continues from "
    "the group's offsets"
)
"""How a direct or mirrored query continues without its checkpoint."""


def parse_positions(lines: Iterable[str], where: str) -> Positions:
    """Merge the Kafka offsets of all sources of one offset log entry."""
    positions: Positions = {}
    for line in lines:
        text = _PREFIX.sub("", line.strip())
        if not text or text == _NO_OFFSET:
            continue
        try:
            by_source = _positions(text)
        except (ValueError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{where} holds a source whose offsets are not Kafka's: {text[:200]!r}. "
                "All sources of the query must come from sink.read"
            ) from error
        for partition in by_source.keys() & positions.keys():
            raise CheckpointError(
                f"{where}: two sources of the query read {partition}; a group has one "
                "offset per partition, so read each topic only once"
            )
        positions.update(by_source)
    return positions


def _positions(text: str) -> Positions:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in json.loads(text).items()
        for partition, offset in partitions.items()
    }


def kafka_positions(text: str) -> Positions:
    """Return a source's offsets if they look like Kafka's, else no offsets."""
    try:
        return _positions(text)
    except (ValueError, AttributeError, TypeError):
        return {}


def fingerprint_of(began_ms: int, ends: Iterable[str]) -> str:
    """Return a fingerprint of a batch: see `OffsetLog.fingerprint`."""
    texts = sorted(_canonical(text) for text in ends if text not in ("", _NO_OFFSET))
    digest = hashlib.sha256(json.dumps([began_ms, texts]).encode())
    return digest.hexdigest()[:16]


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


class LogEntry(NamedTuple):
    """Spark's log entry of a batch."""

    version: str
    began_ms: int  # by the driver's clock; 0 if the entry does not have it
    lines: list[str]  # the batch's end offsets in each source

    @classmethod
    def of(cls, text: str) -> "LogEntry":
        lines = [line.strip() for line in text.split("\n")]
        try:
            began_ms = int(json.loads(lines[1])["batchTimestampMs"])
        except (IndexError, KeyError, TypeError, ValueError):
            began_ms = 0
        return cls(lines[0], began_ms, lines[2:])

    def by_source(self) -> dict[str, str]:
        """Return the end offsets by the source's name or number."""
        if self.version == "v1":
            return {str(number): line for number, line in enumerate(self.lines) if line}
        named = (line.partition(":") for line in self.lines if line)
        return {name: text for name, _, text in named}


def _place(files: Files) -> str:
    return f"checkpoint_location {files.location!r}"


@dataclass(frozen=True)
class FinishedBatches:
    """A query's progress according to its checkpoint: batch numbers and end offsets."""

    last: int | None
    unfinished: int | None
    ends: Positions


def numbers(files: Files, directory: str) -> list[int]:
    """Return the numbers of the batches for which a directory has files, in order."""
    return sorted(int(name) for name in files.names(directory) if name.isdecimal())


class OffsetLog:
    """Reads batch ranges from a checkpoint."""

    def __init__(self, files: Files, cure: str = _RESTORE) -> None:
        self._files = files
        self._cure = cure
        # Keep two entries, because a batch's range needs both: it starts where the previous batch
        # ends.
        self._entries: LRUCache[int, LogEntry] = LRUCache(2)
        self._query_id: str | None = None
        self.markers = MarkerFiles(files)

    @property
    def location(self) -> str:
        return self._files.location

    def query_id(self) -> str:
        if self._query_id is None:
            text = self._files.read("metadata")
            if text is None:
                raise self._no_checkpoint()
            try:
                self._query_id = str(json.loads(text)["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise CheckpointError(
                    f"metadata of {_place(self._files)} can't be read: {text[:200]!r}. {self._cure}"
                ) from error
        return self._query_id

    def exists(self) -> bool:
        """Return True if Spark has written any files at the location."""
        if self._files.read("metadata") is not None:
            return True
        return any(self._files.names(name) for name in _PARTS)

    def _no_checkpoint(self) -> CheckpointError:
        place = _place(self._files)
        parts = [name for name in _PARTS if self._files.names(name)]
        if parts:
            return CheckpointError(
                f"{place} has {', '.join(parts)} but no metadata: it is only part of a "
                f"checkpoint. {self._cure}"
            )
        return CheckpointError(
            f"there is no streaming checkpoint at {place}, which is empty or does not exist; it "
            "must be the location that the query itself uses (sink.write sets it)"
        )

    @property
    def begun(self) -> int | None:
        """The last batch that Spark began; None if there is none."""
        return max(numbers(self._files, "offsets"), default=None)

    @property
    def _finished(self) -> int | None:
        return max(numbers(self._files, "commits"), default=None)

    def next_batch(self) -> int:
        """Return the batch that Spark runs next."""
        finished = self._finished
        return 0 if finished is None else finished + 1

    def _entry(self, batch_id: int) -> LogEntry:
        if batch_id not in self._entries:
            text = self._files.read(f"offsets/{batch_id}")
            if text is None:
                raise self._missing(batch_id)
            self._entries[batch_id] = LogEntry.of(text)
        return self._entries[batch_id]

    def _ends(self, batch_id: int) -> Positions:
        entry, where = self._entry(batch_id), f"offsets/{batch_id} of {_place(self._files)}"
        if entry.version not in ("v1", "v2"):
            raise CheckpointError(f"{where} has the unknown format {entry.version!r}")
        return parse_positions(entry.lines, where)

    def _missing(self, batch_id: int) -> CheckpointError:
        begun = self.begun
        last = "it has none" if begun is None else f"its last one is {begun}"
        return CheckpointError(
            f"offsets/{batch_id} is missing from {_place(self._files)} ({last}); that must be the "
            "location that the query itself uses (sink.write sets it)"
        )

    def finished(self) -> FinishedBatches:
        """Return a stopped query's progress in finished batches."""
        self.query_id()
        if self.markers.read().checkpoint_may_lag:
            raise CheckpointError(
                f"the logs of {_place(self._files)} may lag behind the written rows, because "
                "the query ran with asynchronous_progress: only the offsets of its consumer group "
                f"show how far the query got ({self.markers.read().group_id!r}; spark-eos status "
                "shows them)"
            )
        begun, last = self.begun, self._finished
        if begun is None:
            raise CheckpointError(
                f"{_place(self._files)} has no batch: the query has written nothing, so there is "
                "nothing to continue from"
            )
        ends = self.initial() if last is None else self._ends(last)
        return FinishedBatches(last, begun if begun != last else None, ends)

    def _first(self) -> dict[str, str | None]:
        """Return where the first batch starts, by source name; None if a source has no file."""
        logged: dict[str, str | None] = {}
        for name in sorted(self._files.names("sources")):
            text = self._files.read(f"sources/{name}/0")
            logged[name] = None if text is None else text.partition("\n")[2].strip()
        return logged

    def initial(self) -> Positions:
        """Return the start offsets of the first batch."""
        lines = []
        for name, line in self._first().items():
            if line is None:
                raise CheckpointError(f"sources/{name}/0 is missing from {_place(self._files)}")
            lines.append(line)
        return parse_positions(lines, f"sources of {_place(self._files)}")

    def batch_range(self, batch_id: int) -> BatchRange:
        """Return the range of a batch that Spark has begun."""
        starts = self._ends(batch_id - 1) if batch_id > 0 else self.initial()
        return BatchRange(batch_id, starts, self._ends(batch_id))

    def source_ranges(self, batch_id: int) -> list[BatchRange]:
        """Return a batch's range in each of its Kafka sources; other sources have none."""
        starts = self._entry(batch_id - 1).by_source() if batch_id > 0 else self._first()
        ranges = [
            BatchRange(batch_id, kafka_positions(starts.get(name) or ""), kafka_positions(text))
            for name, text in self._entry(batch_id).by_source().items()
        ]
        return [range_ for range_ in ranges if range_.ends]

    def partitions(self, others: Collection[str] = ()) -> set[TopicPartition]:
        """Return the partitions that Spark's last batch reads, or that the first one would read.

        ``others`` are the numbers of sources that are not Kafka: their offsets may look like it.
        """
        begun = self.begun
        ends = self._first() if begun is None else self._entry(begun).by_source()
        texts = (text or "" for name, text in ends.items() if name not in others)
        return {partition for text in texts for partition in kafka_positions(text)}

    def fingerprint(self, batch_id: int) -> str:
        """Return a fingerprint of a batch's end offsets and the time when it began."""
        # A batch that Spark repeats from the checkpoint keeps its fingerprint. A batch that Spark
        # plans again after an older checkpoint was restored does not.
        entry = self._entry(batch_id)
        return fingerprint_of(entry.began_ms, (_PREFIX.sub("", line) for line in entry.lines))


class LogFiles(Files, Protocol):
    """The file operations for completing Spark's own logs in a checkpoint."""

    # Unless Spark tracks progress asynchronously, which it never does with availableNow, Spark
    # needs the entry of the batch before the last one. If that entry is missing, an earlier entry
    # is copied.

    def copy_file(self, source: str, target: str) -> None:
        """Create a file with another file's text; it appears complete or not at all."""


def complete_logs(files: LogFiles, *, every_batch: bool) -> int | None:
    """Add the log entry that Spark needs after asynchronous progress; return its batch, if any."""
    if not OffsetLog(files).markers.read().checkpoint_may_lag:
        return None
    logged = numbers(files, "offsets")
    if not logged:
        return None
    last = logged[-1]
    if not every_batch or last == 0 or last - 1 in logged:
        return None
    if len(logged) == 1:
        raise CheckpointError(
            f"checkpoint_location {files.location!r} has the offsets of batch {last}, but of no "
            f"earlier batch. Restore the deleted files, or {CONTINUE_EMPTY}"
        )
    # Do as Spark does in its asynchronous mode: each batch starts where the previously logged batch
    # ends. The group's offsets show which records have been written since.
    files.copy_file(f"offsets/{logged[-2]}", f"offsets/{last - 1}")
    return last - 1
