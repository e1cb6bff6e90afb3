"""Converts Avro values to columns and back; fastavro handles only their underlying types."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.kinds import BadValueError, Kind
from spark_eos.schemas.nested import Record, check_filled

# Microseconds per unit, as a fraction.
UNITS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}


class Timestamp(Kind):
    def __init__(self, unit: str, *, local: bool) -> None:
        super().__init__(T.TimestampNTZType() if local else T.TimestampType(), pa.int64())
        self._micros, self._own = UNITS[unit]

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return _times(pa.array(values, pa.int64()), self._micros, self._own).cast(self.arrow)

    def _to_wire(self, array: pa.Array) -> pa.Array:
        # Milliseconds are rounded down, as in the sink's own timestamps.
        return _times(array.cast(pa.int64()), self._own, self._micros)


def _times(array: pa.Array, factor: int, divisor: int) -> pa.Array:
    """Multiply integers by a fraction, and round down."""
    if factor != 1:
        array = pc.multiply_checked(array, factor)
    if divisor == 1:
        return array
    # Arrow's own division rounds towards zero.
    quotients = np.floor_divide(np.asarray(array.fill_null(0)), divisor)
    return pa.array(quotients, mask=np.asarray(array.is_null()))


class Decimal(Kind):
    def __init__(self, precision: int, scale: int, size: int | None) -> None:
        super().__init__(T.DecimalType(precision, scale), pa.binary())
        self._limit = 10**precision
        self._size = size

    def _array(self, values: Sequence[Any]) -> pa.Array:
        numbers = []
        for raw in values:
            number = int.from_bytes(raw or b"", "big", signed=True)
            if abs(number) >= self._limit:
                raise BadValueError(f"a number has more digits than {self.spark.simpleString()}")
            numbers.append(number.to_bytes(16, "little", signed=True))
        valid = pa.array([raw is not None for raw in values], pa.bool_()).buffers()[1]
        buffers = [valid, pa.py_buffer(b"".join(numbers))]
        return pa.Array.from_buffers(self.arrow, len(values), buffers)

    def _to_wire(self, array: pa.Array) -> pa.Array:
        numbers = array.cast(self.arrow)
        numbers = memoryview(numbers.buffers()[1] or b"")[16 * numbers.offset :]
        made = []
        for row in range(len(array)):
            number = int.from_bytes(numbers[16 * row : 16 * row + 16], "little", signed=True)
            # The same size as in fastavro, and therefore in Confluent's serializer.
            size = self._size or (number.bit_length() + 8) // 8
            made.append(number.to_bytes(size, "big", signed=True))
        return pa.array(made, pa.binary())

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        given, own = (cast("T.DecimalType", kind_) for kind_ in (kind, self.spark))
        more = given.precision - given.scale > own.precision - own.scale
        if more or given.scale > own.scale:
            raise SchemaError(
                f"{path} is {kind.simpleString()}, which may not fit the schema's "
                f"{self.spark.simpleString()}: cast it"
            )


class FixedUuid(Kind):
    def __init__(self) -> None:
        super().__init__(T.StringType(), pa.binary())

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([raw and str(uuid.UUID(bytes=raw)) for raw in values], self.arrow)

    def _to_wire(self, array: pa.Array) -> pa.Array:
        texts = array.to_pylist()
        try:
            return pa.array([uuid.UUID(text).bytes for text in texts], pa.binary())
        except ValueError:
            raise BadValueError("a text is not a UUID") from None


class Enum(Kind):
    def __init__(self, symbols: Sequence[str]) -> None:
        super().__init__(T.StringType(), pa.string())
        self._symbols = dict.fromkeys(symbols)

    def _values(self, array: pa.Array) -> list[Any]:
        values = super()._values(array)
        if not self._symbols.keys() >= {*values}:
            raise BadValueError(f"a text is not one of {', '.join(self._symbols)}")
        return values


class Fixed(Kind):
    def __init__(self, size: int) -> None:
        super().__init__(T.BinaryType(), pa.binary())
        self._size = size

    def _values(self, array: pa.Array) -> list[Any]:
        values = super()._values(array)
        if not {self._size} >= {*map(len, values)}:
            raise BadValueError(f"a value does not have {self._size} bytes")
        return values


_MEMBERS: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("int", "long", "double", "float"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}


class Union(Record):
    """A union as a struct with a field for each type, exactly one of which is not null."""

    def __init__(self, members: Mapping[str, tuple[str, Kind]]) -> None:
        super().__init__({name: kind for name, (_, kind) in members.items()})
        self.tagged = True
        self._by_tag = {tag: name for name, (tag, _) in members.items()}
        self._by_type = {
            kind: next(self._by_tag[tag] for tag in tags if tag in self._by_tag)
            for kind, tags in _MEMBERS.items()
            if not self._by_tag.keys().isdisjoint(tags)
        }
        for tag, kind in members.values():
            kind.nullable, kind.tag = True, tag

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return super()._array([None if value is None else self._member(value) for value in values])

    def _member(self, value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            return {self._by_tag[value[0]]: value[1]}
        return {self._by_type[type(value)]: value}

    def _parts(self, records: Sequence[Any], name: str) -> list[Any]:
        return [record.get(name) for record in records]

    def _record(self, names: list[str], parts: tuple[Any, ...]) -> Any:  # noqa: ARG002
        return next(part for part in parts if part is not None)

    def _check_together(self, arrays: Mapping[str, pa.Array], path: str) -> None:
        text = f"{path} must have exactly one member that is not null"
        check_filled(arrays.values(), lambda count: count == 1, text)
