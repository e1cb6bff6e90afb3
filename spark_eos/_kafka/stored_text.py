"""The texts that outlive a run: of committed offsets and of checkpoints' markers; no I/O."""

# Both are an object of JSON with the number of its format. Another client may have written an
# offset's text, so it is bounded before it is read, and each field has to be one that is written
# here.

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from itertools import compress, groupby
from typing import Any, Final, NamedTuple, NoReturn

from spark_eos._client.header_values import MAX_OFFSET, MAX_PARTITION, TOPIC_NAME
from spark_eos._client.persisted import FORMAT, check_format
from spark_eos._kafka.topic_partition import TopicPartition

FORMAT_KEY: Final = "spark-eos"
# As checkpoints' markers had it.
_FORMAT_KEY_BEFORE: Final = "format"
# offset.metadata.max.bytes, unless brokers have another one.
_MAX_CHARS: Final = 4_096
# The parser calls itself for each list or object in another one.
_MAX_NESTED: Final = 8
# Limits that keep an offset's text within offset.metadata.max.bytes.
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
# No other name is ever made a path.
_COPY: Final = re.compile(r"(0|[1-9][0-9]{0,9})-[0-9a-f]{8}")
# Every offset's text has its owner, so both parts are short. Of Spark's random id of a query:
# enough to tell the queries of a group apart, and to be copied by hand.
_ID_CHARS: Final = 8
_TARGET_CHARS: Final = 64
_HASH_CHARS: Final = 8
_OWNER: Final = re.compile(rf"[0-9A-Za-z-]{{1,{_ID_CHARS}}}")
# No topic has a "~" in its name.
_TARGET: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{_TARGET_CHARS}}}(~[0-9a-f]{{{_HASH_CHARS}}})?")


def encode(fields: Mapping[str, Any]) -> str:
    """Return the text of some fields, without those that are None."""
    given = {name: value for name, value in fields.items() if value is not None}
    return compact({FORMAT_KEY: FORMAT, **given})


