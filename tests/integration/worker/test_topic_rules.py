"""Workers know topics' limits before they send rows; on the real broker, without Spark.

Tasks write in the same way in classic Spark and on Connect.
"""

import random
import re
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from kafka.protocol.admin import DescribeConfigsRequest

import support.writing
from spark_eos._client.settings import ClientSettings
from spark_eos._exactly_once.transaction import TransactionWriter
from spark_eos._kafka.topic_cache import MissingTopicsError, TopicCache
from spark_eos._worker.dead_letter_settings import DeadLetterSettings
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import SourceRows
from spark_eos._worker.topic_rules import batch_size
from spark_eos.acls import Operation
from support.dead_letters import create_dead_letter_topic, headers_of
from support.flow import Flow
from support.members import started
from support.topic_limits import set_limit, small_topic
from support.writing import sent_requests, transactions

LIMIT = 20_000
DAY = 86_400_000


def rows(
    flow: Flow,
    first: int,
    values: list[bytes | None],
    *,
    offsets: list[int] | None = None,
    topics: list[str | None] | None = None,
    keys: list[bytes | None] | None = None,
    timestamps: list[int | None] | None = None,
) -> SourceRows:
    """Rows of partition 0, by default from consecutive records."""
    columns = {
        name: pa.array(found, kind)
        for name, found, kind in (
            ("topic", topics, pa.string()),
            ("key", keys, pa.binary()),
            ("timestamp", timestamps, pa.timestamp("ms", "UTC")),
        )
        if found is not None
    }
    places = offsets or range(first, first + len(values))
    return support.writing.rows(flow, 0, *places, values=values, **columns)


@contextmanager
def writing(flow: Flow, **options: Any) -> Iterator[TransactionWriter]:
    with started(flow) as membership, transactions(flow, membership, **options) as found:
        yield found
        found.close()


@contextmanager
def writing_dead_letters(
    flow: Flow, config: dict[str, str] | None = None, **options: Any
) -> Iterator[tuple[TransactionWriter, str]]:
    topic = create_dead_letter_topic(flow, config or {})
    settings = DeadLetterSettings(topic=topic)
    with writing(flow, dead_letters=settings, **options) as found:
        yield found, topic


# Batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_no_batch_is_larger_than_its_topic_takes(flow: Flow, codec: str) -> None:
    small = small_topic(flow)
    values: list[bytes | None] = [random.Random(n).randbytes(100) for n in range(1_000)]
    client = ClientSettings({**flow.kafka, "compression.type": codec})
    options = {"max_transaction_records": 100_000, "client": client}
    with writing(flow, topic=small, **options) as found:
        for first in range(0, 20_000, 1_000):
            found.add(rows(flow, first, values))
        found.commit()
    assert len(flow.written(small)) == 20_000
    assert flow.committed() == {0: 20_000}


def test_a_topic_with_smaller_batches_gets_its_own_transaction(
    flow: Flow,
) -> None:
    small = small_topic(flow)
    many: list[bytes | None] = [b"x" * 100] * 1_000
    with writing(flow, max_transaction_records=100_000) as found:
        found.add(rows(flow, 0, many))
        first = found._producer.identity
        assert found.ready(rows(flow, 1_000, many))
        next_ = rows(flow, 1_000, many, topics=[small] * 1_000)
        assert not found.ready(next_)
        found.commit()
        found.add(next_)
        assert found._producer.identity.epoch > first.epoch
        found.commit()
        # From now on batches are small enough for both.
        found.add(rows(flow, 2_000, many))
        assert found.ready(rows(flow, 3_000, many, topics=[small] * 1_000))
        found.commit()
    assert (len(flow.written()), len(flow.written(small))) == (2_000, 1_000)
    assert flow.committed() == {0: 3_000}


def test_one_records_rows_stay_together_despite_smaller_batches(
    flow: Flow,
) -> None:
    small = small_topic(flow)
    many: list[bytes | None] = [b"x" * 100] * 500
    with writing(flow) as found:
        found.add(rows(flow, 0, many, offsets=[0] * 500))
        # The task may not end the transaction between rows of one record.
        found.add(rows(flow, 0, many, offsets=[0] * 500, topics=[small] * 500))
        found.commit()
    assert (len(flow.written()), len(flow.written(small))) == (500, 500)


