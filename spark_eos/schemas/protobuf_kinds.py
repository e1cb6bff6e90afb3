"""Maps Protobuf's messages and their fields to columns, and converts values both ways."""

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor as F
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas import nested
from spark_eos.schemas.kinds import BadValueError, Kind, Place
from spark_eos.schemas.nested import List, Record, check_filled

_INTEGRAL: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_INT: Final = (T.IntegerType(), pa.int32())
_LONG: Final = (T.LongType(), pa.int64())
SCALARS: Final[dict[int, tuple[T.DataType, pa.DataType]]] = {
    F.TYPE_BOOL: (T.BooleanType(), pa.bool_()),
    F.TYPE_INT32: _INT,
    F.TYPE_SINT32: _INT,
    F.TYPE_SFIXED32: _INT,
    F.TYPE_INT64: _LONG,
    F.TYPE_SINT64: _LONG,
    F.TYPE_SFIXED64: _LONG,
    F.TYPE_UINT32: _LONG,
    F.TYPE_FIXED32: _LONG,
    F.TYPE_UINT64: (T.DecimalType(20, 0), pa.uint64()),
    F.TYPE_FIXED64: (T.DecimalType(20, 0), pa.uint64()),
    F.TYPE_FLOAT: (T.FloatType(), pa.float32()),
    F.TYPE_DOUBLE: (T.DoubleType(), pa.float64()),
    F.TYPE_STRING: (T.StringType(), pa.string()),
    F.TYPE_BYTES: (T.BinaryType(), pa.binary()),
}
_MICROS: Final = 1_000_000
_NUMBER: Final = re.compile(r"-?\d+")
_TIMES: Final[dict[str, tuple[T.DataType, tuple[int, int]]]] = {
    "google.protobuf.Timestamp": (T.TimestampType(), (-62_135_596_800, 253_402_300_799)),
    "google.protobuf.Duration": (T.DayTimeIntervalType(), (-315_576_000_000, 315_576_000_000)),
}
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
}
MESSAGES: Final = {F.TYPE_MESSAGE, F.TYPE_GROUP}


def check_known(messages: Sequence[Any]) -> None:
    """Raise ValueError if a field has a value of another type, which Protobuf keeps as unknown."""
    aside = map(len, map(UnknownFieldSet, filter(None, messages)))
    for message in filter(None, messages) if any(aside) else ():
        for unknown in UnknownFieldSet(message):
            field = type(message).DESCRIPTOR.fields_by_number.get(unknown.field_number)
            if field is not None:
                raise BadValueError(
                    f"{field.name} (field {field.number}) has a value that is not of its type: "
                    "its enum has no such number, or it is encoded as another type"
                )


class Unsigned(Kind):
    """Integers below 2^64, which are decimals in Spark."""

    def _values(self, array: pa.Array) -> list[Any]:
        return [*map(int, array.to_pylist())]

    def check(self, kind: T.DataType, path: str) -> None:
        if isinstance(kind, _INTEGRAL) or (isinstance(kind, T.NullType) and self.nullable):
            return
        if not isinstance(kind, T.DecimalType) or kind.scale:
            self.refuse(kind, path)


class Enum(Kind):
    """Names of an enum's values; a number without a name stays a number, as in Protobuf's JSON."""

    def __init__(self, descriptor: Any) -> None:
        super().__init__(T.StringType(), pa.int32())
        # If several names have the same number, the first one counts.
        self.names = {value.number: value.name for value in reversed(descriptor.values)}
        self.numbers = {value.name: value.number for value in descriptor.values}
        self._closed = descriptor.is_closed

    def _array(self, values: Sequence[Any]) -> pa.Array:
        coded = pa.array(values, pa.int32()).dictionary_encode()
        names = [self.names.get(number, str(number)) for number in coded.dictionary.to_pylist()]
        return pa.array(names, self.arrow).take(coded.indices)

    def _values(self, array: pa.Array) -> list[Any]:
        coded = array.cast(pa.string()).dictionary_encode()
        numbers = [self._number(name) for name in coded.dictionary.to_pylist()]
        return [numbers[place] for place in coded.indices.to_pylist()]

    def _number(self, name: str) -> int:
        if name not in self.numbers and (self._closed or not _NUMBER.fullmatch(name)):
            raise BadValueError(f"a text is not one of {', '.join(self.numbers)}")
        return int(self.numbers.get(name, name))