def compact(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def strict_object(text: str) -> dict[str, Any]:
    """Read an object; of numbers it takes only integers."""
    if len(text) > _MAX_CHARS or text.count("[") + text.count("{") > _MAX_NESTED:
        raise ValueError("too long, or too deeply nested")
    fields = json.loads(text, parse_constant=_refuse, parse_float=_refuse)
    if not isinstance(fields, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of the text, as all other errors
    return fields


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"not an integer: {number}")


def _whole(value: object, most: int) -> int:
    """Return an integer from 0 to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError("not such an integer")
    return value


def matched(value: object, pattern: re.Pattern[str]) -> str:
    """Return a string that matches a pattern as a whole."""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError("not such a text")
    return value


def check_text_format(fields: Mapping[str, Any], what: str, *, otherwise: str = "") -> None:
    """Refuse a text that another version of spark-eos has written; see `check_format`."""
    version = fields.get(FORMAT_KEY, fields.get(_FORMAT_KEY_BEFORE))
    check_format(version, what, otherwise=otherwise)


def ranges_of(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: ``{0, 1, 2, 5}`` as ``0-2,5``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    groups = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in groups)


def numbers_in(ranges: str) -> Iterable[int]:
    """Yield the numbers of ranges as `ranges_of` formats them."""
    after = 0
    for part in filter(None, matched(ranges, _RANGES).split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not after <= begin <= end < _MAX_PARTITIONS:
            raise ValueError("not ranges of partitions")
        yield from range(begin, end + 1)
        after = end + 1


def index_fields(numbers: Collection[int]) -> dict[str, str]:
    """Format partitions' numbers for a text, in which many ranges would have no room."""
    ranges = ranges_of(numbers)
    if len(ranges) <= _MAX_LIST:
        return {"partitions": ranges}
    first, last = min(numbers), max(numbers)
    fields = {"partitions": f"{first}-{last}"}
    size = (last - first) // 8 + 1
    # Better too many: a partition wrongly listed as known is refused, never lost.
    if size <= _MAX_BITS:
        # A bit for each number in `partitions`: whether the partition is known.
        bits = sum(1 << number - first for number in numbers)
        fields["among"] = base64.b64encode(bits.to_bytes(size, "big")).decode()
    return fields


# Each offset of a mirrored query has another text, and all have the same list.
@lru_cache(maxsize=16)
def indexes_in(partitions: str, among: str) -> frozenset[int]:
    """Return the numbers of what `index_fields` has made; ``among`` is "" if it is not there."""
    numbers = numbers_in(partitions)
    if among == "":
        return frozenset(numbers)
    bits = int.from_bytes(base64.b64decode(matched(among, _BITS)), "big")
    return frozenset(compress(numbers, map(int, reversed(f"{bits:b}"))))


class SuspectRange(NamedTuple):
    """Source offsets from ``first`` on, before ``after``, that may not have been written."""

    first: int
    after: int

    @classmethod
    def parse(cls, fields: Any) -> "SuspectRange":
        first, after = fields
        return cls(_whole(first, MAX_OFFSET), _whole(after, MAX_OFFSET))


def new_copy_name(batch_id: int) -> str:
    return f"{batch_id}-{uuid.uuid4().hex[:8]}"


def batch_of_copy(name: str) -> int | None:
    """Return the batch that a copy is of; None for a name that `new_copy_name` never makes."""
    match = _COPY.fullmatch(name)
    return None if match is None else int(match[1])


class StagedBatch(NamedTuple):
    """A query's last staged batch, as the offset of progress partition 0 tells."""

    # The file of progress partition n is written when the group's offset there has reached
    # (batch + 1) << 32; before, the offset is batch << 32 | row, the next row to write.

    query: str
    batch: int
    # None for a batch without rows.
    directory: str | None
    rows: int
    # The most files it may have, for the progress partitions from 1 on.
    files: int
    # 16 hexadecimal digits that tell one range of source offsets from another.
    fingerprint: str

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "StagedBatch":
        batch, directory = _whole(fields["batch"], MAX_PARTITION), fields["directory"]
        if directory is not None and (
            not isinstance(directory, str) or batch_of_copy(directory) != batch
        ):
            raise ValueError("not the name of a copy of the batch")
        return cls(
            query=matched(fields["query"], _QUERY),
            batch=batch,
            directory=directory,
            rows=_whole(fields["rows"], MAX_OFFSET),
            files=_whole(fields["files"], MAX_PARTITION),
            fingerprint=matched(fields["fingerprint"], _FINGERPRINT),
        )

    def as_json(self) -> dict[str, str | int | None]:
        return self._asdict()


class SourcePartition(NamedTuple):
    """The source partition, in another cluster, that a progress partition stands for."""

    cluster: str
    topic: str
    # `NO_ID` of a cluster that has none (KIP-516).
    topic_id: uuid.UUID
    partition: int

    @classmethod
    def parse(cls, fields: Any) -> "SourcePartition":
        cluster, topic, topic_id, partition = fields
        return cls(
            matched(cluster, _CLUSTER),
            matched(topic, TOPIC_NAME),
            uuid.UUID(matched(topic_id, _UUID)),
            _whole(partition, MAX_PARTITION),
        )

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def as_json(self) -> list[str | int]:
        return [self.cluster, self.topic, self.topic_id.hex, self.partition]


class Owner(NamedTuple):
    """The query that committed an offset, and its default target; None if its rows name theirs."""

    query: str
    target: str | None

    @classmethod
    def of(cls, query_id: str, topic: str | None) -> "Owner":
        """The owner as texts tell it; a long name is cut, and followed by a hash of all of it."""
        if topic is not None and len(topic) > _TARGET_CHARS:
            digest = hashlib.sha256(topic.encode()).hexdigest()[:_HASH_CHARS]
            topic = f"{topic[: _TARGET_CHARS - 1 - _HASH_CHARS]}~{digest}"
        return cls(query_id[:_ID_CHARS], topic)

    @classmethod
    def parse(cls, fields: Any) -> "Owner":
        query, target = fields
        return cls(matched(query, _OWNER), None if target is None else matched(target, _TARGET))

    @property
    def written_to(self) -> str:
        return "the topics that its rows name" if self.target is None else f"{self.target!r}"