def test_configs_are_asked_for_once(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    with writing(flow) as found:
        found.add(rows(flow, 0, [b"a"]))
        found.commit()
        requests = sent_requests(monkeypatch)
        for offset in (1, 2):
            found.add(rows(flow, offset, [b"b"]))
            found.commit()
    assert DescribeConfigsRequest.API_KEY not in {r.api_key for r in requests}
    assert flow.committed() == {0: 3}


# Rows --------------------------------------------------------------------------------------------


def test_rows_that_topics_do_not_accept_are_named_before_sending(flow: Flow) -> None:
    small = small_topic(flow)
    compacted, bounded = f"compacted-{flow.name}", f"bounded-{flow.name}"
    flow.broker.create_topic(compacted, 1, {"cleanup.policy": "compact,delete"})
    flow.broker.create_topic(bounded, 1, {"message.timestamp.before.max.ms": str(DAY)})
    now = int(time.time() * 1000)
    cases: list[tuple[SourceRows, str]] = [
        (
            rows(flow, 0, [b"a", b"x" * LIMIT], topics=[small] * 2),
            rf"offset 1, for topic '{small}': its \d+ bytes before .* \(its max\.message\.bytes\)",
        ),
        (
            rows(flow, 0, [b"a", b"x" * 1_000_001]),
            r"offset 1, for topic .*: the record is larger .*kafka\['message\.max\.bytes'\]",
        ),
        (
            rows(flow, 0, [b"a", b"b"], topics=[compacted] * 2, keys=[b"k", None]),
            rf"offset 1, for topic '{compacted}': .* is compacted, and the record has no key",
        ),
        (
            rows(flow, 0, [b"a"], topics=[compacted]),
            rf"offset 0, for topic '{compacted}': .* is compacted, and the record has no key",
        ),
        (
            rows(flow, 0, [b"a", b"b"], topics=[bounded] * 2, timestamps=[now, now - DAY - 10_000]),
            rf"offset 1, for topic '{bounded}': its timestamp \d+ is outside the bounds",
        ),
        (
            rows(flow, 0, [b"a", b"b"], timestamps=[None, now + DAY]),
            r"offset 1, for topic .*: its timestamp \d+ is outside the bounds",
        ),
    ]
    with writing(flow) as found:
        for bad, reason in cases:
            with pytest.raises(TransactionError, match=f"^source {flow.source}-0 {reason}") as e:
                found.add(bad)
            assert not e.value.again
            assert not found.open


def test_what_just_fits_is_written(flow: Flow) -> None:
    small = small_topic(flow)
    overhead = 61 + 3 + 3 + 1 + 3 + 1
    value = b"x" * (LIMIT - overhead)
    with writing(flow, topic=small) as found:
        found.add(rows(flow, 0, [value]))
        found.commit()
        with pytest.raises(TransactionError, match="20001 bytes"):
            found.add(rows(flow, 1, [value + b"x"]))
    assert flow.values(small) == [value.decode()]
    client = ClientSettings({**flow.kafka, "message.max.bytes": 2_000})
    with writing(flow, client=client) as found:
        found.add(rows(flow, 1, [b"x" * (2_000 - 36)]))
        found.commit()
        with pytest.raises(TransactionError, match=r"message\.max\.bytes"):
            found.add(rows(flow, 2, [b"x" * (2_001 - 36)]))
    assert [len(v) for v in flow.values()] == [2_000 - 36]


def test_a_log_append_time_topic_takes_any_timestamp(flow: Flow) -> None:
    topic = small_topic(flow, LIMIT, {"message.timestamp.type": "LogAppendTime"})
    with writing(flow, topic=topic) as found:
        found.add(rows(flow, 0, [b"a", b"b"], timestamps=[1_000, 4_102_444_800_000]))
        found.commit()
    assert flow.values(topic) == ["a", "b"]


@pytest.mark.parametrize("stored", ["producer", "zstd", "uncompressed"])
def test_sizes_count_before_compression(flow: Flow, stored: str) -> None:
    topic = small_topic(flow, LIMIT, {"compression.type": stored})
    client = ClientSettings({**flow.kafka, "compression.type": "gzip"})
    with writing_dead_letters(flow, topic=topic, client=client) as (found, dlq):
        flow.produce([b"0", b"1"], partition=0)
        found.add(rows(flow, 0, [b"x" * 2 * LIMIT, b"x"]))
        found.commit()
    assert flow.values(topic) == ["x"]
    assert flow.values(dlq) == ["0"]


# Dead letters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", ["gzip", "lz4", "snappy", "zstd"])
def test_what_grows_when_the_broker_compresses_it_is_counted(flow: Flow, stored: str) -> None:
    """Incompressible data grows when compressed, and the broker refuses it."""
    client = ClientSettings({**flow.kafka, "compression.type": "none"})
    configs = {"compression.type": stored}
    # Two of them fill a batch to the last byte.
    half: list[bytes | None] = [random.Random(n).randbytes(LIMIT // 2 - 42) for n in range(20)]
    whole = random.Random(1).randbytes(LIMIT - 72)
    assert batch_size(None, whole, []) == LIMIT
    flow.produce(range(21), partition=0)
    with writing_dead_letters(flow, client=client) as (found, dlq):
        topic = small_topic(flow, configs=configs)
        topics: list[str | None] = [topic] * len(half)
        found.add(rows(flow, 0, half, topics=topics))
        found.add(rows(flow, len(half), [whole], topics=[topic]))
        found.commit()
    assert [record.value() for record in flow.written(topic)] == half
    assert flow.values(dlq) == [str(len(half))]


def test_bad_rows_become_dead_letters_in_the_same_transaction(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[str] = []
    genuine = TransactionWriter._give_up

    def noted(self: TransactionWriter) -> None:
        given_up.append("refused")
        genuine(self)

    monkeypatch.setattr(TransactionWriter, "_give_up", noted)
    small = small_topic(flow)
    flow.produce(range(3_000), partition=0)
    values: list[bytes | None] = [b"x" * (LIMIT + n if n % 100 == 7 else 100) for n in range(1_000)]
    with writing_dead_letters(flow, topic=small, max_transaction_records=10_000) as (found, dlq):
        for first in (0, 1_000, 2_000):
            found.add(rows(flow, first, values))
        found.commit()
        assert found.letters is not None
        assert found.letters.counts.reasons == {"too_large": 30}
    assert len(flow.written(small)) == 2_970
    assert sorted(map(int, flow.values(dlq))) == [n for n in range(3_000) if n % 100 == 7]
    assert given_up == []


def test_dead_letters_never_exceed_their_topics_limit(flow: Flow) -> None:
    flow.produce(["x" * 9_000, *["y" * 1_000] * 99], partition=0)
    values: list[bytes | None] = [b"z"] * 100
    old: list[int | None] = [1_000] * 100
    bounded = {"max.message.bytes": "5000", "message.timestamp.before.max.ms": str(DAY)}
    compacted = f"compacted-{flow.name}"
    flow.broker.create_topic(compacted, 1, {"cleanup.policy": "compact"})
    with writing_dead_letters(flow, bounded, topic=compacted) as (found, dlq):
        found.add(rows(flow, 0, values, timestamps=old))
        found.commit()
    first, *others = flow.written(dlq)
    assert (first.value(), headers_of(first)["__dlq.errors.omitted"]) == (
        None,
        "value of 9000 bytes",
    )
    assert [len(m.value() or b"") for m in others] == [1_000] * 99
    assert flow.committed() == {0: 100}


@pytest.mark.parametrize("part", ["key", "headers", "value"])
def test_a_default_dead_letter_leaves_out_what_is_too_large(flow: Flow, part: str) -> None:
    content = b"x" * 999_900
    given: dict[str, Any] = {"key": b"k", "headers": [("h", b"h")], "value": b"v"}
    given[part] = [("h", content)] if part == "headers" else content
    producer = KafkaProducer(bootstrap_servers=flow.bootstrap_servers, max_request_size=2_000_000)
    with closing(producer):
        producer.send(flow.source, **given, partition=0).get(60)
    with writing_dead_letters(flow) as (found, dlq):
        found.add(support.writing.rows(flow, 0, 0, error=pa.array(["bad"])))
        found.commit()
    (dead_letter,) = flow.written(dlq)
    headers = headers_of(dead_letter)
    size = 999_901 if part == "headers" else 999_900
    assert headers["__dlq.errors.omitted"] == f"{part} of {size} bytes"
    assert dead_letter.key() == (None if part == "key" else b"k")
    assert dead_letter.value() == (None if part == "value" else b"v")
    assert headers.get("h") == (None if part == "headers" else "h")
    assert flow.committed() == {0: 1}


def test_a_dead_letter_too_large_for_its_topic_ends_the_query(flow: Flow) -> None:
    flow.produce(["a"], partition=0, key=b"k" * 6_000)
    small = small_topic(flow)
    with writing_dead_letters(flow, {"max.message.bytes": "200"}, topic=small) as (found, dlq):
        with pytest.raises(TransactionError, match="headers that explain it are too") as error:
            found.add(rows(flow, 0, [b"x" * LIMIT]))
        assert not error.value.again
        found.abort()
    assert flow.values(dlq) == []


# The client's queue ------------------------------------------------------------------------------

QUEUE = 512 * 1024


@pytest.mark.timeout(60)
@pytest.mark.parametrize("key", [None, b"k"])
def test_a_row_larger_than_the_queue_is_a_dead_letter(flow: Flow, key: bytes | None) -> None:
    flow.produce(["a", "b", "c"], partition=0)
    client = ClientSettings({**flow.kafka, "queue.buffering.max.kbytes": QUEUE // 1024})
    values: list[bytes | None] = [b"a", b"x" * (QUEUE + 1), b"x" * QUEUE]
    fault = rf"its value of {QUEUE + 1} bytes .*\(kafka\['queue\.buffering\.max\.kbytes'\]\)"
    with writing_dead_letters(flow, client=client) as (found, dlq):
        found.add(rows(flow, 0, values, keys=[key] * 3))
        found.commit()
    (dead_letter,) = flow.written(dlq)
    assert re.search(fault, headers_of(dead_letter)["__dlq.errors.message"])
    assert [len(m.value() or b"") for m in flow.written()] == [1, QUEUE]
    with writing(flow, client=client) as found:
        with pytest.raises(TransactionError, match=f"{flow.source}-0 offset 4, .*{fault}") as error:
            found.add(rows(flow, 3, [b"a", values[1]], keys=[key] * 2))
        assert not error.value.again


@pytest.mark.slow
def test_a_row_larger_than_the_default_queue(flow: Flow) -> None:
    """After all other limits are raised as their errors advise."""
    topic = small_topic(flow, 100_000_000)
    client = ClientSettings({**flow.kafka, "message.max.bytes": 100_000_000})
    with (
        writing(flow, topic=topic, client=client) as found,
        pytest.raises(TransactionError, match=r"value of 70000000 .*max\.kbytes'\]\)"),
    ):
        found.add(rows(flow, 0, [b"x" * 70_000_000]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("timestamp", [None, 1_700_000_000_000])
def test_a_queue_that_is_full_while_it_is_empty_ends_the_wait(
    flow: Flow, timestamp: int | None
) -> None:
    """Whatever librdkafka counts; also for rows that need their own calls."""
    client = ClientSettings({**flow.kafka, "queue.buffering.max.kbytes": QUEUE // 1024})
    with writing(flow, client=client) as found:
        found._rules._queue = 1 << 40
        many: list[bytes | None] = [b"x" * (QUEUE // 2 - 1)] * 5
        fits = rows(flow, 0, many, timestamps=[timestamp] * 5)
        found.add(fits)
        bad = rows(flow, 5, [b"a", b"x" * (QUEUE + 1)], timestamps=[timestamp] * 2)
        with pytest.raises(TransactionError, match=r"offset 6, .*'queue\.buffering") as error:
            found.add(bad)
        assert not error.value.again
        found.abort()


# Configs that change -----------------------------------------------------------------------------


@contextmanager
def with_another_limit(flow: Flow, limit: int) -> Iterator[tuple[TransactionWriter, str]]:
    """Transactions to a topic that has one row, and got its limit later."""
    topic = small_topic(flow)
    with writing(flow, topic=topic) as found:
        found.add(rows(flow, 0, [b"a"]))
        found.commit()
        set_limit(flow, topic, limit)
        yield found, topic


def test_a_lowered_limit_repeats_the_attempt(flow: Flow) -> None:
    topic = small_topic(flow)
    values: list[bytes | None] = [b"x" * 100] * 500
    with writing(flow, topic=topic) as found:
        found.add(rows(flow, 0, values))
        found.commit()
        set_limit(flow, topic, 5_000)
        found.add(rows(flow, 500, values))
        with pytest.raises(TransactionError, match="config has changed meanwhile") as error:
            found.commit()
        assert error.value.again
        # What the next attempt does, with the limit that is known now.
        found.add(rows(flow, 500, values))
        found.commit()
    assert len(flow.written(topic)) == 1_000
    assert flow.committed() == {0: 1_000}


def test_a_lowered_limit_that_is_known_when_a_batch_is_refused(flow: Flow) -> None:
    with with_another_limit(flow, 5_000) as (found, topic):

        def write() -> None:
            # Adding the rows may already notice that the broker has refused some of them.
            found.add(rows(flow, 1, [b"x" * 100] * 500))
            # Another task's rows may tell, as those of a topic whose config is not known.
            assert found._rules.changed(topic)
            found.commit()

        with pytest.raises(TransactionError, match="Message size too large") as error:
            write()
        # Each row fits, in a smaller batch.
        assert error.value.again


def test_the_row_is_named_if_it_is_refused_while_more_are_added(flow: Flow) -> None:
    with with_another_limit(flow, 5_000) as (found, topic):
        found.add(rows(flow, 1, [b"b", b"x" * 10_000]))
        # librdkafka has sent them meanwhile, and takes no more records.
        time.sleep(1)
        blamed = f"source {flow.source}-0 offset 2, for topic '{topic}'.*Message size too large"
        with pytest.raises(TransactionError, match=blamed) as error:
            found.add(rows(flow, 3, [b"c"]))
        assert error.value.again
        assert not error.value.too_slow
        found.abort()
        with pytest.raises(TransactionError, match=r"offset 2.*max\.message\.bytes") as error:
            found.add(rows(flow, 1, [b"b", b"x" * 10_000]))
        assert not error.value.again
    assert flow.values(topic) == ["a"]
    assert flow.committed() == {0: 1}


def test_a_limit_that_is_raised_counts_before_a_row_is_refused(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_eos._worker.topic_rules._FRESH", 0.2)
    with with_another_limit(flow, 3 * LIMIT) as (found, topic):
        time.sleep(0.5)
        found.add(rows(flow, 1, [b"x" * 2 * LIMIT]))
        found.commit()
    assert [len(v) for v in flow.values(topic)] == [1, 2 * LIMIT]


# Names -------------------------------------------------------------------------------------------


def test_rows_for_unwritable_topic_names_become_dead_letters(flow: Flow) -> None:
    impossible = ["__consumer_offsets", "__transaction_state", "no name", "x" * 250, "..", "", "é"]
    flow.produce(impossible, partition=0)
    values: list[bytes | None] = [b"v"] * len(impossible)
    began = time.monotonic()
    with writing_dead_letters(flow) as (found, dlq):
        found.add(rows(flow, 0, values, topics=[*impossible]))
        found.commit()
        assert found.letters is not None
        assert found.letters.counts.reasons == {"unknown_topic": len(impossible)}
    assert time.monotonic() - began < 10
    assert flow.values(dlq) == impossible
    messages = [headers_of(m)["__dlq.errors.message"] for m in flow.written(dlq)]
    assert messages[:3] == [
        "topic '__consumer_offsets': it is an internal topic of Kafka",
        "topic '__transaction_state': it is an internal topic of Kafka",
        "topic 'no name': no topic can have such a name",
    ]


def test_without_a_dead_letter_topic_such_a_name_ends_the_query(flow: Flow) -> None:
    reason = r"offset 0: the row's topic '__consumer_offsets' can't be written to: .*internal"
    with writing(flow) as found, pytest.raises(TransactionError, match=reason) as error:
        found.add(rows(flow, 0, [b"v"], topics=["__consumer_offsets"]))
    assert not error.value.again


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
    flow.produce(range(5), partition=0)
    began = time.monotonic()
    with writing_dead_letters(flow, max_block_ms=1_000) as (found, dlq):
        for offset in range(4):
            found.add(rows(flow, offset, [b"v"], topics=[f"nowhere-{offset}"]))
        # It exists by now.
        flow.broker.create_topic(f"late-{flow.name}", 1)
        found.add(rows(flow, 4, [b"v"], topics=[f"late-{flow.name}"]))
        found.commit()
        assert len(found._targets._absent) == 1
    assert time.monotonic() - began > 1
    assert waited_in_vain == [{"nowhere-0"}]
    assert flow.values(dlq) == ["0", "1", "2", "3"]
    assert flow.values(f"late-{flow.name}") == ["v"]
