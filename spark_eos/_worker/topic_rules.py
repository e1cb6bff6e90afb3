"""Decides which rows topics accept, from the topics' configs and the client's settings."""

# A broker that refuses a record batch dooms its transaction, and does not say which record made a
# batch too large. So rows are checked before they are sent, and no batch is larger than the
# smallest limit of the topics that are written to. As in Kafka's own producer (max.request.size),
# sizes are those before compression.

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from cachetools import TTLCache

from spark_eos._kafka.connection import Connections
from spark_eos._kafka.topic_configs import BROKERS_DEFAULT, TopicConfig, topic_configs
from spark_eos._worker import dead_letter_settings as reasons
from spark_eos._worker.dead_letters import Fault
from spark_eos._worker.librdkafka_errors import asking_cluster
from spark_eos._worker.records import (
    NO_TIMESTAMP,
    NOW,
    RecordContent,
    RowTopics,
    SourceRows,
    column_of,
    producer_timestamp,
    record_content,
)
from spark_eos._worker.writer_settings import WriterSettings

# Bytes of a record batch's header (message format 2).
_BATCH_HEADER: Final = 61
# Bytes that librdkafka adds to key, value and headers when it checks message.max.bytes.
_LIBRDKAFKAS: Final = 36
# An upper bound on overhead: a record adds fewer bytes than this to its key, value and headers, and
# a header adds fewer to its name and value.
_RECORD_HEADER: Final = 40
# An upper bound on how much a batch grows if a broker compresses it although that makes it larger:
# this many bytes, plus one byte per _GROWTH_SHARE bytes. librdkafka sends such a batch
# uncompressed.
_GROWTH: Final = 64
_GROWTH_SHARE: Final = 1_000
_UNCOMPRESSED: Final = frozenset({"none", "uncompressed"})
# If a topic's config is older than this many seconds, ask for it again before refusing a row.
_FRESH: Final = 5.0

# The largest 64-bit integer.
_MOST: Final = (1 << 63) - 1

Headers = Sequence[tuple[str, bytes | None]]


def batch_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the size in bytes of an uncompressed batch of this one record (message format 2)."""
    body = 3 + _field(key) + _field(value) + _varint(len(headers)) + _headers_size(headers)
    return _BATCH_HEADER + _varint(body) + body


def _headers_size(headers: Headers) -> int:
    return sum(_field(name.encode()) + _field(content) for name, content in headers)


def _field(content: bytes | None) -> int:
    return 1 if content is None else _varint(len(content)) + len(content)


def _varint(number: int) -> int:
    # Signed numbers are stored zigzag, seven bits in each byte.
    return max(1, ((number << 1).bit_length() + 6) // 7)


@dataclass
class _Known:
    """A topic's config (None if the broker does not show it), and when the broker was asked."""

    config: TopicConfig | None
    asked: float


def _limit(known: _Known) -> int:
    """Return the largest batch that a topic accepts, in bytes."""
    return BROKERS_DEFAULT if known.config is None else _most_sent(known.config)


