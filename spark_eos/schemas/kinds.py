"""Avro's types as columns: the Spark type of each, and how Arrow arrays go there and back.

Arrays come in two forms. The raw one holds what fastavro reads and writes without logical types:
integers and bytes. The other one is Spark's.
"""

import uuid
from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.columns import Column
from spark_eos.schemas.formats import BadValueError

Faults = Iterator[tuple[np.ndarray, str]]

PRIMITIVES: Final[dict[str, tuple[T.DataType, pa.DataType]]] = {
    "null": (T.NullType(), pa.null()),
    "boolean": (T.BooleanType(), pa.bool_()),
    "int": (T.IntegerType(), pa.int32()),
    "long": (T.LongType(), pa.int64()),
    "float": (T.FloatType(), pa.float32()),
    "double": (T.DoubleType(), pa.float64()),
    "bytes": (T.BinaryType(), pa.binary()),
    "string": (T.StringType(), pa.string()),
}
# Microseconds for each unit, as a fraction.
UNITS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}


class Kind(Column):
    """Values of one type, as they are.

    Attributes:
        plain: Whether both forms are the same.
        tagged: Whether there is a union in it, whose values fastavro tags.
        converted: Whether values are not written as Arrow has them in Python.
        tag: What fastavro calls the member of a union that it is; None if fastavro can tell.
    """

    plain = True
    tagged = False
    converted = False
    tag: str | None = None

    def __init__(self, spark: T.DataType, raw: pa.DataType, **parts: Any) -> None:
        super().__init__(spark, raw, **parts)
        self.nullable = isinstance(spark, T.NullType)

    def from_wire(self, array: pa.Array) -> pa.Array:
        """The column of a raw array."""
        return array if array.type == self.arrow else array.cast(self.arrow)

    def to_wire(self, array: pa.Array) -> pa.Array:
        """The raw array of a column."""
        return array if array.type == self.raw else array.cast(self.raw)

    def faults(self, array: pa.Array, path: str) -> Faults:  # noqa: ARG002
        """Yields rows with values that can't be written, and why."""
        yield from ()

    def raw_of(self, value: Any) -> Any:
        """What fastavro has read, with unions as dictionaries of their members."""
        # Tagged with its name, if the writer has a union where the reader has none.
        return value[1] if isinstance(value, tuple) else value

    def written(self, value: Any) -> Any:
        """What fastavro writes, tagged where it is a member of a union."""
        found = self.to_write(value)
        return found if found is None or self.tag is None else (self.tag, found)

    def to_write(self, value: Any) -> Any:
        """A value itself: maps as dictionaries, and the members of unions tagged."""
        return value


class Date(Kind):
    plain = False

    def __init__(self) -> None:
        super().__init__(T.DateType(), pa.int32())


class Timestamp(Kind):
    plain = False

    def __init__(self, unit: str, *, local: bool) -> None:
        super().__init__(T.TimestampNTZType() if local else T.TimestampType(), pa.int64())
        self._micros, self._own = UNITS[unit]

    def from_wire(self, array: pa.Array) -> pa.Array:
        return _times(array, self._micros, self._own).cast(self.arrow)

    def to_wire(self, array: pa.Array) -> pa.Array:
        # Rounded down to milliseconds, as the sink's own timestamps.
        return _times(array.cast(pa.int64()), self._own, self._micros)


def _times(array: pa.Array, factor: int, divisor: int) -> pa.Array:
    """Integers times a fraction, rounded down."""
    if factor != 1:
        array = pc.multiply_checked(array, factor)
    if divisor == 1:
        return array
    # Arrow's own division rounds towards zero.
    found = np.floor_divide(np.asarray(array.fill_null(0)), divisor)
    return pa.array(found, mask=np.asarray(array.is_null()))


class Decimal(Kind):
    plain = False

    def __init__(self, precision: int, scale: int, size: int | None) -> None:
        super().__init__(T.DecimalType(precision, scale), pa.binary())
        self._size = size

    def from_wire(self, array: pa.Array) -> pa.Array:
        limit = 10**self.spark.precision  # type: ignore[attr-defined]
        numbers = []
        for raw in array.to_pylist():
            number = int.from_bytes(raw or b"", "big", signed=True)
            if abs(number) >= limit:
                raise BadValueError(f"a number has more digits than {self.spark.simpleString()}")
            numbers.append(number.to_bytes(16, "little", signed=True))
        buffers = [_validity(array), pa.py_buffer(b"".join(numbers))]
        return pa.Array.from_buffers(self.arrow, len(array), buffers)

    def to_wire(self, array: pa.Array) -> pa.Array:
        numbers = array.cast(self.arrow)
        numbers = memoryview(numbers.buffers()[1] or b"")[16 * numbers.offset :]
        made = []
        for row, is_null in enumerate(array.is_null().to_pylist()):
            number = int.from_bytes(numbers[16 * row : 16 * row + 16], "little", signed=True)
            # As fastavro, and so Confluent's serializer, has it.
            size = self._size or (number.bit_length() + 8) // 8
            made.append(None if is_null else number.to_bytes(size, "big", signed=True))
        return pa.array(made, pa.binary())

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        given, own = (cast("T.DecimalType", one) for one in (kind, self.spark))
        more = given.precision - given.scale > own.precision - own.scale
        if more or given.scale > own.scale:
            raise SchemaError(
                f"{path} is {kind.simpleString()}, which may not fit the schema's "
                f"{self.spark.simpleString()}: cast it"
            )


def _validity(array: pa.Array) -> pa.Buffer:
    return array.is_valid().buffers()[1]


class FixedUuid(Kind):
    plain = False

    def __init__(self) -> None:
        super().__init__(T.StringType(), pa.binary())

    def from_wire(self, array: pa.Array) -> pa.Array:
        found = (raw and str(uuid.UUID(bytes=raw)) for raw in array.to_pylist())
        return pa.array(list(found), self.arrow)

    def to_wire(self, array: pa.Array) -> pa.Array:
        try:
            found = [text and uuid.UUID(text).bytes for text in array.to_pylist()]
        except ValueError:
            raise BadValueError("a text is no UUID") from None
        return pa.array(found, pa.binary())


class Enum(Kind):
    def __init__(self, schema: Any) -> None:
        super().__init__(T.StringType(), pa.string())
        self._symbols = pa.array(schema["symbols"], pa.string())

    def faults(self, array: pa.Array, path: str) -> Faults:
        known = pc.is_in(array.cast(pa.string()), self._symbols)
        bad = np.flatnonzero(np.asarray(pc.and_(array.is_valid(), pc.invert(known))))
        yield bad, f"{path} is none of {', '.join(self._symbols.to_pylist())}"


class Fixed(Kind):
    def __init__(self, schema: Any) -> None:
        super().__init__(T.BinaryType(), pa.binary())
        self._size = schema["size"]

    def faults(self, array: pa.Array, path: str) -> Faults:
        other = pc.not_equal(pc.binary_length(array), self._size)
        bad = np.flatnonzero(np.asarray(other.fill_null(False)))  # noqa: FBT003
        yield bad, f"{path} does not have {self._size} bytes"
