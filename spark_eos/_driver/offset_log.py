"""Spark's offset log: which source offsets a micro-batch covers.

Formats: Spark's OffsetSeqLog v1, one JSON line per source in source order, and v2 (Spark 4.1),
with each line prefixed by the source's name. A batch's end offsets are in ``offsets/<batch>``, its
start offsets in ``offsets/<batch - 1>``; those of batch 0 are in ``sources/<source>/0``.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_eos._batch.plan import BatchRange, Positions
from spark_eos._driver.checkpoint_marker import Marker
from spark_eos._driver.marker_files import Files, MarkerFiles
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import CheckpointError

_PREFIX: Final = re.compile(r"^[^\s{\"]+:(?=\{)")
_NO_OFFSET: Final = "-"
_PARTS: Final = ("commits", "offsets", "sources", "state")


def parse_positions(lines: list[str], where: str) -> Positions:
    """Merges the Kafka offsets of all sources of one offset log entry.

    Example:
        >>> found = parse_positions(['{"orders":{"0":5,"1":7}}'], "offsets/0")
        >>> found[TopicPartition("orders", 1)]
        7
    """
    positions: Positions = {}
    for line in lines:
        text = _PREFIX.sub("", line.strip())
        if not text or text == _NO_OFFSET:
            continue
        try:
            found = _positions(text)
        except (ValueError, AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{where} holds a source whose offsets are not Kafka's: {text[:200]!r}. "
                "All sources of the query must come from sink.read"
            ) from error
        for partition in found.keys() & positions.keys():
            raise CheckpointError(
                f"{where}: two sources of the query read {partition}; a group has one "
                "offset per partition, so read each topic only once"
            )
        positions.update(found)
    return positions


def _positions(text: str) -> Positions:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in json.loads(text).items()
        for partition, offset in partitions.items()
    }


def kafka_positions(text: str) -> Positions:
    """A source's offsets, if they look like Kafka's; empty if they don't.

    Example:
        >>> kafka_positions('{"orders":{"0":5}}'), kafka_positions('{"logOffset":3}')
        ({TopicPartition(topic='orders', partition=0): 5}, {})
    """
    try:
        return _positions(text)
    except (ValueError, AttributeError, TypeError):
        return {}


def fingerprint_of(began_ms: int, ends: Iterable[str]) -> str:
    """A fingerprint of a batch: see `OffsetLog.fingerprint`.

    Example:
        >>> fingerprint_of(0, ['{"a": 1}', "-"]) == fingerprint_of(0, ['{"a":1}'])
        True
    """
    texts = sorted(_canonical(text) for text in ends if text not in ("", _NO_OFFSET))
    digest = hashlib.sha256(json.dumps([began_ms, texts]).encode())
    return digest.hexdigest()[:16]


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def _entry(text: str, where: str) -> Positions:
    version, _, body = text.partition("\n")
    if version.strip() not in ("v1", "v2"):
        raise CheckpointError(f"{where} has the unknown format {version!r}")
    _metadata, *lines = body.split("\n")
    return parse_positions(lines, where)


def _place(files: Files) -> str:
    return f"checkpoint_location {files.location!r}"


def _initial(files: Files) -> Positions:
    lines = []
    for name in sorted(files.names("sources")):
        text = files.read(f"sources/{name}/0")
        if text is None:
            raise CheckpointError(f"sources/{name}/0 is missing from {_place(files)}")
        lines.append(text.partition("\n")[2])
    return parse_positions(lines, f"sources of {_place(files)}")


@dataclass(frozen=True)
class FinishedBatches:
    """How far a query has come, according to its checkpoint.

    Attributes:
        last: Spark's number of the last finished batch; None if there is none.
        unfinished: Number of the batch that has begun but not finished; None if there is none.
        ends: The offsets after the finished batches, by partition.
    """

    last: int | None
    unfinished: int | None
    ends: Positions


def _greatest(names: list[str]) -> int | None:
    return max((int(name) for name in names if name.isdecimal()), default=None)


class OffsetLog:
    """Reads batch ranges from a checkpoint."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._last: tuple[int, Positions] | None = None
        self._last_lines: tuple[int, dict[str, str]] | None = None
        self._query_id: str | None = None
        self._markers = MarkerFiles(files)

    @property
    def location(self) -> str:
        """The checkpoint's location, as given to Spark."""
        return self._files.location

    def query_id(self) -> str:
        """The id of the query that the checkpoint belongs to."""
        if self._query_id is None:
            text = self._files.read("metadata")
            if text is None:
                raise self._no_checkpoint()
            try:
                self._query_id = str(json.loads(text)["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise CheckpointError(
                    f"metadata of {_place(self._files)} can't be read: {text[:200]!r}. Put that "
                    "file back as it was, from a copy of the checkpoint"
                ) from error
        return self._query_id

    def _no_checkpoint(self) -> CheckpointError:
        place = _place(self._files)
        found = [name for name in _PARTS if self._files.names(name)]
        if found:
            return CheckpointError(
                f"{place} has {', '.join(found)} but no metadata: it is only a part of a "
                "checkpoint. Put back what was deleted or not copied"
            )
        return CheckpointError(
            f"there is no streaming checkpoint at {place}, which is empty or does not exist; it "
            "must be the location that the query itself uses (sink.write sets it)"
        )

    def latest(self) -> int:
        """The batch that Spark began last."""
        begun = self._begun()
        if begun is None:
            raise CheckpointError(f"{_place(self._files)} has no offsets: no batch has begun")
        return begun

    @property
    def begun(self) -> bool:
        """Whether Spark has begun a batch."""
        return self._begun() is not None

    def next_batch(self) -> int:
        """The batch that Spark runs next."""
        finished = _greatest(self._files.names("commits"))
        return 0 if finished is None else finished + 1

    def _begun(self) -> int | None:
        return _greatest(self._files.names("offsets"))

    def _ends(self, batch_id: int) -> Positions:
        if self._last is not None and self._last[0] == batch_id:
            return self._last[1]
        text = self._files.read(f"offsets/{batch_id}")
        if text is None:
            raise self._missing(batch_id)
        return _entry(text, f"offsets/{batch_id} of {_place(self._files)}")

    def _missing(self, batch_id: int) -> CheckpointError:
        begun = self._begun()
        last = "it has none" if begun is None else f"its last one is {begun}"
        return CheckpointError(
            f"offsets/{batch_id} is missing from {_place(self._files)} ({last}); that must be the "
            "location that the query itself uses (sink.write sets it)"
        )

    def finished(self) -> FinishedBatches:
        """How far the query has finished its batches; for a stopped query."""
        self.query_id()
        if self.marker().log_may_lag:
            raise CheckpointError(
                f"the logs of {_place(self._files)} may lie behind what is written, since "
                "spark-eos wrote from it with asynchronous_progress: only its group's offsets "
                f"tell how far that is ({self.marker().group_id!r}; spark-eos status shows them)"
            )
        begun = self._begun()
        last = _greatest(self._files.names("commits"))
        if begun is None:
            raise CheckpointError(
                f"{_place(self._files)} has no batch: the query has written nothing, so there is "
                "nothing to continue from"
            )
        ends = _initial(self._files) if last is None else self._ends(last)
        return FinishedBatches(last, begun if begun != last else None, ends)

    def initial(self) -> Positions:
        """The start offsets of the first batch."""
        return _initial(self._files)

    def batch_range(self, batch_id: int) -> BatchRange:
        """The range of a batch that Spark has begun."""
        starts = self._ends(batch_id - 1) if batch_id > 0 else self.initial()
        ends = self._ends(batch_id)
        self._last = (batch_id, ends)
        return BatchRange(batch_id, starts, ends)

    def source_ranges(self, batch_id: int) -> list[BatchRange]:
        """The range of a batch in each of its sources that is Kafka; of any other there is none."""
        # First: the last lines read are kept.
        starts = self._lines(batch_id - 1) if batch_id > 0 else self._initial_lines()
        ranges = [
            BatchRange(batch_id, kafka_positions(starts.get(name, "")), kafka_positions(text))
            for name, text in self._lines(batch_id).items()
        ]
        return [range_ for range_ in ranges if range_.ends]

    def _lines(self, batch_id: int) -> dict[str, str]:
        """A batch's end offsets, by the source's name or number."""
        if self._last_lines is not None and self._last_lines[0] == batch_id:
            return self._last_lines[1]
        text = self._files.read(f"offsets/{batch_id}")
        if text is None:
            raise self._missing(batch_id)
        found = {}
        for number, line in enumerate(text.split("\n")[2:]):
            named = _PREFIX.match(line.strip())
            name = named[0][:-1] if named else str(number)
            found[name] = _PREFIX.sub("", line.strip())
        self._last_lines = batch_id, found
        return found

    def _initial_lines(self) -> dict[str, str]:
        texts = {
            name: self._files.read(f"sources/{name}/0") for name in self._files.names("sources")
        }
        return {name: (text or "").partition("\n")[2].strip() for name, text in texts.items()}

    def began_ms(self, batch_id: int) -> int:
        """When Spark first began a batch, in milliseconds since 1970.

        By the clock of the driver at that time; 0 if the offset log does not have it.
        """
        lines = (self._files.read(f"offsets/{batch_id}") or "").split("\n", 2)
        try:
            return int(json.loads(lines[1])["batchTimestampMs"])
        except (IndexError, KeyError, TypeError, ValueError):
            return 0

    def fingerprint(self, batch_id: int) -> str:
        """A fingerprint of what a batch consists of: its sources' end offsets, and when it began.

        A batch that Spark repeats from the checkpoint keeps it; one that Spark has planned anew,
        after an older checkpoint was put back, does not.
        """
        text = self._files.read(f"offsets/{batch_id}")
        if text is None:
            raise self._missing(batch_id)
        lines = [_PREFIX.sub("", line.strip()) for line in text.split("\n")[2:]]
        return fingerprint_of(self.began_ms(batch_id), lines)

    def marker(self) -> Marker:
        """What the checkpoint's offsets belong to, as last noted."""
        return self._markers.read()

    def set_marker(self, marker: Marker) -> None:
        """Notes what the checkpoint's offsets belong to, before the first row is written.

        Topics and partitions that are no longer read stay in the marker.
        """
        self._markers.write(marker.following(self.marker()))
