"""Protobuf's single values as columns: lists of what messages hold, as Arrow arrays and back."""

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor as F
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql import types as T

from spark_eos.schemas.columns import Column
from spark_eos.schemas.formats import BadValueError, said

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
# What messages raise if a value does not fit.
REFUSED: Final = (TypeError, ValueError, OverflowError)
_MICROS: Final = 1_000_000
_NUMBER: Final = re.compile(r"-?\d+")


class Fault:
    """What stands for a value that can't be written: a message that is to hold it is refused.

    Attributes:
        text: Why.
    """

    def __init__(self, text: str) -> None:
        self.text = text


def check_known(messages: Sequence[Any]) -> None:
    """Raises ValueError for a field with what its type does not have, which Protobuf sets aside."""
    aside = map(len, map(UnknownFieldSet, filter(None, messages)))
    for message in filter(None, messages) if any(aside) else ():
        for found in UnknownFieldSet(message):
            field = type(message).DESCRIPTOR.fields_by_number.get(found.field_number)
            if field is not None:
                raise BadValueError(
                    f"{field.name} (field {field.number}) has a value that is none of its type: "
                    "its enum has no such number, or it is written as another type is"
                )


class Kind(Column):
    """Values of one type, as they are."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The column of values; raises ValueError, ArrowException or OverflowError."""
        made = pa.array(values, self.raw)
        return made if self.raw == self.arrow else made.cast(self.arrow)

    def values(self, array: pa.Array, path: str) -> list[Any]:  # noqa: ARG002
        """What a message is made of; `Fault` where that can't be, None where it is null."""
        found: list[Any] = array.to_pylist()
        return found


class Unsigned(Kind):
    """Integers below 2^64, which Spark has as decimals."""

    def values(self, array: pa.Array, path: str) -> list[Any]:  # noqa: ARG002
        return [one if one is None else int(one) for one in array.to_pylist()]

    def check(self, kind: T.DataType, path: str) -> None:
        if isinstance(kind, _INTEGRAL):
            return
        if not isinstance(kind, T.DecimalType) or kind.scale:
            self.refuse(kind, path)


class Enum(Kind):
    """Names of values; a number that has no name there stays, as in Protobuf's JSON."""

    def __init__(self, descriptor: Any) -> None:
        super().__init__(T.StringType(), pa.int32())
        # The first of its aliases.
        self._names = {one.number: one.name for one in reversed(descriptor.values)}
        self._numbers = {one.name: one.number for one in descriptor.values}
        self._closed = descriptor.is_closed

    def array(self, values: Sequence[Any]) -> pa.Array:
        coded = pa.array(values, self.raw).dictionary_encode()
        names = [self._names.get(one, str(one)) for one in coded.dictionary.to_pylist()]
        return pa.array(names, self.arrow).take(coded.indices)

    def values(self, array: pa.Array, path: str) -> list[Any]:
        coded = array.cast(pa.string()).dictionary_encode()
        found = [self._number(one, path) for one in coded.dictionary.to_pylist()]
        return [None if one is None else found[one] for one in coded.indices.to_pylist()]

    def _number(self, name: str, path: str) -> Any:
        number = self._numbers.get(name)
        if number is None and not self._closed and _NUMBER.fullmatch(name):
            number = int(name)
        if number is None:
            return Fault(f"{path} is none of {', '.join(self._numbers)}")
        return number


class Time(Kind):
    """google.protobuf.Timestamp or Duration; parts of a microsecond are cut off.

    Args:
        spark: The column's type.
        make: Makes such a message.
        limits: The least and the greatest number of seconds that Protobuf allows.
    """

    def __init__(self, spark: T.DataType, make: Any, limits: tuple[int, int]) -> None:
        super().__init__(spark, pa.int64())
        self._make = make
        self._limits = limits

    def array(self, values: Sequence[Any]) -> pa.Array:
        check_known(values)
        is_null = np.array([one is None for one in values], bool)
        seconds = np.array([0 if one is None else one.seconds for one in values], np.int64)
        nanos = np.array([0 if one is None else one.nanos for one in values], np.int64)
        least, greatest = self._limits
        wrong = (seconds < least) | (seconds > greatest) | (np.abs(nanos) >= 1_000 * _MICROS)
        if wrong.any():
            raise BadValueError(
                f"seconds or nanoseconds are out of {self.spark.typeName()}'s range"
            )
        micros = seconds * _MICROS + nanos // 1_000
        if isinstance(self.spark, T.DayTimeIntervalType):
            micros = seconds * _MICROS + np.sign(nanos) * (np.abs(nanos) // 1_000)
        return pa.array(micros, mask=is_null).cast(self.arrow)

    def values(self, array: pa.Array, path: str) -> list[Any]:
        return [
            None if one is None else self._message(one, path)
            for one in array.cast(pa.int64()).to_pylist()
        ]

    def _message(self, micros: int, path: str) -> Any:
        seconds, rest = divmod(micros, _MICROS)
        if seconds < 0 and rest and isinstance(self.spark, T.DayTimeIntervalType):
            # Both have the same sign.
            seconds, rest = seconds + 1, rest - _MICROS
        least, greatest = self._limits
        if not least <= seconds <= greatest:
            return Fault(f"{path}: microseconds are beyond what Protobuf allows")
        return self._make(seconds=seconds, nanos=rest * 1_000)


class Wrapper(Kind):
    """google.protobuf.Int64Value and its like: a value that may be null."""

    def __init__(self, inner: Kind, make: Any) -> None:
        super().__init__(inner.spark, inner.raw)
        self._inner = inner
        self._make = make

    def array(self, values: Sequence[Any]) -> pa.Array:
        check_known(values)
        return self._inner.array([None if one is None else one.value for one in values])

    def values(self, array: pa.Array, path: str) -> list[Any]:
        return [self._message(one, path) for one in self._inner.values(array, path)]

    def _message(self, value: Any, path: str) -> Any:
        try:
            return None if value is None else self._make(value=value)
        except REFUSED as error:
            return Fault(f"{path}: {said(error)}")

    def check(self, kind: T.DataType, path: str) -> None:
        self._inner.check(kind, path)


def offsets_of(array: pa.Array) -> tuple[list[int], tuple[int, int]]:
    """Offsets of lists or maps within their own items; and where those begin, and how many."""
    if not len(array):
        return [0], (0, 0)
    offsets = np.asarray(array.offsets)
    begin = int(offsets[0])
    found: list[int] = (offsets - begin).tolist()
    return found, (begin, found[-1])


def valid_rows(array: pa.Array) -> list[bool]:
    """Which rows are not null."""
    found: list[bool] = array.is_valid().to_pylist()
    return found
