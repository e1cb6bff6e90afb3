"""Arbitrary records, and a check that each is written once or becomes a dead letter."""

import bz2
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from spark_eos import ExactlyOnceSink
from support.apis import Queries, ReportFile, started
from support.dead_letters import create_dead_letter_topic, headers_of
from support.flow import Flow
from support.mirroring import MirroredFlow
from support.sinks import arguments

# The latest Java time in milliseconds that Spark can represent in microseconds.
MOST = ((1 << 63) - 1) // 1000
KEPT = {"retention.ms": "-1", "segment.ms": str(1 << 62), "message.timestamp.type": "CreateTime"}
FAR = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}


class Name(str):
    """A header name of arbitrary bytes, as Latin-1: Python clients accept only text as names."""

    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:
        return super().encode("latin-1")


class Given(NamedTuple):
    """A record whose headers give the value of each column of its row."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[bytes, bytes]]


CONTENTS = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.sampled_from(
        [
            b"caf\xe9",
            b"{}",
            b'{"a":' * 5_000,
            b"\xff" * 300,
            b"\0",
            b"a\0b",
            pickle.dumps(1),
            bz2.compress(b"x")[:-1],
            b"x" * 1_100_000,
        ]
    ),
)
TIMES = st.one_of(
    st.integers(-MOST, MOST),
    st.sampled_from([0, -1, -2, 1_700_000_000_000, 1_700_000_000_000_000, MOST, -MOST]),
    st.integers(1_600_000_000_000, 1_800_000_000_000),
)
MICROSECONDS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([-(1 << 63), (1 << 63) - 1, 0, -1, 1])
)
NAMES = st.one_of(st.binary(max_size=8), st.sampled_from([b"caf\xe9", b"a\0b", b"", b"h"]))
NUMBERS = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-3, 3)
TOLD = st.fixed_dictionaries(
    {},
    optional={
        b"topic": st.binary(max_size=20) | st.sampled_from([b"..", b"no-such", b"caf\xe9"]),
        b"partition": NUMBERS.map(lambda number: str(number).encode()),
        b"time": MICROSECONDS.map(lambda number: str(number).encode()),
        b"name": NAMES,
        b"error": CONTENTS.map(lambda content: content or b""),
    },
)
OTHERS = st.lists(st.tuples(NAMES, st.binary(max_size=8)), max_size=2)
RECORDS = st.builds(
    # kafka-python sends no record without both key and value.
    lambda key, value, timestamp, named, others: Given(
        key, b"" if key is None and value is None else value, timestamp, [*named.items(), *others]
    ),
    CONTENTS,
    CONTENTS,
    TIMES,
    # Most records can be written.
    st.just({}) | TOLD,
    OTHERS,
)


def generated(strategy: st.SearchStrategy[Any], number: int) -> list[Any]:
    """Return this many examples of a strategy."""
    made: list[Any] = []

    @seed(random.getrandbits(64))  # derived from the test order's seed
    @settings(
        max_examples=number,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(strategy)
    def collect(one: Any) -> None:
        made.append(one)

    with warnings.catch_warnings():
        # Hypothesis prints a large record for its reports, and then warns of the text's length.
        warnings.simplefilter("ignore", HypothesisWarning)
        collect()
    return made


def _produce(servers: str, topic: str, records: Sequence[Given]) -> None:
    """Append records, each with its number as the last header."""
    producer = KafkaProducer(bootstrap_servers=servers, max_request_size=4_000_000, linger_ms=20)
    for number, record in enumerate(records):
        named = [(Name(name.decode("latin-1")), content) for name, content in record.headers]
        named.append((Name("number"), str(number).encode()))
        content = record.value, record.key, named
        producer.send(topic, *content, number % 2, record.timestamp)
    producer.flush(60)
    producer.close()


@contextmanager
def zone_of_session(spark: SparkSession, zone: str) -> Iterator[None]:
    setting = "spark.sql.session.timeZone"
    before = spark.conf.get(setting)
    spark.conf.set(setting, zone)
    try:
        yield
    finally:
        spark.conf.set(setting, str(before))


def check(
    queries: Queries,
    flow: Flow,
    made: Callable[[DataFrame], DataFrame],
    zone: str,
    records: Sequence[Given],
    *,
    relayed: bool = True,
) -> None:
    """Write records and check that each is found once; relayed records are unchanged."""
    source, target, dlq = f"any-{flow.name}", f"kept-{flow.name}", create_dead_letter_topic(flow)
    of_source = flow.other if isinstance(flow, MirroredFlow) else flow.broker
    of_source.create_topic(source, 2, {**KEPT, **FAR, "max.message.bytes": "4000000"})
    flow.broker.create_topic(target, 2, KEPT)
    _produce(flow.source_servers, source, records)
    options = {
        "progress_topic": f"progress-{flow.name}",
        "progress_partitions": 3,
        **flow.options(),
        "topic": target,
        "dead_letter_topic": dlq,
        "max_dead_letters": 1.0,
        "max_block_ms": 2_000,  # the wait for missing topics and partitions
        "on_batch": ReportFile(Path(f"{flow.checkpoint}-reports")),
    }
    queries.ask(_run, options, source, made, zone)
    (report,) = options["on_batch"].reports()
    rows, dead = flow.written(target), flow.written(dlq)
    assert (len(rows), len(dead)) == (report["rows_written"], sum(report["dead_letters"].values()))
    assert len(rows) + len(dead) == len(records)
    places: list[int | None] = [int(headers_of(row)["number"]) for row in rows]
    for dead_letter in dead:
        headers: Any = dead_letter.headers() or ()
        texts = {name: str(content, "utf-8", "replace") for name, content in headers}
        place = texts.get("__dlq.errors.offset"), texts.get("__dlq.errors.partition")
        at = 2 * int(place[0]) + int(place[1]) if place[0] and place[1] else texts.get("number")
        places.append(None if at is None else int(at))
        if at is not None and report["delivery"] != "staged":
            record = records[int(at)]
            omitted = texts.get("__dlq.errors.omitted", "")
            assert dead_letter.key() == record.key or "key of" in omitted
            assert dead_letter.value() == record.value or "value of" in omitted
    # A staged dead letter whose headers can't be written has no number.
    known = [place for place in places if place is not None]
    assert len(known) == len({*known})
    assert len(known) == len(records) or report["delivery"] == "staged"
    # There are both rows and dead letters.
    assert rows
    assert len(report["dead_letters"]) > 1 or not relayed
    assert dead
    for row in rows:
        record = records[int(headers_of(row)["number"])]
        assert row.key() == record.key
        assert row.value() == record.value or not relayed
        time = dict(record.headers[::-1]).get(b"time")
        if time is not None:
            assert row.timestamp()[1] == (int(time) // 1000 or 1)


def _run(
    spark: SparkSession,
    options: dict[str, Any],
    source: str,
    made: Callable[[DataFrame], DataFrame],
    zone: str,
) -> None:
    with zone_of_session(spark, zone), closing(ExactlyOnceSink(**arguments(**options))) as sink:
        frame = sink.read(spark, subscribe=source, include_headers=True)
        query = started(sink.write(made(frame)).trigger(availableNow=True))
        assert query.awaitTermination(240)
