"""Guarded functions get and return times in the session's zone; on Arrow batches, without Spark."""

import datetime
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from spark_eos._spark.session_time import SessionTime, zone_of
from spark_eos.errors import ConfigurationError

UTC = datetime.timezone.utc
LOCAL = datetime.datetime(2024, 7, 1, 14)  # noqa: DTZ001 - in Berlin
NOON = datetime.datetime(2024, 7, 1, 12, tzinfo=UTC)
LEAST = -(1 << 63)


@pytest.mark.parametrize(
    ("name", "hours"),
    [
        *((name, 0) for name in ("Z", "UTC", "GMT", "UT", "GMT0", "Etc/UTC", "+00:00", "UTC+0")),
        *((name, 8) for name in ("GMT+8", "UTC+8", "UT+08", "+8", "+08", "+8:0", "+08:00")),
        *((name, -5.5) for name in ("-05:30", "-0530", "GMT-05:30", "-05:30:00")),
        ("Europe/Berlin", 2),
        ("PST", -7),
        ("EST", -5),
        ("VST", 7),
    ],
)
def test_zones_by_the_names_that_spark_takes(name: str, hours: float) -> None:
    assert NOON.astimezone(zone_of(name)).utcoffset() == datetime.timedelta(hours=hours)


def test_a_zone_that_python_does_not_know_is_no_rows_fault() -> None:
    for name in ("Europe/Nowhere", "../etc", ""):
        with pytest.raises(ConfigurationError, match="does not know the session's time zone"):
            zone_of(name)


def _times(*instants: int | None, zone: str | None = "GMT+2") -> pa.Array:
    kind = pa.timestamp("us")
    return pa.array(instants, pa.int64()).cast(kind).cast(pa.timestamp("us", zone))


def _batch(**columns: pa.Array) -> pa.RecordBatch:
    # A slice, whose buffers begin before it.
    whole = {name: pa.concat_arrays([column[:1], column]) for name, column in columns.items()}
    return pa.RecordBatch.from_pydict(whole).slice(1)


AT = int(NOON.timestamp()) * 1_000_000
TWICE = int(datetime.datetime(2024, 10, 27, 0, 30, tzinfo=UTC).timestamp()) * 1_000_000
HOUR = 3_600_000_000


def _nested(zone: str) -> pa.DataType:
    time = pa.timestamp("us", zone)
    return pa.list_(pa.struct([("t", time), ("m", pa.map_(pa.string(), time))]))


def test_functions_get_local_times() -> None:
    nested = pa.array([[{"t": NOON, "m": [("a", NOON)]}], None, [None]], _nested("PST"))
    plain = _times(AT, None, AT, zone=None)
    batch = _batch(t=_times(AT, None, 1), nested=nested, plain=plain, n=pa.array([1, 2, None]))
    time = SessionTime("Europe/Berlin")
    first, second, third = time.rows(batch)
    inner = {"t": LOCAL, "m": [("a", LOCAL)]}
    assert first == {"t": LOCAL, "nested": [inner], "plain": NOON.replace(tzinfo=None), "n": 1}
    assert second == {"t": None, "nested": None, "plain": None, "n": 2}
    assert third["t"].isoformat() == "1970-01-01T01:00:00.000001"
    assert third["nested"] == [None]
    frame = time.pandas(batch)
    assert [None if pd.isna(one) else one for one in frame["t"]] == [LOCAL, None, third["t"]]
    assert frame["nested"][0][0]["t"] == LOCAL
    assert frame["plain"][0] == NOON.replace(tzinfo=None)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "GMT+8", "PST", "America/New_York"])
def test_what_a_function_gets_and_returns_is_what_it_was(zone: str) -> None:
    time, kind = SessionTime(zone), pa.timestamp("us", "UTC")
    # The hour that Berlin has twice, and the one that it leaves out; the last day that Python has.
    instants = [TWICE, TWICE + HOUR, 1_711_848_600_000_000, -1, 0, -60_000_000_000_000_000, None]
    batch = _batch(t=_times(*instants, 253_402_000_000_000_000))
    values = [row["t"] for row in time.rows(batch)]
    assert all(value.tzinfo is None for value in values if value is not None)
    assert time.array(values, kind).cast(pa.int64()).equals(batch.column(0).cast(pa.int64()))
    frame = time.pandas(batch.slice(1))
    back = pa.Array.from_pandas(time.series(frame["t"], kind)).cast(kind)
    assert back.cast(pa.int64()).equals(batch.slice(1).column(0).cast(pa.int64()))


def test_times_that_functions_make() -> None:
    time, kind = SessionTime("Europe/Berlin"), pa.timestamp("us", "UTC")
    tokyo = NOON.astimezone(zone_of("Asia/Tokyo"))
    for value in (
        LOCAL,
        NOON,
        tokyo,
        np.datetime64(LOCAL),
        pd.Timestamp(LOCAL),
        pd.Timestamp(tokyo),
    ):
        assert time.array([value, None], kind).cast(pa.int64()).to_pylist() == [AT, None]
        series = pd.Series([value, None])
        found = pa.Array.from_pandas(time.series(series, kind)).cast(kind)
        assert found.cast(pa.int64()).to_pylist() == [AT, None]
    # Other columns stay: a time without a zone is none of the session's.
    assert time.array([LOCAL], pa.timestamp("us")).to_pylist() == [LOCAL]
    values: list[Any] = [
        [{"t": LOCAL, "m": {"a": LOCAL}}],
        [{"t": LOCAL, "m": [("a", LOCAL)]}],
        np.array([{"t": np.datetime64(LOCAL), "m": None}], object),
        None,
    ]
    kind = _nested("UTC")
    for nested in (
        time.array(values, kind),
        pa.Array.from_pandas(time.series(pd.Series([*values, float("nan")]), kind), type=kind),
    ):
        assert nested.null_count == len(nested) - 3
        assert {row[0]["t"].timestamp() for row in nested.to_pylist() if row} == {AT / 1e6}


def test_nanoseconds_of_pandas_are_cut_off_as_by_spark() -> None:
    moment = pd.Series(pd.to_datetime([1_719_835_200_123_456_789], unit="ns"))
    made = SessionTime("UTC").series(moment, pa.timestamp("us", "UTC"))
    assert pa.Array.from_pandas(made).cast(pa.int64()).to_pylist() == [1_719_835_200_123_456]


@pytest.mark.parametrize("instant", [LEAST, -LEAST - 1, 1_700_000_000_000_000_000])
def test_a_time_that_python_does_not_have(instant: int) -> None:
    time, batch = SessionTime("Europe/Berlin"), _batch(t=_times(instant))
    with pytest.raises((ValueError, OverflowError)):
        time.rows(batch)
    # pandas has it, but for the last ones.
    try:
        (found,) = time.pandas(batch)["t"].astype("int64")
    except pa.ArrowInvalid:
        assert instant == -LEAST - 1
    else:
        assert found - instant in {HOUR, 3_208_000_000}
