"""Whatever a record and a row hold: the record is written or becomes a dead letter.

The query ends successfully, in each of Spark's time zones, on each delivery. Records are generated;
a batch of many of them costs as much as one.
"""

import bz2
import configparser
import datetime
import json
import pickle
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import guarded
from spark_eos._spark.session_time import zone_of
from support.dead_letters import headers_of, letter_topic
from support.flow import Flow
from support.queries import run_available

# Of Java's milliseconds, those that Spark has microseconds for.
MOST = ((1 << 63) - 1) // 1000
KEPT = {"retention.ms": "-1", "segment.ms": str(1 << 62), "message.timestamp.type": "CreateTime"}
FAR = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
ZONES = ["UTC", "Europe/Berlin", "GMT+8", "UTC+8", "PST", "Z", "+05:30", "America/New_York"]


class Name(str):
    """A header's name of any bytes, as Latin-1: clients in Python take names as text only."""

    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:
        return super().encode("latin-1")


class Given(NamedTuple):
    """A record, and in its headers what its row is to hold in each column."""

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
    lambda key, value, timestamp, told, others: Given(
        key, b"" if key is None and value is None else value, timestamp, [*told.items(), *others]
    ),
    CONTENTS,
    CONTENTS,
    TIMES,
    # Most of them can be written.
    st.just({}) | TOLD,
    OTHERS,
)


def generated(strategy: st.SearchStrategy[Any], number: int) -> list[Any]:
    made: list[Any] = []

    @seed(random.getrandbits(64))  # of the test's order
    @settings(
        max_examples=number,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(strategy)
    def collect(one: Any) -> None:
        made.append(one)

    collect()
    return made


def produce(flow: Flow, topic: str, records: Sequence[Given]) -> None:
    """Append records, each with its number as the last header."""
    producer = KafkaProducer(
        bootstrap_servers=flow.bootstrap_servers, max_request_size=4_000_000, linger_ms=20
    )
    for number, record in enumerate(records):
        named = [(Name(name.decode("latin-1")), content) for name, content in record.headers]
        named.append((Name("number"), str(number).encode()))
        content = record.value, record.key, named
        producer.send(topic, *content, number % 2, record.timestamp)
    producer.flush(60)
    producer.close()


def _told(name: str) -> Any:
    """A column that a record's headers tell, of any bytes."""
    found = F.filter("headers", lambda header: header["key"] == name)
    return F.get(found, 0)["value"]


def plain(frame: DataFrame) -> DataFrame:
    """Rows of columns that hold any bytes and numbers."""
    header = F.struct(_told("name").cast("string").alias("key"), F.lit(b"x").alias("value"))
    number = F.struct(F.lit("number").alias("key"), _told("number").alias("value"))
    headers = F.array(number, F.when(_told("name").isNotNull(), header).otherwise(number))
    return frame.select(
        "source",
        "key",
        "value",
        _told("topic").cast("string").alias("topic"),
        _told("partition").cast("string").cast("int").alias("partition"),
        F.timestamp_micros(_told("time").cast("string").cast("long")).alias("timestamp"),
        headers.alias("headers"),
        _told("error").cast("string").alias("error"),
    )


PARSERS: list[Callable[[bytes], object]] = [
    json.loads,
    bytes.decode,
    pickle.loads,
    bz2.decompress,
    lambda value: struct.unpack("<q", value),
    lambda value: configparser.ConfigParser().read_string(value.decode("latin-1")),
    lambda value: datetime.datetime.fromtimestamp(len(value) ** 9, datetime.timezone.utc),
    len,
]


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    """The row, if one of some parsers takes its value."""
    number = int(row["headers"][0]["value"])
    PARSERS[number % len(PARSERS)](row["value"])
    return {**row, "timestamp": row["timestamp"]}


def _parsed_frame(rows: Any) -> Any:
    return rows.apply(lambda row: _parsed(row.to_dict()), axis=1, result_type="expand")


def _function(frame: DataFrame, kind: str, **options: Any) -> DataFrame:
    rows = plain(frame).drop("error")
    return guarded(
        rows,
        _parsed if kind == "rows" else _parsed_frame,
        "key binary, value binary, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>",
        kind=kind,
        **options,
    )


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
    spark: SparkSession, flow: Flow, made: Callable[[DataFrame], DataFrame], zone: str, number: int
) -> None:
    """Write many generated records, and find each of them once."""
    source, target, letters = f"any-{flow.name}", f"kept-{flow.name}", letter_topic(flow)
    flow.broker.create_topic(source, 2, {**KEPT, **FAR, "max.message.bytes": "4000000"})
    flow.broker.create_topic(target, 2, KEPT)
    records = generated(RECORDS, number)
    produce(flow, source, records)
    staged: dict[str, Any] = {"progress_topic": f"progress-{flow.name}", "progress_partitions": 3}
    with zone_of_session(spark, zone):
        (report,) = run_available(
            spark,
            flow,
            made,
            read={"subscribe": source, "include_headers": True},
            topic=target,
            dead_letter_topic=letters,
            max_dead_letters=1.0,
            max_block_ms=2_000,  # for topics and partitions that rows name and there are not
            **staged,
        )
    rows, dead = flow.written(target), flow.written(letters)
    assert (len(rows), len(dead)) == (report.rows_written, sum(report.dead_letters.values()))
    assert len(rows) + len(dead) == len(records)
    places: list[int | None] = [int(headers_of(row)["number"]) for row in rows]
    for letter in dead:
        headers: Any = letter.headers()
        told = {name: content.decode(errors="replace") for name, content in headers}
        place = told.get("__dlq.errors.offset"), told.get("__dlq.errors.partition")
        at = 2 * int(place[0]) + int(place[1]) if place[0] and place[1] else told.get("number")
        places.append(None if at is None else int(at))
        if at is not None and report.delivery != "staged":
            record = records[int(at)]
            omitted = told.get("__dlq.errors.omitted", "")
            assert letter.key() == record.key or "key of" in omitted
            assert letter.value() == record.value or "value of" in omitted
    # A staged letter whose headers can't be written tells no number.
    known = [place for place in places if place is not None]
    assert len(known) == len({*known})
    assert len(known) == len(records) or report.delivery == "staged"
    # Both ways are taken.
    assert rows
    assert len(report.dead_letters) > 1
    for row in rows:
        record = records[int(headers_of(row)["number"])]
        assert (row.key(), row.value()) == (record.key, record.value)
        time = dict(record.headers[::-1]).get(b"time")
        if time is not None:
            assert row.timestamp()[1] == (int(time) // 1000 or 1)


def _staged(made: Callable[..., DataFrame]) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: made(frame).drop("source").repartition(2)


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "direct": plain,
    "staged": _staged(plain),
    "direct, rows": lambda frame: _function(frame, "rows"),
    "staged, rows": _staged(lambda frame: _function(frame, "rows", errors="column")),
    "direct, pandas": lambda frame: _function(frame, "pandas"),
}


