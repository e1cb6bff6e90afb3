"""Checks payloads against Avro's rules, because fastavro misreads some invalid payloads."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from spark_eos.errors import SchemaError
from spark_eos.schemas.kinds import BadValueError

_Skip = Callable[[bytes, int, int], int]
# Takes the data, the position where a value begins, and how many levels may be nested in the value.
# Returns the position where the value ends. Raises ValueError or IndexError for an invalid value.

# Maximum number of zero-byte values in a record. All other values are limited by the record's size.
_EMPTY: Final = 1000
# Maximum nesting of records, arrays and maps. Without a limit, fastavro would read until its stack
# overflows. Python's own stack allows this depth too.
_DEEPEST: Final = 250


class _Type(NamedTuple):
    skip: _Skip
    empty: int = 0  # how many values a zero-byte value counts as; 0 if the value has bytes
    levels: float = 0  # nesting of records, arrays and maps; infinite if recursive


class Checker:
    """Finds payloads that don't match a schema, as parsed by fastavro."""

    def __init__(self, schema: Any) -> None:
        self._types = {**_PRIMITIVES}
        self._schemas = schema["__named_schemas"]
        # How many more zero-byte values a record may have, and whether the schema has arrays or
        # maps of zero-byte values.
        self._left = 0
        self._empties = False
        self._booleans = False
        # The largest number of members in a union or an enum.
        self._members = 1
        whole = self._type_of(schema)
        self._skip, is_recursive = whole.skip, whole.levels == math.inf
        if _DEEPEST < whole.levels < math.inf:
            raise SchemaError(f"it is nested more than {_DEEPEST} levels deep")
        # fastavro counts negative indexes of unions and enums from the end, truncates numbers of
        # more than 64 bits, and accepts any byte as a boolean.
        negative = re.escape(bytes(range(1, min(2 * self._members, 0x80), 2)))
        # Matches a negative index, possibly with more bytes than it needs, or a number of more than
        # 64 bits.
        suspect = rb"[%b]|[\x80-\xff]\x00|[\x80-\xff]{9}" % negative
        always = self._booleans or self._members > 0x40
        self._suspect = re.compile(b"" if always else suspect).search
        # A check that must pass before a payload is read; None for most schemas.
        self.check_first = self.check_all if self._empties or is_recursive else None

    def check(self, payload: bytes, end: int) -> None:
        """Raise ValueError or IndexError if a payload, read up to ``end``, is invalid."""
        if left := len(payload) - end:
            raise BadValueError(f"{left} bytes are left after the record")
        # Skipping a payload in Python takes as long as reading it with fastavro. So skip it only if
        # it contains bytes that any invalid payload must contain.
        if self._suspect(payload) and self._end(payload) != len(payload):
            raise BadValueError("it does not end where its schema says")

    def check_all(self, payload: bytes) -> None:
        """Raise ValueError or IndexError if a payload is invalid; bytes may be left after it."""
        if self._end(payload) > len(payload):
            raise IndexError

    def _end(self, payload: bytes) -> int:
        """Return where a record ends, which may be after the end of its payload."""
        self._left = _EMPTY
        return self._skip(payload, 0, _DEEPEST)

    def _blocks(self, item: _Type) -> _Type:
        """Return the type of an array or a map."""
        self._empties = self._empties or item.empty > 0

        def skip(data: bytes, at: int, levels: int) -> int:
            levels = _less(levels)
            while True:
                count, at = _number(data, at)
                if not count:
                    return at
                if count < 0:
                    # The block's size follows.
                    count, at = -count, _long(data, at, levels)
                if item.empty:
                    self._left -= count * item.empty
                    if self._left < 0:
                        raise BadValueError(f"it has more than {_EMPTY} items without bytes")
                    continue
                if count > len(data) - at:
                    raise IndexError
                for _ in range(count):
                    at = item.skip(data, at, levels)

        return _Type(skip, levels=item.levels + 1)

    def _type_of(self, schema: Any) -> _Type:
        if isinstance(schema, list):
            self._members = max(self._members, len(schema))
            return _union([self._type_of(branch) for branch in schema])
        if isinstance(schema, str):
            self._booleans = self._booleans or schema == "boolean"
            return self._types.get(schema) or self._type_of(self._schemas[schema])
        name = schema["type"]
        if name == "record":
            return self._record(schema)
        if name == "enum":
            self._members = max(self._members, len(schema["symbols"]))
            made = _union([_fixed(0)] * len(schema["symbols"]))
        elif name == "fixed":
            made = _fixed(schema["size"])
        elif name == "array":
            made = self._blocks(self._type_of(schema["items"]))
        elif name == "map":
            made = self._blocks(_sequence([_PRIMITIVES["string"], self._type_of(schema["values"])]))
        else:
            made = self._type_of(name)
        if "name" in schema:
            self._types[schema["name"]] = made
        return made

    def _record(self, schema: Any) -> _Type:
        name, fields = schema["name"], list[_Type]()
        made = _sequence(fields, is_record=True)
        # Until the fields are known, references to the record within itself have this type.
        self._types[name] = made._replace(empty=0, levels=math.inf)
        fields += [self._type_of(field["type"]) for field in schema["fields"]]
        is_empty = all(field.empty for field in fields)
        empty = max(1, sum(field.empty for field in fields)) if is_empty else 0
        if empty > _EMPTY:
            raise SchemaError(f"{name} has more than {_EMPTY} values without bytes")
        levels = 1 + max((field.levels for field in fields), default=0)
        self._types[name] = _Type(made.skip, empty, levels)
        return self._types[name]


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position where it ends."""
    if (byte := data[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    end = _long(data, at, 0)
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[at:end]))
    return (number >> 1) ^ -(number & 1), end


def _less(levels: int) -> int:
    if not levels:
        raise BadValueError(f"it is nested more than {_DEEPEST} levels deep")
    return levels - 1


def _long(data: bytes, at: int, _levels: int) -> int:
    if data[at] < 0x80:
        return at + 1
    for end in range(at, at + 10):
        if data[end] < 0x80:
            if end == at + 9 and data[end] > 1:
                break
            return end + 1
    raise BadValueError("a number has more than 64 bits")


def _boolean(data: bytes, at: int, _levels: int) -> int:
    if data[at] > 1:
        raise BadValueError(f"a boolean is {data[at]}")
    return at + 1


def _text(data: bytes, at: int, _levels: int) -> int:
    if not (byte := data[at]) & 0x81:
        return at + 1 + (byte >> 1)
    size, begin = _number(data, at)
    if size < 0:
        raise BadValueError(f"a length is {size}")
    return begin + size


def _fixed(size: int) -> _Type:
    if type(size) is not int or size < 0:
        raise SchemaError(f"the size of a fixed is {size!r}")
    return _Type(lambda _, at, _levels: at + size, int(not size))


_PRIMITIVES: Final = {
    "null": _fixed(0),
    "boolean": _Type(_boolean),
    "int": _Type(_long),
    "long": _Type(_long),
    "float": _fixed(4),
    "double": _fixed(8),
    "bytes": _Type(_text),
    "string": _Type(_text),
}


def _sequence(parts: Sequence[_Type], *, is_record: bool = False) -> _Type:
    def skip(data: bytes, at: int, levels: int) -> int:
        levels = _less(levels) if is_record else levels
        for part in parts:
            at = part.skip(data, at, levels)
        return at

    return _Type(skip, levels=max((part.levels for part in parts), default=0))


def _union(members: Sequence[_Type]) -> _Type:
    limit = 2 * len(members)

    def skip(data: bytes, at: int, levels: int) -> int:
        if not (byte := data[at]) & 0x81 and byte < limit:
            return members[byte >> 1].skip(data, at + 1, levels)
        index, begin = _number(data, at)
        if not 0 <= index < len(members):
            raise BadValueError(f"the index of a union or an enum is {index}")
        return members[index].skip(data, begin, levels)

    return _Type(skip, levels=max((member.levels for member in members), default=0))