class TopicRules:
    """The rules of a worker process's target topics; a topic without a known config has none."""

    def __init__(self, connections: Connections, settings: WriterSettings) -> None:
        self._connections = connections
        self._settings = settings
        client = settings.client.for_producer("", settings.transactions.timeout_ms)
        self._own_batch_size = int(client["batch.size"])
        self._own_limit = int(client.get("message.max.bytes", 1_000_000))
        self._queue = int(client["queue.buffering.max.kbytes"]) * 1024
        self._codec = str(client.get("compression.type", client.get("compression.codec", "none")))
        self._topics: TTLCache[str, _Known] = TTLCache(
            math.inf, settings.limits.metadata_max_idle_ms / 1000
        )
        # The number of known topics, and the smallest of their limits on a batch's size.
        self._smallest: tuple[float, int] = (0, self._own_batch_size)

    # Configs ----------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """The size of batches, in bytes, that all known topics accept."""
        # Cache the size, which is read for each slice of rows. `currsize` excludes expired entries.
        number, smallest = self._smallest
        if number != self._topics.currsize:
            # Count first: an entry may expire while the entries are read.
            number = self._topics.currsize
            smallest = min([self._own_batch_size, *(_limit(known) for known in self._known())])
            self._smallest = number, smallest
        return max(1, smallest)

    def learn(self, topics: Collection[str]) -> None:
        """Ask for the configs of existing topics, unless they are known."""
        unknown = set()
        for topic in topics:
            known = self._topics.get(topic)
            if known is None or known.asked < 0:
                unknown.add(topic)
            else:
                # Setting the entry again restarts its expiry timer.
                self._topics[topic] = known
        self._ask(unknown)

    def _ask(self, topics: Collection[str]) -> None:
        if not topics:
            return
        now = time.monotonic()
        with asking_cluster("asking for the configs of target topics"):
            configs = topic_configs(self._connections, topics, self._settings.connect_deadline())
        for topic, config in configs.items():
            before, known = self._topics.get(topic), _Known(config, now)
            self._topics[topic] = known
            number, smallest = self._smallest
            if before is None:
                number += 1
            elif before.config != config:
                number = math.nan  # equals no number, so that batch_size recomputes
            self._smallest = number, min(smallest, _limit(known))

    def changed(self, topic: str) -> bool:
        """Ask for a topic's config again; return True if it has changed."""
        before = self._config(topic)
        self._ask([topic])
        return self._config(topic) != before

    def is_known(self, topic: str) -> bool:
        """Return True if the broker shows the topic's config."""
        return self._config(topic) is not None

    def _config(self, topic: str | None) -> TopicConfig | None:
        known = None if topic is None else self._topics.get(topic)
        return None if known is None else known.config

    def forget(self) -> None:
        """Ask for all configs again when they are next needed."""
        # The old limits apply until then, so that the next producer need not be replaced at once.
        for known in self._known():
            known.asked = -1.0

    def _known(self) -> list[_Known]:
        # An entry may expire between two calls.
        rules = (self._topics.get(topic) for topic in list(self._topics))
        return [known for known in rules if known is not None]

    # Rows -------------------------------------------------------------------------------------

    def faults(
        self, part: SourceRows, topics: RowTopics, without: Collection[int] = ()
    ) -> dict[int, Fault]:
        """Return the rows that their topics don't accept, with the reason."""
        names = {topic for topic in topics.firsts(without) if topic is not None}
        self.learn(names)
        configs = [config for name in names if (config := self._config(name)) is not None]
        faults = {}
        for row in sorted(self._suspects(part.rows, configs).difference(without)):
            topic = topics[row]
            content = record_content(part.rows, row)
            fault = None if topic is None else self.fault(topic, content)
            if fault is not None:
                faults[row] = fault
        return faults

    def past_retention(
        self, part: SourceRows, topics: RowTopics, without: Collection[int] = ()
    ) -> Counter[str]:
        """Count the rows that are older than their topic's retention.ms, by topic."""
        timestamps = column_of(part.rows, "timestamp")
        if timestamps is None or timestamps.null_count == len(timestamps):
            return Counter()
        kept = {
            topic: config.retention_ms
            for topic in topics.names
            if (config := self._config(topic)) is not None and config.retention_ms is not None
        }
        now = int(time.time() * 1000)
        latest = now - min(kept.values(), default=_MOST)
        if pc.min(timestamps).as_py() >= latest:
            return Counter()
        # Brokers treat a negative timestamp as no timestamp, and keep the record.
        old = pc.and_(pc.less(timestamps, latest), pc.greater_equal(timestamps, 0))
        rows = set(_where(old)).difference(without)
        ages = {row: now - timestamps[row].as_py() for row in rows}
        names = ((topics[row], age) for row, age in ages.items())
        return Counter(name for name, age in names if name and age > kept.get(name, _MOST))

    def _suspects(self, rows: pa.RecordBatch, configs: Collection[TopicConfig]) -> set[int]:
        """Return the rows that a topic may refuse, found by looking at whole columns."""
        suspects: set[int] = set()
        limit = min([self._own_limit, self._queue, *map(_most_sent, configs)])
        more = _BATCH_HEADER + _RECORD_HEADER
        # In most slices, even all rows together are below the limit. Their size is doubled because
        # Kafka adds less than twice as much to a header as Arrow does.
        if more + 2 * rows.nbytes > limit:
            sizes = pc.add(_lengths(rows, "key"), _lengths(rows, "value"))
            sizes = pc.add(sizes, more + _most_header_bytes(rows))
            suspects.update(_where(pc.greater(sizes, limit)))
        if any(config.compacted for config in configs):
            key = column_of(rows, "key")
            suspects.update(range(rows.num_rows) if key is None else _where(key.is_null()))
        timestamps = column_of(rows, "timestamp")
        if timestamps is not None and timestamps.null_count < len(timestamps):
            now = int(time.time() * 1000)
            before = [c.before_max_ms for c in configs if c.before_max_ms is not None]
            after = [c.after_max_ms for c in configs if c.after_max_ms is not None]
            first = now - min(before, default=_MOST)
            if any(map(self._may_be_recompressed, configs)):
                first = max(first, 0)
            last = min(now + min(after, default=_MOST), _MOST)
            bounds = pc.min_max(timestamps).as_py()
            if bounds["min"] < first or bounds["max"] > last:
                far = pc.or_(pc.less(timestamps, first), pc.greater(timestamps, last))
                suspects.update(_where(pc.and_(far, pc.not_equal(timestamps, NO_TIMESTAMP))))
        return suspects

    # One record -------------------------------------------------------------------------------

    def fault(self, topic: str, record: RecordContent) -> Fault | None:
        """Return why a topic does not accept a record; None if it does, as far as is known."""
        fault = self._fault(topic, record)
        known = self._topics.get(topic)
        if fault and known is not None and known.asked < time.monotonic() - _FRESH:
            # The config is old: before refusing the record, check it against the current config.
            self._ask([topic])
            fault = self._fault(topic, record)
        return fault

    def _fault(self, topic: str, record: RecordContent) -> Fault | None:
        key, value, headers = record.key, record.value, record.headers or ()
        timestamp = producer_timestamp(record.timestamp)
        config = self._config(topic)
        if config is not None and config.compacted and key is None:
            text = f"topic {topic!r} is compacted, and the record has no key"
            return Fault(reasons.INVALID_RECORD, text)
        if self._is_out_of_bounds(config, timestamp):
            text = f"its timestamp {timestamp} is outside the bounds of topic {topic!r}"
            return Fault(reasons.INVALID_RECORD, text)
        if config is not None and timestamp < NO_TIMESTAMP and self._may_be_recompressed(config):
            text = (
                f"its timestamp {timestamp} is before 1970, and brokers can't compress such a "
                f"record for topic {topic!r} (its compression.type is {config.compression!r})"
            )
            return Fault(reasons.INVALID_RECORD, text)
        return self._fault_of_size(topic, config, key, value, headers)

    def _fault_of_size(
        self,
        topic: str,
        config: TopicConfig | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> Fault | None:
        text = None
        own = _LIBRDKAFKAS + len(key or b"") + len(value or b"") + _headers_size(headers)
        size = batch_size(key, value, headers)
        if own > self._own_limit:
            text = "the record is larger than this client sends (kafka['message.max.bytes'])"
        elif len(value or b"") > self._queue:
            # librdkafka counts only values towards its queue's limit, so it would never accept this
            # one.
            text = (
                f"its value of {len(value or b'')} bytes is larger than this client's queue "
                "(kafka['queue.buffering.max.kbytes'])"
            )
        elif config is not None and size > _most_sent(config):
            text = (
                f"its {size} bytes before compression are more than topic {topic!r} accepts "
                "(its max.message.bytes)"
            )
        return None if text is None else Fault(reasons.TOO_LARGE, text)

    def _may_be_recompressed(self, config: TopicConfig) -> bool:
        """Return True if brokers may recompress batches."""
        # Even with the topic's codec, clients leave some batches uncompressed.
        undone = config.compression in _UNCOMPRESSED and self._codec not in _UNCOMPRESSED
        return _compresses(config) or undone

    @staticmethod
    def _is_out_of_bounds(config: TopicConfig | None, timestamp: int) -> bool:
        if config is None or timestamp in {NOW, NO_TIMESTAMP}:
            return False
        age = time.time() * 1000 - timestamp
        before, after = config.before_max_ms, config.after_max_ms
        return (before is not None and age > before) or (after is not None and -age > after)


def _compresses(config: TopicConfig) -> bool:
    """Return True if the broker compresses batches itself."""
    return config.compression not in {"producer", *_UNCOMPRESSED}


def _most_sent(config: TopicConfig) -> int:
    """Return the largest uncompressed batch that fits, whatever its content."""
    limit = config.max_message_bytes
    return limit - limit // _GROWTH_SHARE - _GROWTH if _compresses(config) else limit


def _lengths(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return the size of each of a column's values in bytes; 0 for null."""
    column = column_of(rows, name)
    if column is None:
        return pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _most_header_bytes(rows: pa.RecordBatch) -> int:
    """Return an upper bound on the size of any row's headers in bytes."""
    column = column_of(rows, "headers")
    if column is None:
        return 0
    number = pc.max(pc.list_value_length(column)).as_py() or 0
    items = column.flatten()
    most = sum(pc.max(pc.binary_length(items.field(part))).as_py() or 0 for part in range(2))
    return int(number) * (most + _RECORD_HEADER)


def _where(mask: pa.Array) -> Iterable[int]:
    indexes: Iterable[int] = pc.indices_nonzero(pc.fill_null(mask, fill_value=False)).to_pylist()
    return indexes