class Time(Kind):
    """google.protobuf.Timestamp or Duration; fractions of a microsecond are truncated."""

    def __init__(self, spark: T.DataType, make: Any, limits: tuple[int, int]) -> None:
        super().__init__(spark, pa.int64())
        self._make = make
        self._limits = limits  # minimum and maximum number of seconds

    def _array(self, values: Sequence[Any]) -> pa.Array:
        check_known(values)
        is_null = np.array([value is None for value in values], bool)
        seconds = np.array([0 if value is None else value.seconds for value in values], np.int64)
        nanos = np.array([0 if value is None else value.nanos for value in values], np.int64)
        if self.wrong(seconds, nanos).any():
            raise BadValueError(
                f"seconds or nanoseconds are out of {self.spark.typeName()}'s range"
            )
        return self.column(seconds, nanos, is_null)

    def wrong(self, seconds: np.ndarray, nanos: np.ndarray) -> np.ndarray:
        least, greatest = self._limits
        # A timestamp counts nanoseconds forward; the parts of a duration have the same sign.
        signs = np.sign(seconds) if isinstance(self.spark, T.DayTimeIntervalType) else 1
        wrong: np.ndarray = (
            (seconds < least)
            | (seconds > greatest)
            | (np.abs(nanos) >= 1_000 * _MICROS)
            | (signs * np.sign(nanos) < 0)
        )
        return wrong

    def column(self, seconds: np.ndarray, nanos: np.ndarray, is_null: np.ndarray) -> pa.Array:
        micros = seconds * _MICROS + nanos // 1_000
        if isinstance(self.spark, T.DayTimeIntervalType):
            micros = seconds * _MICROS + np.sign(nanos) * (np.abs(nanos) // 1_000)
        return pa.array(micros, mask=is_null).cast(self.arrow)

    def _values(self, array: pa.Array) -> list[Any]:
        seconds, nanos = self.parts(np.asarray(array.cast(pa.int64())))
        if self.wrong(seconds, nanos).any():
            raise BadValueError("microseconds are out of Protobuf's range")
        pairs = zip(seconds.tolist(), nanos.tolist(), strict=True)
        return [self._make(seconds=second, nanos=nano) for second, nano in pairs]

    def parts(self, micros: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seconds, rest = np.divmod(micros, _MICROS)
        if isinstance(self.spark, T.DayTimeIntervalType):
            # Both parts of a duration must have the same sign.
            shifted = (seconds < 0) & (rest != 0)
            seconds, rest = seconds + shifted, rest - shifted * _MICROS
        return seconds, rest * 1_000


class Wrapper(Kind):
    """google.protobuf.Int64Value and similar messages: a value that may be null."""

    def __init__(self, inner: Kind, make: Any) -> None:
        super().__init__(inner.spark)
        self.inner = inner
        self._make = make

    def _array(self, values: Sequence[Any]) -> pa.Array:
        check_known(values)
        return self.inner.array([None if value is None else value.value for value in values])

    def _values(self, array: pa.Array) -> list[Any]:
        return [self._make(value=value) for value in self.inner._values(array)]  # noqa: SLF001

    def check(self, kind: T.DataType, path: str) -> None:
        if not (isinstance(kind, T.NullType) and self.nullable):
            self.inner.check(kind, path)


class Message(Record):
    """A message as a struct; ``groups`` are the names of the fields in each oneof."""

    def __init__(
        self, make: Any, fields: Sequence[tuple[Any, Kind]], groups: Sequence[Sequence[str]]
    ) -> None:
        for field, kind in fields:
            kind.nullable = field.has_presence and not field.is_required
        super().__init__(
            {field.name: kind for field, kind in fields},
            [field.name for field, _ in fields if field.is_required],
        )
        self._make, self._empty = make, make()
        self._groups = groups
        self._may_lack = {
            field.name for field, kind in fields if kind.nullable and not field.has_default_value
        }

    def _array(self, values: Sequence[Any]) -> pa.Array:
        check_known(values)
        return super()._array(values)

    def _parts(self, records: Sequence[Any], name: str) -> list[Any]:
        if name not in self._may_lack:
            return [*map(attrgetter(name), records)]
        # Use the class's method: an attribute of the message may be a field.
        has = self._make.HasField
        return [getattr(record, name) if has(record, name) else None for record in records]

    def _record(self, names: list[str], parts: tuple[Any, ...]) -> Any:
        return self._make(**dict(zip(names, parts, strict=True)))

    def _check_together(self, arrays: Mapping[str, pa.Array], path: str) -> None:
        for group in self._groups:
            own = [arrays[name] for name in group if name in arrays]
            text = f"at most one of {', '.join(group)} may have a value"
            check_filled(own, lambda count: count <= 1, f"{path}: {text}" if path else text)


class Map(nested.Map):
    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        if "CopyFrom" in getattr(self.value.spark, "names", ()):
            # The field hides the only method by which Protobuf fills in a map.
            raise SchemaError(f"{path}{{}}: messages with a field 'CopyFrom' can't be put in a map")


def message_kind(descriptor: Any, place: Place) -> Message:
    """Return a message's kind; raise SchemaError if the message contains itself."""
    inner = place.inside(descriptor.full_name, f"message {descriptor.full_name}")
    make = message_factory.GetMessageClass(descriptor)
    fields = [(field, _field_kind(field, inner.field(field.name))) for field in descriptor.fields]
    groups = [[field.name for field in oneof.fields] for oneof in descriptor.oneofs]
    return Message(make, fields, [group for group in groups if len(group) > 1])


def _field_kind(field: Any, place: Place) -> Kind:
    if is_map(field):
        parts = field.message_type.fields_by_name
        return Map(*(_value_kind(parts[name], place.values()) for name in ("key", "value")))
    if field.is_repeated:
        return List(_value_kind(field, place.items()))
    return _value_kind(field, place)


def is_map(field: Any) -> bool:
    """Return True if a field is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _value_kind(field: Any, place: Place) -> Kind:
    if field.type == F.TYPE_ENUM:
        return Enum(field.enum_type)
    if field.type not in MESSAGES:
        made = Unsigned if isinstance(SCALARS[field.type][0], T.DecimalType) else Kind
        return made(*SCALARS[field.type])
    descriptor = field.message_type
    make = message_factory.GetMessageClass(descriptor)
    if descriptor.full_name in _TIMES:
        spark, limits = _TIMES[descriptor.full_name]
        return Time(spark, make, limits)
    if descriptor.full_name in _WRAPPERS:
        return Wrapper(_value_kind(descriptor.fields_by_name["value"], place), make)
    return message_kind(descriptor, place)