@pytest.mark.parametrize(("query", "zone"), [("direct, rows", "GMT+8"), ("staged", "PST")], ids=str)
def test_each_record_is_written_or_a_dead_letter(
    flow: Flow, spark_eos_session: SparkSession, query: str, zone: str
) -> None:
    check(spark_eos_session, flow, QUERIES[query], zone, 150)


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("query", QUERIES)
def test_each_of_many_records_is_written_or_a_dead_letter(
    flow: Flow, spark_eos_session: SparkSession, query: str, zone: str
) -> None:
    check(spark_eos_session, flow, QUERIES[query], zone, 1_000)


@pytest.mark.slow
def test_python_and_spark_agree_on_each_time_zone(spark_eos_session: SparkSession) -> None:
    ids = spark_eos_session._jvm.java.time.ZoneId  # type: ignore[union-attr]
    others = ["Z", "UT", "+8", "-08:30", "+8:30", "-0530", "UTC+8", "GMT-3:30", "UT+08:00"]
    names = [*ids.getAvailableZoneIds(), *ids.SHORT_IDS, *others]
    # Of an old standard, which later versions of Java and Python's database leave out.
    names = [name for name in names if not name.startswith("SystemV/")]
    moments = [
        datetime.datetime(year, month, 1, 12, tzinfo=datetime.timezone.utc)
        for year in (1950, 2024)
        for month in (1, 7)
    ]
    frame = spark_eos_session.createDataFrame([(name,) for name in names], "name string")
    local = (
        F.from_utc_timestamp(F.timestamp_seconds(F.lit(moment.timestamp())), F.col("name"))
        for moment in moments
    )
    seconds_of = (F.unix_seconds(time).alias(str(n)) for n, time in enumerate(local))
    told = frame.select("name", *seconds_of).collect()
    wrong = {}
    for name, *seconds in told:
        zone = zone_of(name)
        for moment, local in zip(moments, seconds, strict=True):
            offset = moment.astimezone(zone).utcoffset()
            if offset is None or local - moment.timestamp() != offset.total_seconds():
                wrong[name] = moment, offset, local - moment.timestamp()
    assert wrong == {}
