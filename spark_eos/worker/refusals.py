"""What brokers have refused in a task, as rules about records.

A broker that refuses a record batch because it is too large names none of its records: librdkafka
reports all of them as failed, and the transaction must be aborted. So sizes are probed: records
are sent alone, in transactions that are aborted, until it is known from which size on a topic
refuses them. That takes about as many refusals as the number of sizes has binary digits, and no
more for a thousand such records than for one. Timestamps out of a topic's bounds are found in the
same way. Records that a broker names as invalid (KIP-467) are known at once.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError

from spark_eos.batch import dead_letters as reasons
from spark_eos.worker.dead_letters import Fault
from spark_eos.worker.librdkafka_errors import TransactionError

# Only the data's own fault.
REFUSALS_OF_DATA: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
}
# Bytes of a record batch's header (message format 2).
_BATCH_HEADER: Final = 61
# Compressed here, a record has about the size that librdkafka's compression gives it. Sizes that
# are closer to a known one are probed too.
_DOUBT: Final = 1.1

Content = tuple[str, bytes | None, bytes | None]
"""Topic, key and value of a record."""
Measure = tuple[int, int]
"""Bytes of a record, compressed and not; the same number without compression."""


class RefusedRecordsError(TransactionError):
    """A broker has refused records for what they are; the transaction must be aborted.

    Attributes:
        refused: The error's code and the message, of each record that failed so.
    """

    def __init__(self, reason: str, refused: Sequence[tuple[int, Any]]) -> None:
        super().__init__(reason, again=False)
        self.refused = refused


@dataclass
class _Probed:
    """What a topic took, and what it did not."""

    accepted: set[Measure] = field(default_factory=set)
    refused: set[Measure] = field(default_factory=set)


@dataclass
class _Bounds:
    """Timestamps from which on a topic refuses records, the early and the late ones."""

    early: int | None = None
    late: int | None = None

    def exclude(self, timestamp: int) -> bool:
        """Whether a timestamp is known to be refused; 0 stands for the time of writing."""
        early, late = self.early, self.late
        return timestamp > 0 and (
            (early is not None and timestamp <= early) or (late is not None and timestamp >= late)
        )


def batch_size(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Bytes of an uncompressed record batch that holds only this record (message format 2).

    Example:
        >>> batch_size(None, b"x" * 100, [])
        170
    """
    body = 3 + _field(key) + _field(value) + _varint(len(headers))
    body += sum(_field(name.encode()) + _field(content) for name, content in headers)
    return _BATCH_HEADER + _varint(body) + body


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    # Signed numbers are stored zigzag, seven bits in each byte.
    return max(1, ((number << 1).bit_length() + 6) // 7)


class Refusals:
    """The rules of one task.

    Args:
        compression: The producer's compression type; None or ``none`` if it does not compress.
        hints: Sizes that topics refused in earlier tasks of this process, updated in place: they
            tell where to probe first, and decide nothing.
    """

    def __init__(self, compression: str | None, hints: dict[str, int]) -> None:
        self._codec = None if compression in (None, "none") else compression
        self._doubt = 1 if self._codec is None else _DOUBT
        self._hints = hints
        self._sizes: dict[str, _Probed] = {}
        self._bounds: dict[str, _Bounds] = {}
        self._keyless: set[str] = set()
        self._invalid: set[Content] = set()
        self._topics: set[str] = set()

    def concern(self, topics: Sequence[str | None]) -> bool:
        """Whether there are rules about one of the topics."""
        return bool(self._topics) and not self._topics.isdisjoint(topics)

    def fault(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp: int,
    ) -> Fault | None:
        """Why the topic would refuse a record; None if no rule says so."""
        if topic not in self._topics:
            return None
        if key is None and topic in self._keyless:
            text = f"topic {topic!r} is compacted, and the record has no key"
            return Fault(reasons.INVALID_RECORD, text)
        if (topic, key, value) in self._invalid:
            return Fault(reasons.INVALID_RECORD, f"topic {topic!r} takes no such record")
        if topic in self._bounds and self._bounds[topic].exclude(timestamp):
            text = f"its timestamp {timestamp} is out of topic {topic!r}'s bounds"
            return Fault(reasons.INVALID_RECORD, text)
        if topic in self._sizes:
            measure = self._measure(key, value, headers)
            if self._is_too_large(topic, measure):
                return Fault(
                    reasons.TOO_LARGE,
                    f"{measure[0]} bytes are more than topic {topic!r} takes (its "
                    "max.message.bytes)",
                )
        return None

    def _is_too_large(self, topic: str, measure: Measure) -> bool:
        # Which of the two a broker looks at depends on the topic's own compression.
        refused = self._sizes[topic].refused
        return measure in refused or any(
            measure[0] >= size * self._doubt and measure[1] >= raw for size, raw in refused
        )

    def _is_small_enough(self, topic: str, measure: Measure) -> bool:
        return any(
            measure[0] <= size / self._doubt and measure[1] <= raw
            for size, raw in self._sizes[topic].accepted
        )

    # Learning ---------------------------------------------------------------------------------

    def learn(
        self,
        refused: Sequence[tuple[int, Any]],
        accepts: Callable[..., bool],
        timestamps: Callable[[str], Collection[int]],
    ) -> bool:
        """Makes rules of what a broker has refused.

        Args:
            refused: As `RefusedRecordsError.refused`.
            accepts: Sends a record alone, as ``accepts(topic, partition, key, value, headers,
                timestamp)``, and tells whether the broker takes it.
            timestamps: The timestamps of the transaction's rows for a topic, in milliseconds.

        Returns:
            Whether there is a new rule; if not, no record is to blame.
        """
        found: dict[int, list[Any]] = {}
        for code, message in refused:
            found.setdefault(code, []).append(message)
        learned = self._learn_sizes(found.pop(KafkaError.MSG_SIZE_TOO_LARGE, []), accepts)
        timed = set()
        for topic, message in _one_each(m for messages in found.values() for m in messages):
            if self._learn_bounds(topic, message, accepts, timestamps(topic)):
                timed.add(topic)
        # An older broker reports all records of a batch with this one.
        named = found.get(KafkaError.INVALID_RECORD, [])
        learned |= self._learn_invalid([m for m in named if m.topic() not in timed], accepts)
        return learned or bool(timed)

    def _learn_invalid(self, messages: Sequence[Any], accepts: Callable[..., bool]) -> bool:
        learned = False
        for message in messages:
            topic, key = message.topic(), message.key()
            if key is None and topic in self._keyless:
                continue
            content: Content = (topic, key, message.value())
            if content in self._invalid:
                continue
            learned = True
            self._topics.add(topic)
            if key is None and not accepts(topic, message.partition(), None, b"", (), 0):
                self._keyless.add(topic)
            else:
                self._invalid.add(content)
        return learned

    def _learn_bounds(
        self,
        topic: str,
        message: Any,
        accepts: Callable[..., bool],
        timestamps: Collection[int],
    ) -> bool:
        """Finds the first timestamps that the topic refuses, from now on to both sides.

        Messages that have failed do not tell theirs.
        """
        bounds = self._bounds.setdefault(topic, _Bounds())
        open_ = sorted(t for t in timestamps if t > 0 and not bounds.exclude(t))
        content = (message.key(), message.value(), message.headers() or ())
        if not open_ or not accepts(topic, message.partition(), *content, 0):
            return False
        now = time.time() * 1000

        def refuses(timestamp: int) -> bool:
            return not accepts(topic, message.partition(), *content, timestamp)

        late = _first(refuses, [t for t in open_ if t > now])
        early = _first(refuses, [t for t in reversed(open_) if t <= now])
        bounds.late = bounds.late if late is None else late
        bounds.early = bounds.early if early is None else early
        if late is not None or early is not None:
            self._topics.add(topic)
            return True
        return False

    def _learn_sizes(self, messages: Sequence[Any], accepts: Callable[..., bool]) -> bool:
        learned = False
        for topic in sorted({message.topic() for message in messages}):
            found: dict[Measure, Any] = {}
            for message in messages:
                if message.topic() == topic:
                    content = (message.key(), message.value(), message.headers() or ())
                    found[self._measure(*content)] = message
            learned |= self._probe(topic, found, accepts)
        return learned

    def _probe(self, topic: str, found: dict[Measure, Any], accepts: Callable[..., bool]) -> bool:
        known = self._sizes.setdefault(topic, _Probed())
        before = len(known.refused)
        while open_ := sorted(
            measure
            for measure in found.keys() - known.accepted
            if not self._is_small_enough(topic, measure) and not self._is_too_large(topic, measure)
        ):
            measure = self._next(topic, open_)
            message = found[measure]
            content = (message.key(), message.value(), message.headers() or ())
            if accepts(topic, message.partition(), *content, 0):
                known.accepted.add(measure)
            else:
                known.refused.add(measure)
                self._topics.add(topic)
        if known.refused:
            self._hints[topic] = min(size for size, _ in known.refused)
        return len(known.refused) > before

    def _next(self, topic: str, open_: Sequence[Measure]) -> Measure:
        """What to probe: beside what was refused before, or in the middle."""
        hint, known = self._hints.get(topic), self._sizes[topic]
        if hint is not None and len(open_) > 2:
            above = [measure for measure in open_ if measure[0] >= hint]
            below = [measure for measure in open_ if measure[0] < hint]
            if above and not known.refused:
                return above[0]
            if below and not known.accepted:
                return below[-1]
        if not known.refused:
            # Refusals take longer than the rest. If the largest is accepted, there is none.
            return open_[-1]
        return open_[len(open_) // 2]

    def _measure(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> Measure:
        raw = batch_size(key, value, headers)
        if self._codec is None:
            return raw, raw
        texts = [part for name, content in headers for part in (name.encode(), content or b"")]
        whole = b"".join([key or b"", value or b"", *texts])
        return _BATCH_HEADER + len(pa.compress(whole, codec=self._codec, asbytes=True)), raw


def _one_each(messages: Iterable[Any]) -> Iterable[tuple[str, Any]]:
    """The first message of each topic."""
    found: dict[str, Any] = {}
    for message in messages:
        found.setdefault(message.topic(), message)
    return found.items()


def _first(refuses: Callable[[int], bool], timestamps: Sequence[int]) -> int | None:
    """The first timestamp that is refused, if all after it are."""
    if not timestamps or not refuses(timestamps[-1]):
        return None
    low, high = 0, len(timestamps) - 1
    while low < high:
        middle = (low + high) // 2
        if refuses(timestamps[middle]):
            high = middle
        else:
            low = middle + 1
    return timestamps[high]
