"""Passes times to users' functions and back as local times in the session's zone, as Spark does."""

# Spark's mapInPandas and pandas UDFs do the same, for zones that pandas knows. This module never
# gives Arrow or pandas the name of a zone, because Java has names that Arrow and pandas don't know.

import datetime
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from spark_eos.errors import ConfigurationError

SETTING: Final = "spark.sql.session.timeZone"
_UTC: Final = datetime.timezone.utc
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d?))?(?::?(\d\d))?")
# Java's ZoneId.SHORT_IDS, which Spark accepts too.
_SHORT: Final[dict[str, str]] = dict(
    re.findall(
        r"(\w+)=(\S+)",
        "ACT=Australia/Darwin AET=Australia/Sydney AGT=America/Argentina/Buenos_Aires "
        "ART=Africa/Cairo AST=America/Anchorage BET=America/Sao_Paulo BST=Asia/Dhaka "
        "CAT=Africa/Harare CNT=America/St_Johns CST=America/Chicago CTT=Asia/Shanghai "
        "EAT=Africa/Addis_Ababa ECT=Europe/Paris EST=-05:00 HST=-10:00 "
        "IET=America/Indiana/Indianapolis IST=Asia/Kolkata JST=Asia/Tokyo MIT=Pacific/Apia "
        "MST=-07:00 NET=Asia/Yerevan NST=Pacific/Auckland PLT=Asia/Karachi PNT=America/Phoenix "
        "PRT=America/Puerto_Rico PST=America/Los_Angeles SST=Pacific/Guadalcanal "
        "VST=Asia/Ho_Chi_Minh",
    )
)
# The number that means NaT in pandas.
_NAT: Final = -(1 << 63)
# The first and last second since 1970 that Python can represent in every zone: years 2 to 9998.
_FIRST: Final = -62_104_060_800
_LAST: Final = 253_339_228_800

Change = Callable[[Any], Any]


@functools.cache
def zone_of(name: str) -> datetime.tzinfo:
    """Return the time zone for a name that Spark accepts as a session's time zone."""
    if name in {"Z", "UTC", "GMT", "UT"}:
        return _UTC
    own = _SHORT.get(name, name)
    if (offset := _OFFSET.fullmatch(own)) is not None:
        hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1:])
        length = datetime.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return datetime.timezone(-length if offset[1] == "-" else length)
    try:
        return ZoneInfo(own)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"Python does not know the session's time zone {name!r} ({SETTING}): install tzdata on "
            "the executors, or set another one"
        ) from error


class SessionTime:
    """The session's time zone; ``name`` is the driver's, for jobs that don't set one."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _zone(self) -> datetime.tzinfo:
        context = TaskContext.get()
        own = None if context is None else context.getLocalProperty(SETTING)
        return zone_of(own or self._name)

    # A function's arguments -----------------------------------------------------------------------

    def rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the rows of a batch with Python values."""
        names = batch.schema.names
        columns = map(self._values, batch.columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def pandas(self, batch: pa.RecordBatch) -> Any:
        """Return a batch as a pandas DataFrame."""
        columns = [self._local(column) for column in batch.columns]
        for column in columns:
            _check_has_no_nat(column)
        return pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pandas()

    def _values(self, column: pa.Array) -> list[Any]:
        change = _changing(column.type, functools.partial(_to_local, self._zone))
        values = column.cast(_without_zone(column.type)).to_pylist()
        return [change(value) for value in values] if change else values

    def _local(self, column: pa.Array) -> pa.Array:
        kind = _without_zone(column.type)
        if kind == column.type:
            return column
        if not pa.types.is_timestamp(kind):
            return pa.array(self._values(column), kind)
        parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        instants = column.cast(kind).cast(pa.int64())
        seconds = np.clip(np.asarray(pc.fill_null(instants, 0)) // parts, _FIRST, _LAST)
        different, places = np.unique(seconds, return_inverse=True)
        offsets = np.array([_offset(self._zone, second) for second in different.tolist()], np.int64)
        return pc.add_checked(instants, pa.array(offsets[places] * parts)).cast(kind)

    # A function's results -------------------------------------------------------------------------

    def array(self, values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        """Return a column of Python values."""
        change = _changing(kind, functools.partial(_with_zone, self._zone))
        return pa.array(map(change, values) if change else values, kind)

    def series(self, made: Any, kind: pa.DataType) -> Any:
        """Return a pandas column with the time zone."""
        change = _changing(kind, functools.partial(_with_zone, self._zone))
        if change is None:
            return made
        if made.dtype.kind != "M":
            return made.map(change)
        # Like Spark, take the second of two equal local times, and cut off nanoseconds.
        aware = made if made.dt.tz else made.dt.tz_localize(self._zone, ambiguous=False)
        instants = aware.dt.as_unit("us")
        if (instants.isna() & made.notna()).any():
            raise _nat()
        return instants


def _check_has_no_nat(column: pa.Array) -> None:
    # The number of pandas' NaT is a valid time in Spark, and would silently become null.
    if not pa.types.is_timestamp(column.type):
        return
    if pc.any(pc.equal(column.cast(pa.int64()), _NAT)).as_py():
        raise _nat()


def _nat() -> OverflowError:
    return OverflowError(f"pandas can't represent the time {_NAT}, which it takes for NaT")


def _offset(zone: datetime.tzinfo, second: int) -> int:
    offset = datetime.datetime.fromtimestamp(second, zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())


def _to_local(zone: datetime.tzinfo, value: datetime.datetime) -> datetime.datetime:
    return value.replace(tzinfo=_UTC).astimezone(zone).replace(tzinfo=None)


def _with_zone(zone: datetime.tzinfo, value: Any) -> Any:
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    is_local = isinstance(value, datetime.datetime) and value.tzinfo is None
    return value.replace(tzinfo=zone) if is_local else value


def _changing(kind: pa.DataType, change: Change) -> Change | None:
    """Return a function that changes all zoned times in a type's values; None if it has none."""
    if _without_zone(kind) == kind:
        return None
    if pa.types.is_timestamp(kind):
        made = change
    elif pa.types.is_list(kind):
        made = functools.partial(_changed_list, _changing(kind.value_type, change))
    elif pa.types.is_map(kind):
        parts = (_changing(part, change) for part in (kind.key_type, kind.item_type))
        made = functools.partial(_changed_map, *parts)
    else:
        made = functools.partial(_changed_struct, {f.name: _changing(f.type, change) for f in kind})
    # Pandas uses NaN for null.
    return lambda value: value if value is None or isinstance(value, float) else made(value)


def _changed(change: Change | None, value: Any) -> Any:
    return value if change is None else change(value)


def _changed_list(item: Change | None, value: Any) -> list[Any]:
    return [_changed(item, part) for part in value]


def _changed_map(key: Change | None, item: Change | None, value: Any) -> list[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return [(_changed(key, own), _changed(item, other)) for own, other in pairs]


def _changed_struct(fields: Mapping[str, Change | None], value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value  # Arrow says what is wrong with it
    return {name: _changed(fields.get(name), part) for name, part in value.items()}


def _without_zone(kind: pa.DataType) -> pa.DataType:
    """Return a type without time zones."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_map(kind):
        return pa.map_(_without_zone(kind.key_type), _without_zone(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_zone(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_zone(field.type)) for field in kind])
    return kind
