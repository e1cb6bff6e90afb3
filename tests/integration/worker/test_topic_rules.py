"""Workers know topics' limits before they send rows; on the real broker, without Spark.

Tasks write in the same way in classic Spark and on Connect.
"""

import itertools
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.protocol.admin import DescribeConfigsRequest

from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.topic_cache import MissingTopicsError, TopicCache
from spark_eos._worker.topic_rules import batch_size
from spark_eos.acls import Operation
from support.dead_letters import letters
from support.flow import Flow
from support.proxy_faults import Request
from support.topic_limits import set_limit, small_topic
from support.writing import refuses, rows, sent_requests, writer, writer_with_dead_letters

LIMIT = 20_000
DAY = 86_400_000
QUEUE = 512 * 1024
# What a batch of one record without a key takes, besides the record's value.
BATCH = 72
MANY = [b"x" * 100] * 1_000


# Batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_no_batch_is_larger_than_its_topic_takes(flow: Flow, codec: str) -> None:
    small = small_topic(flow)
    values = [random.Random(n).randbytes(100) for n in range(1_000)]
    client = ClientSettings({**flow.kafka, "compression.type": codec})
    with writer(flow, topic=small, max_transaction_records=100_000, client=client) as writing:
        for first in range(0, 20_000, 1_000):
            writing.add(rows(flow, 0, *range(first, first + 1_000), values=values))
        writing.commit()
    assert len(flow.written(small)) == 20_000
    assert flow.committed() == {0: 20_000}


def test_a_topic_with_smaller_batches_gets_its_own_transaction(flow: Flow) -> None:
    small = small_topic(flow)
    first, second, next_, third, last = (
        rows(flow, 0, *range(n, n + 1_000), values=MANY, topic=[topic] * 1_000)
        for n, topic in zip(range(0, 5_000, 1_000), [None, None, small, None, small], strict=True)
    )
    with writer(flow, max_transaction_records=100_000) as writing:
        writing.add(first)
        used = writing._producer.identity
        assert writing.ready(second)
        assert not writing.ready(next_)
        writing.commit()
        writing.add(next_)
        assert writing._producer.identity.epoch > used.epoch
        writing.commit()
        # From now on batches are small enough for both.
        writing.add(third)
        assert writing.ready(last)
        writing.commit()
    assert (len(flow.written()), len(flow.written(small))) == (2_000, 1_000)
    assert flow.committed() == {0: 4_000}


def test_one_records_rows_stay_together_despite_smaller_batches(flow: Flow) -> None:
    small = small_topic(flow)
    with writer(flow) as writing:
        # The task may not end the transaction between rows of one record.
        for topic in (None, small):
            writing.add(rows(flow, 0, *[0] * 500, values=MANY[:500], topic=[topic] * 500))
        writing.commit()
    assert (len(flow.written()), len(flow.written(small))) == (500, 500)


