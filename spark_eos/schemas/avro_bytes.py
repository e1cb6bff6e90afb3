"""Whether a payload is what Avro allows: fastavro reads some that are not as another value."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from spark_eos.schemas.kinds import BadValueError

_Skip = Callable[[bytes, int], int]
# Where a value ends that begins at a place; raises ValueError or IndexError if it is none.

# A record's items of no bytes: others can't be more than it has bytes.
_EMPTY: Final = 1000
_SIZES: Final = {"null": 0, "float": 4, "double": 8}


class Checker:
    """Tells payloads that are not of a schema, as fastavro parses it."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, _Skip] = {}
        self._schemas = schema["__named_schemas"]
        # Items of no bytes that a record may still have, and whether an array has such.
        self._left = 0
        self._empties = False
        self._booleans = False
        # Of a union or an enum.
        self._members = 1
        self._skip = self._skip_of(schema)
        for other in self._schemas.values():
            self._skip_of(other)
        # fastavro counts negative indexes of unions and enums from the end, cuts off numbers of
        # more than 64 bits, and takes any byte for a boolean.
        negative = re.escape(bytes(range(1, min(2 * self._members, 0x80), 2)))
        # A negative index, maybe with more bytes than it needs; or a number of more than 64 bits.
        suspect = rb"[%b]|[\x80-\xff]\x00|[\x80-\xff]{9}" % negative
        always = self._booleans or self._members > 0x40
        self._suspect = re.compile(b"" if always else suspect).search
        # What has to raise nothing before a payload is read; None for most schemas.
        self.check_first = self._count if self._empties else None

    def check(self, payload: bytes, end: int) -> None:
        """Raises ValueError or IndexError; ``end``: where fastavro has stopped reading."""
        if left := len(payload) - end:
            raise BadValueError(f"{left} bytes are left after the record")
        # Python takes as long to pass over a payload as fastavro to read it: only if there are
        # bytes that a wrong one must have.
        if self._suspect(payload) and self._skip(payload, 0) != len(payload):
            raise BadValueError("it ends elsewhere")

    def _count(self, payload: bytes) -> None:
        """Raises ValueError or IndexError if few bytes claim many items."""
        self._left = _EMPTY
        self._skip(payload, 0)

    def _blocks(self, item: _Skip, *, empty: bool = False) -> _Skip:
        """Skips an array or a map; ``empty``: whether its items have no bytes."""
        self._empties = self._empties or empty

        def skip(data: bytes, at: int) -> int:
            while True:
                count, at = _number(data, at)
                if not count:
                    return at
                if count < 0:
                    # The block's size follows.
                    count, at = -count, _long(data, at)
                if empty:
                    self._left -= count
                    if self._left < 0:
                        raise BadValueError(f"it has more than {_EMPTY} items of no bytes")
                    continue
                for _ in range(count):
                    at = item(data, at)

        return skip

    def _is_empty(self, schema: Any, within: Sequence[str] = ()) -> bool:
        """Whether a value takes no bytes."""
        schema = self._schemas.get(schema, schema) if isinstance(schema, str) else schema
        if not isinstance(schema, dict):
            return bool(schema == "null")
        name = schema.get("name", "")
        if schema["type"] == "record" and name not in within:
            inner = (*within, name)
            return all(self._is_empty(field["type"], inner) for field in schema["fields"])
        return schema["type"] == "null" or (schema["type"] == "fixed" and not schema["size"])

    def _skip_of(self, schema: Any) -> _Skip:
        if isinstance(schema, list):
            self._members = max(self._members, len(schema))
            return _union([self._skip_of(one) for one in schema])
        if isinstance(schema, str):
            self._booleans = self._booleans or schema == "boolean"
            if schema in _SIZES:
                return _fixed(_SIZES[schema])
            return _PRIMITIVES.get(schema) or self._skip_named(schema)
        name = schema["type"]
        if name == "record":
            made = _record([self._skip_of(field["type"]) for field in schema["fields"]])
        elif name == "enum":
            self._members = max(self._members, len(schema["symbols"]))
            made = _union([_fixed(0)] * len(schema["symbols"]))
        elif name == "fixed":
            made = _fixed(schema["size"])
        elif name == "array":
            item = schema["items"]
            made = self._blocks(self._skip_of(item), empty=self._is_empty(item))
        elif name == "map":
            made = self._blocks(_record([_text, self._skip_of(schema["values"])]))
        else:
            made = self._skip_of(name)
        if "name" in schema:
            self._named[schema["name"]] = made
        return made

    def _skip_named(self, name: str) -> _Skip:
        """By a name that is looked up later: a record may contain itself."""

        def skip(data: bytes, at: int) -> int:
            return self._named[name](data, at)

        return skip


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    if (byte := data[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    end = _long(data, at)
    found = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data[at:end]))
    return (found >> 1) ^ -(found & 1), end


def _long(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    for end in range(at, at + 10):
        if data[end] < 0x80:
            if end == at + 9 and data[end] > 1:
                break
            return end + 1
    raise BadValueError("a number has more than 64 bits")


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise BadValueError(f"a boolean is {data[at]}")
    return at + 1


def _text(data: bytes, at: int) -> int:
    if not (byte := data[at]) & 0x81:
        return at + 1 + (byte >> 1)
    size, begin = _number(data, at)
    if size < 0:
        raise BadValueError(f"a length is {size}")
    return begin + size


_PRIMITIVES: Final[dict[str, _Skip]] = {
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "bytes": _text,
    "string": _text,
}


def _fixed(size: int) -> _Skip:
    return lambda _, at: at + size


def _record(fields: Sequence[_Skip]) -> _Skip:
    def skip(data: bytes, at: int) -> int:
        for field in fields:
            at = field(data, at)
        return at

    return skip


def _union(members: Sequence[_Skip]) -> _Skip:
    limit = 2 * len(members)

    def skip(data: bytes, at: int) -> int:
        if not (byte := data[at]) & 0x81 and byte < limit:
            return members[byte >> 1](data, at + 1)
        index, begin = _number(data, at)
        if not 0 <= index < len(members):
            raise BadValueError(f"the index of a union or an enum is {index}")
        return members[index](data, begin)

    return skip
