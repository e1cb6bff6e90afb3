"""Arbitrary records and rows: each record is written or becomes a dead letter.

The query ends successfully in each of Spark's time zones, with each delivery and API. Records are
generated in large batches, which cost no more than one record.
"""

import datetime
import zoneinfo
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eos._spark.session_time import zone_of
from spark_eos.testing import EmbeddedSchemaRegistry
from support.any_records import RECORDS, check, generated
from support.any_rows import QUERIES, staged
from support.any_schemas import FORMATS, coded, records_of
from support.apis import Queries
from support.connect_server import ConnectService
from support.flow import Flow
from support.mirroring import MirroredFlow

ZONES = ["UTC", "Europe/Berlin", "GMT+8", "UTC+8", "PST", "Z", "+05:30", "America/New_York"]


@pytest.fixture
def queries(request: pytest.FixtureRequest) -> Queries:
    """Queries of classic Spark."""
    request.getfixturevalue("spark_eos_session")
    return Queries()


@pytest.mark.slow
@pytest.mark.parametrize(("query", "zone"), [("rows", "GMT+8"), ("staged", "PST")], ids=str)
def test_each_record_is_written_or_a_dead_letter(
    flow: Flow, queries: Queries, query: str, zone: str
) -> None:
    check(queries, flow, QUERIES[query], zone, generated(RECORDS, 150))


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("query", QUERIES)
def test_each_of_many_records_is_written_or_a_dead_letter(
    flow: Flow, queries: Queries, query: str, zone: str
) -> None:
    check(queries, flow, QUERIES[query], zone, generated(RECORDS, 1_000))


@pytest.mark.slow
@pytest.mark.parametrize("number", [150, pytest.param(1_000, marks=pytest.mark.slow)])
def test_each_record_of_another_cluster(
    mirrored_flow: MirroredFlow, queries: Queries, number: int
) -> None:
    check(queries, mirrored_flow, QUERIES["plain"], "Europe/Berlin", generated(RECORDS, number))


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_each_record_on_connect(flow: Flow, connect_service: ConnectService, query: str) -> None:
    records = generated(RECORDS, 1_000)
    check(connect_service.queries, flow, QUERIES[query], "UTC+8", records)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("delivery", "number"),
    [
        ("direct", 100),
        pytest.param("direct", 2_000, marks=pytest.mark.slow),
        pytest.param("staged", 1_000, marks=pytest.mark.slow),
        pytest.param("mirrored", 500, marks=pytest.mark.slow),
    ],
)
def test_each_record_of_a_schema(
    request: pytest.FixtureRequest,
    queries: Queries,
    schema_registry: EmbeddedSchemaRegistry,
    registry_client: SchemaRegistryClient,
    kind: str,
    delivery: str,
    number: int,
) -> None:
    flow: Flow = request.getfixturevalue("mirrored_flow" if delivery == "mirrored" else "flow")
    subject = f"any-{flow.name}-value"
    records = generated(records_of(registry_client, subject, kind), number)
    made = partial(coded, url=schema_registry.url, subject=subject)
    if delivery == "staged":
        made = partial(staged, make=partial(made, errors="column"))
    check(queries, flow, made, "America/New_York", records, relayed=False)


def _take_zones_from(path: Sequence[str]) -> None:
    zoneinfo.reset_tzpath(to=path)
    zoneinfo.ZoneInfo.clear_cache()
    zone_of.cache_clear()


@pytest.fixture
def _pinned_zones() -> Iterator[None]:
    """Zones of the package tzdata: before 1970, the databases of systems differ from Java's."""
    before = zoneinfo.TZPATH
    _take_zones_from([])
    yield
    _take_zones_from(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_pinned_zones")
def test_python_and_spark_agree_on_each_time_zone(spark_eos_session: SparkSession) -> None:
    ids = spark_eos_session._jvm.java.time.ZoneId  # type: ignore[union-attr]
    others = ["Z", "UT", "+8", "-08:30", "+8:30", "-0530", "UTC+8", "GMT-3:30", "UT+08:00"]
    names = [*ids.getAvailableZoneIds(), *ids.SHORT_IDS, *others]
    # Of an old standard, which later versions of Java and Python's database leave out.
    names = [name for name in names if not name.startswith("SystemV/")]
    # Since its version 2024b, the database gives these names another history before 1967.
    names = [name for name in names if name not in {"EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT"}]
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
    collected = frame.select("name", *seconds_of).collect()
    wrong = {}
    for name, *seconds in collected:
        zone = zone_of(name)
        for moment, local in zip(moments, seconds, strict=True):
            offset = moment.astimezone(zone).utcoffset()
            if offset is None or local - moment.timestamp() != offset.total_seconds():
                wrong[name] = moment, offset, local - moment.timestamp()
    assert wrong == {}