def test_configs_are_asked_for_once(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(flow) as writing:
        requests: list[Request] = []
        for offset in range(3):
            writing.add(rows(flow, 0, offset))
            writing.commit()
            requests = requests or sent_requests(monkeypatch)
    assert requests
    assert DescribeConfigsRequest.API_KEY not in {r.api_key for r in requests}
    assert flow.committed() == {0: 3}


# Rows --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Rows of one topic, of which it does not accept some."""

    values: Sequence[bytes]
    # By number of the row, what its error names; the order is that of the rows.
    bad: Mapping[int, Sequence[object]]
    reason: str = "invalid_record"
    config: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def _of_size(limit: int, stored: str, sent: str) -> Case:
    """Rows that fill a topic's batch, and more, before the producer compresses them."""
    return Case(
        [b"x", b"x" * (limit - BATCH), b"x" * (limit - BATCH + 1), b"x" * 2 * limit],
        {2: [limit + 1, "max.message.bytes"], 3: ["max.message.bytes"]},
        "too_large",
        {"max.message.bytes": str(limit), "compression.type": stored},
        {"compression.type": sent},
    )


def _growing(codec: str) -> Case:
    """Incompressible rows, which grow when the broker compresses them, so that it refuses them."""
    # Two of them fill a batch to the last byte.
    halves = [random.Random(n).randbytes(LIMIT // 2 - 42) for n in range(20)]
    whole = random.Random(1).randbytes(LIMIT - BATCH)
    assert batch_size(None, whole, []) == LIMIT
    return Case(
        [*halves, whole],
        {20: ["max.message.bytes"]},
        "too_large",
        {"max.message.bytes": str(LIMIT), "compression.type": codec},
        {"compression.type": "none"},
    )


def _queued(key: bytes | None) -> Case:
    return Case(
        [b"a", b"x" * (QUEUE + 1), b"x" * QUEUE],
        {1: [QUEUE + 1, "kafka['queue.buffering.max.kbytes']"]},
        "too_large",
        client={"queue.buffering.max.kbytes": QUEUE // 1024},
        columns={"key": [key] * 3},
    )


_NOW = int(time.time() * 1000)
_IMPOSSIBLE = ["", "..", "__consumer_offsets", "__transaction_state", "no name", "x" * 250, "é"]
_LARGE = {"max.message.bytes": "100000000"}
CASES = {
    **{f"stored as {codec}": _growing(codec) for codec in ("gzip", "lz4", "snappy", "zstd")},
    "sent as it is": _of_size(LIMIT, "producer", "none"),
    **{f"gzip to {kind}": _of_size(LIMIT, kind, "gzip") for kind in ("producer", "uncompressed")},
    # Its own codec may make records larger than the producer's, so that less just fits.
    "gzip to zstd": Case(
        [b"x" * 2 * LIMIT, b"x"],
        {0: ["max.message.bytes"]},
        "too_large",
        {"max.message.bytes": str(LIMIT), "compression.type": "zstd"},
        {"compression.type": "gzip"},
    ),
    "client's limit": Case(
        [b"x" * (2_000 - 36), b"x" * (2_001 - 36)],
        {1: ["kafka['message.max.bytes']"]},
        "too_large",
        client={"message.max.bytes": 2_000},
    ),
    "client's default limit": Case(
        [b"a", b"x" * 1_000_001], {1: ["kafka['message.max.bytes']"]}, "too_large"
    ),
    "queue": _queued(None),
    "queue, with key": _queued(b"k"),
    # After all other limits are raised as their errors advise.
    "default queue": Case(
        [b"a", b"x" * 70_000_000],
        {1: [70_000_000, "kafka['queue.buffering.max.kbytes']"]},
        "too_large",
        _LARGE,
        {"message.max.bytes": 100_000_000},
    ),
    "a key is null": Case(
        [b"a", b"b"],
        {1: ["compacted"]},
        config={"cleanup.policy": "compact,delete"},
        columns={"key": [b"k", None]},
    ),
    "no keys": Case([b"a"], {0: ["compacted"]}, config={"cleanup.policy": "compact,delete"}),
    "too old": Case(
        [b"a", b"b"],
        {1: ["timestamp", _NOW - DAY - 10_000]},
        config={"message.timestamp.before.max.ms": str(DAY)},
        columns={"timestamp": [_NOW, _NOW - DAY - 10_000]},
    ),
    "in the future": Case(
        [b"a", b"b"],
        {1: ["timestamp", _NOW + DAY]},
        columns={"timestamp": [None, _NOW + DAY]},
    ),
    "any time": Case(
        [b"a", b"b"],
        {},
        config={"message.timestamp.type": "LogAppendTime"},
        columns={"timestamp": [1_000, 4_102_444_800_000]},
    ),
    "impossible names": Case(
        [b"v"] * len(_IMPOSSIBLE),
        {n: ["internal topic"] if name[:2] == "__" else [] for n, name in enumerate(_IMPOSSIBLE)},
        "unknown_topic",
        columns={"topic": _IMPOSSIBLE},
    ),
}
_SLOW = {"default queue": pytest.mark.slow}


# Not so long that a task could wait for a topic that can't exist.
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", [pytest.param(n, marks=_SLOW.get(n, ())) for n in CASES])
def test_rows_that_a_topic_does_not_accept(flow: Flow, name: str) -> None:
    """A bad row ends the query before anything is sent; or is a dead letter next to the others."""
    case, target = CASES[name], f"strict-{flow.name}"
    flow.broker.create_topic(target, 1, dict(case.config))
    count = len(case.values)
    flow.produce(range(count), partition=0)
    given = rows(flow, 0, *range(count), values=case.values, **case.columns)
    topics = [*case.columns.get("topic", [target] * count)]
    client = ClientSettings({**flow.kafka, **case.client})
    options: dict[str, Any] = {"topic": target, "client": client, "max_block_ms": 3_600_000}
    for first, words in [*case.bad.items()][:1]:
        place = f"source {flow.source}-0 offset {first}"
        with writer(flow, **options) as writing:
            with refuses(place, f"topic '{topics[first]}'", *words, again=False):
                writing.add(given)
            assert not writing.open
    with writer_with_dead_letters(flow, **options) as writing:
        writing.add(given)
        writing.commit()
        assert writing.letters is not None
        assert writing.letters.counts.reasons == ({case.reason: len(case.bad)} if case.bad else {})
    good = [value for n, value in enumerate(case.values) if n not in case.bad]
    assert [m.value() for m in flow.written(target)] == good
    assert [value for value, _ in letters(flow)] == [b"%d" % n for n in case.bad]
    for (_, headers), words in zip(letters(flow), case.bad.values(), strict=True):
        message = headers["__dlq.errors.message"]
        assert [word for word in words if str(word) not in message] == [], message
    assert flow.committed() == {0: count}


# Dead letters ------------------------------------------------------------------------------------


def test_bad_rows_become_dead_letters_in_the_same_transaction(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionWriter, "_give_up", lambda _: pytest.fail("refused"))
    small = small_topic(flow)
    flow.produce(range(3_000), partition=0)
    values = [b"x" * (LIMIT + n if n % 100 == 7 else 100) for n in range(1_000)]
    options: dict[str, Any] = {"topic": small, "max_transaction_records": 10_000}
    with writer_with_dead_letters(flow, **options) as writing:
        for first in (0, 1_000, 2_000):
            writing.add(rows(flow, 0, *range(first, first + 1_000), values=values))
        writing.commit()
    assert len(flow.written(small)) == 2_970
    found = sorted(int(value or b"") for value, _ in letters(flow))
    assert found == [n for n in range(3_000) if n % 100 == 7]


def test_dead_letters_never_exceed_their_topics_limit(flow: Flow) -> None:
    flow.produce(["x" * 9_000, *["y" * 1_000] * 99], partition=0)
    bounded = {"max.message.bytes": "5000", "message.timestamp.before.max.ms": str(DAY)}
    with writer_with_dead_letters(flow, bounded) as writing:
        writing.add(rows(flow, 0, *range(100), timestamp=[1_000] * 100, error=["bad"] * 100))
        writing.commit()
    (value, headers), *others = letters(flow)
    assert (value, headers["__dlq.errors.omitted"]) == (None, "value of 9000 bytes")
    assert [len(value or b"") for value, _ in others] == [1_000] * 99
    assert flow.committed() == {0: 100}


def test_long_texts_are_cut_before_a_dead_letter_is_too_large(flow: Flow) -> None:
    flow.produce(["a"], partition=0)
    with writer_with_dead_letters(flow, {"max.message.bytes": "5000"}) as writing:
        writing.add(rows(flow, 0, 0, error=["\u00e9" * 8_000]))
        writing.commit()
    ((value, headers),) = letters(flow)
    assert (value, headers["__dlq.errors.omitted"]) == (None, "value of 1 bytes")
    assert headers["__dlq.errors.message"] == "\u00e9" * 100


def test_a_compacted_topics_dead_letter_keeps_its_key(flow: Flow) -> None:
    flow.produce(["v" * 3_000], partition=0, key=b"k" * 3_500)
    config = {"max.message.bytes": "5000", "cleanup.policy": "compact"}
    with writer_with_dead_letters(flow, config) as writing:
        writing.add(rows(flow, 0, 0, error=["bad"]))
        writing.commit()
    (dead_letter,) = flow.written(f"dlq-{flow.name}")
    assert (dead_letter.key(), dead_letter.value()) == (b"k" * 3_500, None)


@pytest.mark.parametrize("part", ["key", "headers", "value"])
def test_a_default_dead_letter_leaves_out_what_is_too_large(flow: Flow, part: str) -> None:
    content = b"x" * 999_900
    given: dict[str, Any] = {"key": b"k", "headers": [("h", b"h")], "value": b"v"}
    given[part] = [("h", content)] if part == "headers" else content
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers, max_request_size=2_000_000)
    with closing(producer):
        producer.send(flow.source, **given, partition=0).get(60)
    with writer_with_dead_letters(flow) as writing:
        writing.add(rows(flow, 0, 0, error=["bad"]))
        writing.commit()
    (dead_letter,) = flow.written(f"dlq-{flow.name}")
    ((value, headers),) = letters(flow)
    size = 999_901 if part == "headers" else 999_900
    assert headers["__dlq.errors.omitted"] == f"{part} of {size} bytes"
    assert dead_letter.key() == (None if part == "key" else b"k")
    assert value == (None if part == "value" else b"v")
    assert headers.get("h") == (None if part == "headers" else "h")
    assert flow.committed() == {0: 1}


def test_a_dead_letter_too_large_for_its_topic_ends_the_query(flow: Flow) -> None:
    flow.produce(["a"], partition=0, key=b"k" * 6_000)
    with writer_with_dead_letters(flow, {"max.message.bytes": "200"}) as writing:
        with refuses("headers that explain it are too", again=False):
            writing.add(rows(flow, 0, 0, error=["bad"]))
        writing.abort()
    assert letters(flow) == []


@pytest.mark.timeout(200)
@pytest.mark.parametrize("timestamp", [None, 1_700_000_000_000])
def test_a_queue_that_is_full_while_it_is_empty_ends_the_wait(
    flow: Flow, timestamp: int | None
) -> None:
    """Whatever librdkafka counts; also for rows that need their own calls."""
    client = ClientSettings({**flow.kafka, "queue.buffering.max.kbytes": QUEUE // 1024})
    with writer(flow, client=client) as writing:
        writing._rules._queue = 1 << 40
        half = [b"x" * (QUEUE // 2 - 1)] * 5
        writing.add(rows(flow, 0, *range(5), values=half, timestamp=[timestamp] * 5))
        bad = rows(flow, 0, 5, 6, values=[b"a", b"x" * (QUEUE + 1)], timestamp=[timestamp] * 2)
        with refuses("offset 6", "queue.buffering", again=False):
            writing.add(bad)
        writing.abort()


# Configs that change -----------------------------------------------------------------------------


@contextmanager
def with_another_limit(flow: Flow, limit: int) -> Iterator[tuple[TransactionWriter, str]]:
    """Transactions to a topic that has one row, and got its limit later."""
    topic = small_topic(flow)
    with writer(flow, topic=topic) as writing:
        writing.add(rows(flow, 0, 0))
        writing.commit()
        set_limit(flow, topic, limit)
        yield writing, topic


def test_a_lowered_limit_repeats_the_attempt(flow: Flow) -> None:
    with with_another_limit(flow, 5_000) as (writing, topic):
        more = rows(flow, 0, *range(1, 501), values=MANY[:500])
        writing.add(more)
        with refuses("config has changed meanwhile", again=True):
            writing.commit()
        # What the next attempt does, with the limit that is known now.
        writing.add(more)
        writing.commit()
    assert len(flow.written(topic)) == 501
    assert flow.committed() == {0: 501}


def test_a_lowered_limit_that_is_known_when_a_batch_is_refused(flow: Flow) -> None:
    # Each row fits, in a smaller batch.
    with (
        with_another_limit(flow, 5_000) as (writing, topic),
        refuses("Message size too large", again=True),
    ):
        # Adding the rows may already notice that the broker has refused some of them.
        writing.add(rows(flow, 0, *range(1, 501), values=MANY[:500]))
        # Another task's rows may tell, as those of a topic whose config is not known.
        assert writing._rules.changed(topic)
        writing.commit()


def test_the_row_is_named_if_it_is_refused_while_more_are_added(flow: Flow) -> None:
    with with_another_limit(flow, 5_000) as (writing, topic):
        given = rows(flow, 0, 1, 2, values=[b"b", b"x" * 10_000])
        writing.add(given)
        place = f"source {flow.source}-0 offset 2"
        # librdkafka takes no more records once the broker has refused some.
        with refuses(place, f"topic '{topic}'", "Message size too large", again=True):
            for offset in itertools.count(3):
                writing.add(rows(flow, 0, offset))
                time.sleep(0.01)
        writing.abort()
        with refuses(place, "max.message.bytes", again=False):
            writing.add(given)
    assert flow.values(topic) == ["0/0"]
    assert flow.committed() == {0: 1}


def test_a_limit_that_is_raised_counts_before_a_row_is_refused(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_eos._worker.topic_rules._FRESH", 0)
    with with_another_limit(flow, 3 * LIMIT) as (writing, topic):
        writing.add(rows(flow, 0, 1, values=[b"x" * 2 * LIMIT]))
        writing.commit()
    assert [len(v) for v in flow.values(topic)] == [3, 2 * LIMIT]


def test_a_task_waits_for_unknown_topics_once(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    waited_in_vain: list[set[str]] = []
    wait_for = TopicCache._wait_for

    def noting(cache: TopicCache, names: Collection[str], operation: Operation) -> Any:
        try:
            return wait_for(cache, names, operation)
        except MissingTopicsError:
            waited_in_vain.append({*names})
            raise

    monkeypatch.setattr(TopicCache, "_wait_for", noting)
    flow.produce(range(7), partition=0)
    late, later = f"late-{flow.name}", f"later-{flow.name}"
    began = time.monotonic()
    with writer_with_dead_letters(flow, max_block_ms=1_000) as writing:
        for offset in range(4):
            writing.add(rows(flow, 0, offset, topic=[f"nowhere-{offset}"]))
        # It exists by now.
        flow.broker.create_topic(late, 1)
        writing.add(rows(flow, 0, 4, topic=[late]))
        writing.add(rows(flow, 0, 5, topic=[later]))
        writing.commit()
        assert len(writing._targets._absent) == 1
        # Each transaction looks again.
        flow.broker.create_topic(later, 1)
        writing.add(rows(flow, 0, 6, topic=[later]))
        writing.commit()
    assert time.monotonic() - began > 1
    assert waited_in_vain == [{"nowhere-0"}]
    assert [value for value, _ in letters(flow)] == [b"0", b"1", b"2", b"3", b"5"]
    assert (flow.values(late), flow.values(later)) == (["0/4"], ["0/6"])


def test_any_number_of_impossible_topics_is_missing(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_eos._worker.target_topics.MOST_NAMES", 2)
    flow.produce(range(6), partition=0)
    with writer_with_dead_letters(flow, max_block_ms=1_000) as writing:
        writing.add(rows(flow, 0, 0, 1, topic=["a b", "c d"]))
        writing.add(rows(flow, 0, 2, 3, 4, 5, topic=["a b", "e f", "g h", "i j"]))
        writing.commit()
    assert [headers["__dlq.errors.reason"] for _, headers in letters(flow)] == ["unknown_topic"] * 6
