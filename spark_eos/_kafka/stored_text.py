"""The texts that outlive a run: of committed offsets and of checkpoints' markers; no I/O.

Both are an object of JSON with the number of its format, and say the same things by the same
fields, which are read and written here.
"""

import base64
import json
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from itertools import compress, groupby
from typing import Any, Final, NamedTuple

from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION, TOPIC_NAME
from spark_eos._client.persisted import FORMAT, check_format
from spark_eos._client.strict_json import matched, whole
from spark_eos._kafka.copy_names import batch_of_copy
from spark_eos._kafka.topic_partition import TopicPartition

FORMAT_KEY: Final = "spark-eos"
# As checkpoints' markers had it.
_FORMAT_KEY_BEFORE: Final = "format"
# Limits that keep an offset's text within offset.metadata.max.bytes, 4096 by default.
_MAX_LIST: Final = 1_500
_MAX_BITS: Final = _MAX_LIST // 4 * 3  # bytes before they are text
# What a text may tell: a topic has fewer partitions by far.
_MAX_PARTITIONS: Final = 100_000
_RANGES: Final = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*|")
_BITS: Final = re.compile(r"[0-9A-Za-z+/]*={0,2}")
SHORT_IDS: Final = re.compile(r"[0-9a-z ]*")
_CLUSTER: Final = re.compile(r"[ -~]{0,255}")
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_QUERY: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")


def encode(fields: Mapping[str, Any]) -> str:
    """The text of some fields, without those that are None.

    Example:
        >>> encode({"partitions": "0-2", "suspect": None})
        '{"spark-eos":2,"partitions":"0-2"}'
    """
    given = {name: value for name, value in fields.items() if value is not None}
    return compact({FORMAT_KEY: FORMAT, **given})


def compact(fields: Mapping[str, Any]) -> str:
    """JSON without spaces."""
    return json.dumps(fields, separators=(",", ":"))


def check_text_format(fields: Mapping[str, Any], what: str, *, otherwise: str = "") -> None:
    """Refuses a text that another version of spark-eos has written; see `check_format`."""
    found = fields.get(FORMAT_KEY, fields.get(_FORMAT_KEY_BEFORE))
    check_format(found, what, otherwise=otherwise)


def ranges_of(numbers: Iterable[int]) -> str:
    """Formats numbers as ranges: ``{0, 1, 2, 5}`` as ``0-2,5``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)


def numbers_in(ranges: str) -> Iterable[int]:
    """Yields the numbers of ranges as `ranges_of` formats them."""
    after = 0
    for part in filter(None, matched(ranges, _RANGES).split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not after <= begin <= end < _MAX_PARTITIONS:
            raise ValueError("not ranges of partitions")
        yield from range(begin, end + 1)
        after = end + 1


def index_fields(numbers: Collection[int]) -> dict[str, str]:
    """Formats partitions' numbers for a text, in which many ranges would have no room.

    ``among`` then has a bit for each number in ``partitions``: whether the partition is known.
    """
    ranges = ranges_of(numbers)
    if len(ranges) <= _MAX_LIST:
        return {"partitions": ranges}
    first, last = min(numbers), max(numbers)
    fields = {"partitions": f"{first}-{last}"}
    size = (last - first) // 8 + 1
    # Better too many: a partition wrongly listed as known is refused, never lost.
    if size <= _MAX_BITS:
        bits = sum(1 << number - first for number in numbers)
        fields["among"] = base64.b64encode(bits.to_bytes(size, "big")).decode()
    return fields


def indexes_in(fields: Mapping[str, Any]) -> Iterable[int]:
    """Returns the numbers of what `index_fields` has made."""
    numbers = numbers_in(fields["partitions"])
    if "among" not in fields:
        return numbers
    bits = int.from_bytes(base64.b64decode(matched(fields["among"], _BITS)), "big")
    return compress(numbers, map(int, reversed(f"{bits:b}")))


class SuspectRange(NamedTuple):
    """A range of source offsets below the committed one that may not have been written.

    Attributes:
        after: Offset after the last one of the range.
    """

    first: int
    after: int

    @classmethod
    def parse(cls, fields: Any) -> "SuspectRange":
        """Reads what `as_json` has made."""
        first, after = fields
        return cls(whole(first, MAX_OFFSET), whole(after, MAX_OFFSET))

    def as_json(self) -> list[int]:
        """The range as a value of JSON."""
        return [self.first, self.after]


class StagedBatch(NamedTuple):
    """The last staged batch of a query, as the offset of progress partition 0 tells.

    The file of progress partition ``n`` is written when the group's offset there has reached
    ``(batch + 1) << 32``; before, the offset is ``batch << 32 | row``, the next row to write.

    Attributes:
        query: Spark's id of the query.
        batch: Number of the batch.
        directory: Holds the batch's files; None for a batch without rows.
        rows: Number of rows in all files.
        files: The most files it may have, for the progress partitions from 1 on.
        fingerprint: 16 hexadecimal digits that tell one range of source offsets from another.

    Example:
        >>> batch = StagedBatch("5f1c", 7, "7-ab12cd34", 1_000, 32, "00d1e4a77b3c9f52")
        >>> StagedBatch.parse(batch.as_json()) == batch
        True
    """

    query: str
    batch: int
    directory: str | None
    rows: int
    files: int
    fingerprint: str

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "StagedBatch":
        """Reads what `as_json` has made."""
        batch, directory = whole(fields["batch"], MAX_PARTITION), fields["directory"]
        if directory is not None and (
            not isinstance(directory, str) or batch_of_copy(directory) != batch
        ):
            raise ValueError("not the name of a copy of the batch")
        return cls(
            query=matched(fields["query"], _QUERY),
            batch=batch,
            directory=directory,
            rows=whole(fields["rows"], MAX_OFFSET),
            files=whole(fields["files"], MAX_PARTITION),
            fingerprint=matched(fields["fingerprint"], _FINGERPRINT),
        )

    def as_json(self) -> dict[str, str | int | None]:
        """The batch as a value of JSON."""
        return self._asdict()


class SourcePartition(NamedTuple):
    """The source partition, in another cluster, that a progress partition stands for.

    Attributes:
        cluster: Id of the source cluster.
        topic: Name of the topic.
        topic_id: Id of the topic; `NO_ID` of a cluster that has none (KIP-516).
        partition: Number of the partition.

    Example:
        >>> source = SourcePartition("9dZ-cluster", "orders", uuid.UUID(int=7), 3)
        >>> SourcePartition.parse(source.as_json()) == source
        True
    """

    cluster: str
    topic: str
    topic_id: uuid.UUID
    partition: int

    @classmethod
    def parse(cls, fields: Any) -> "SourcePartition":
        """Reads what `as_json` has made."""
        cluster, topic, topic_id, partition = fields
        return cls(
            matched(cluster, _CLUSTER),
            matched(topic, TOPIC_NAME),
            uuid.UUID(matched(topic_id, _UUID)),
            whole(partition, MAX_PARTITION),
        )

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and number, as its own cluster knows it."""
        return TopicPartition(self.topic, self.partition)

    def as_json(self) -> list[str | int]:
        """The partition as a value of JSON."""
        return [self.cluster, self.topic, self.topic_id.hex, self.partition]
