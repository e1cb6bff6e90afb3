"""The texts that outlive a run, in committed offsets and checkpoint markers; no I/O."""

# Each text is a JSON object with the number of its format. Another client may have written an
# offset's text, so its size is checked before it is parsed, and each field must have a form that
# this module writes.

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
# The key in older checkpoint markers.
_FORMAT_KEY_BEFORE: Final = "format"
# The brokers' default of offset.metadata.max.bytes.
_MAX_CHARS: Final = 4_096
# The parser recurses into nested lists and objects.
_MAX_NESTED: Final = 8
# Limits that keep an offset's text within offset.metadata.max.bytes.
_MAX_LIST: Final = 1_500
_MAX_BITS: Final = _MAX_LIST // 4 * 3  # bytes before Base64
# The most partitions that a text may list; real topics have far fewer.
_MAX_PARTITIONS: Final = 100_000
_RANGES: Final = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*|")
_BITS: Final = re.compile(r"[0-9A-Za-z+/]*={0,2}")
SHORT_IDS: Final = re.compile(r"[0-9a-z ]*")
_CLUSTER: Final = re.compile(r"[ -~]{0,255}")
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_QUERY: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")
# The only names that are ever used as paths.
_COPY: Final = re.compile(r"(0|[1-9][0-9]{0,9})-[0-9a-f]{8}")
# Every offset's text contains the owner, so both its parts are short. This many characters of a
# query's random id are enough to distinguish a group's queries, and easy to copy manually.
_ID_CHARS: Final = 8
_TARGET_CHARS: Final = 64
_HASH_CHARS: Final = 8
_OWNER: Final = re.compile(rf"[0-9A-Za-z-]{{1,{_ID_CHARS}}}")
# Topic names can't contain a "~".
_TARGET: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{_TARGET_CHARS}}}(~[0-9a-f]{{{_HASH_CHARS}}})?")


def encode(fields: Mapping[str, Any]) -> str:
    """Format fields as a text, leaving out fields that are None."""
    given = {name: value for name, value in fields.items() if value is not None}
    return compact({FORMAT_KEY: FORMAT, **given})


def compact(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def strict_object(text: str) -> dict[str, Any]:
    """Parse an object whose numbers must all be integers."""
    if len(text) > _MAX_CHARS or text.count("[") + text.count("{") > _MAX_NESTED:
        raise ValueError("too long, or too deeply nested")
    fields = json.loads(text, parse_constant=_refuse, parse_float=_refuse)
    if not isinstance(fields, dict):
        raise ValueError("not an object")  # noqa: TRY004 - about the text, like all other errors
    return fields


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"not an integer: {number}")


def _whole(value: object, most: int) -> int:
    """Return the value; raise ValueError if it is not an integer from 0 to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"not an integer from 0 to {most}")
    return value


def matched(value: object, pattern: re.Pattern[str]) -> str:
    """Return the value; raise ValueError if it is not a string that matches the pattern."""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError("not a string of the expected form")
    return value


def check_text_format(fields: Mapping[str, Any], what: str, *, otherwise: str = "") -> None:
    """Refuse a text written by another version of spark-eos; see `check_format`."""
    version = fields.get(FORMAT_KEY, fields.get(_FORMAT_KEY_BEFORE))
    check_format(version, what, otherwise=otherwise)


def ranges_of(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: ``{0, 1, 2, 5}`` as ``0-2,5``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    groups = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in groups)


def numbers_in(ranges: str) -> Iterable[int]:
    """Yield the numbers in ranges that were formatted by `ranges_of`."""
    after = 0
    for part in filter(None, matched(ranges, _RANGES).split(",")):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if not after <= begin <= end < _MAX_PARTITIONS:
            raise ValueError("not ranges of partitions")
        yield from range(begin, end + 1)
        after = end + 1


def index_fields(numbers: Collection[int]) -> dict[str, str]:
    """Format partition numbers for a text, which has no room for many ranges."""
    ranges = ranges_of(numbers)
    if len(ranges) <= _MAX_LIST:
        return {"partitions": ranges}
    first, last = min(numbers), max(numbers)
    fields = {"partitions": f"{first}-{last}"}
    size = (last - first) // 8 + 1
    # Listing too many is safe: a partition wrongly listed as known is refused, never lost.
    if size <= _MAX_BITS:
        # One bit for each number in `partitions`, set if the partition is known.
        bits = sum(1 << number - first for number in numbers)
        fields["among"] = base64.b64encode(bits.to_bytes(size, "big")).decode()
    return fields


# Cached: each offset of a mirrored query has a different text, but all texts have the same list.
@lru_cache(maxsize=16)
def indexes_in(partitions: str, among: str) -> frozenset[int]:
    """Parse the fields made by `index_fields`; ``among`` is "" if the field is missing."""
    numbers = numbers_in(partitions)
    if among == "":
        return frozenset(numbers)
    bits = int.from_bytes(base64.b64decode(matched(among, _BITS)), "big")
    return frozenset(compress(numbers, map(int, reversed(f"{bits:b}"))))


class SuspectRange(NamedTuple):
    """Source offsets from ``first`` to just before ``after``, whose records may be unwritten."""

    first: int
    after: int

    @classmethod
    def parse(cls, fields: Any) -> "SuspectRange":
        first, after = fields
        return cls(_whole(first, MAX_OFFSET), _whole(after, MAX_OFFSET))


def new_copy_name(batch_id: int) -> str:
    return f"{batch_id}-{uuid.uuid4().hex[:8]}"


def batch_of_copy(name: str) -> int | None:
    """Return the batch that a copy contains; None for a name that is not a copy's."""
    match = _COPY.fullmatch(name)
    return None if match is None else int(match[1])


class StagedBatch(NamedTuple):
    """A query's last staged batch, from the text of progress partition 0's offset."""

    # The file of progress partition n has been written once the group's offset there has reached
    # (batch + 1) << 32. Until then, the offset is batch << 32 | row; row is the next one to write.

    query: str
    batch: int
    # None for a batch without rows.
    directory: str | None
    rows: int
    # The batch has at most this many files, one for each progress partition from 1 on.
    files: int
    # 16 hexadecimal digits that identify the range of source offsets.
    fingerprint: str

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> "StagedBatch":
        batch, directory = _whole(fields["batch"], MAX_PARTITION), fields["directory"]
        if directory is not None and (
            not isinstance(directory, str) or batch_of_copy(directory) != batch
        ):
            raise ValueError("not the name of a copy of this batch")
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
    # `NO_ID` if the cluster has no topic ids (KIP-516).
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
    """The query that committed an offset, and its default target.

    The target is None if rows name their own topics.
    """

    query: str
    target: str | None

    @classmethod
    def of(cls, query_id: str, topic: str | None) -> "Owner":
        """Build the owner to store; a long topic name is truncated and followed by its hash."""
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
