"""Reads all Avro records of a batch into columns at once, for ordinary schemas and valid records.

Schemas and rows that are refused here are read by fastavro, one row at a time. fastavro also
reports errors in records, so this module refuses anything doubtful.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_eos.schemas.avro_kinds import UNITS, resolved
from spark_eos.schemas.columns import Read, containers, of_values, offsets_of, read_texts, reading
from spark_eos.schemas.cursor import Cursor, placed
from spark_eos.schemas.formats import OneByOne, Together

if TYPE_CHECKING:
    from spark_eos.schemas.avro import Avro

# Lossless promotions.
_PROMOTED: Final = {("int", "long"), ("int", "double"), ("float", "double")}
# The smallest sizes of types' values, if not one byte.
_LEAST: Final = {"null": 0, "float": 4, "double": 8}
# Maximum nesting of types. Python's stack allows this depth even when called from a deep stack.
_DEEPEST: Final = 50
# Maximum number of types to read or skip. Types that refer to each other multiply them.
_MOST: Final = 20_000
# Number of digits that always fit into a 64-bit integer.
_LONG_DIGITS: Final = 18
# The first items of all arrays are read together, then all second items, and so on. Once this many
# items have been read, the remaining records are left out if there are fewer than this many, or
# fewer than one for every 64 items that have been read: each step takes time and memory.
_FEW: Final = 8
_PER_RECORD: Final = 64


def columns_of(writer: "Avro", reader: "Avro") -> Together:
    """Return a function that reads payloads; raise any error if the schemas are refused."""
    kind = reader.kind.arrow
    return reading(_Plans(writer, reader).of(writer.top, reader.top, kind), kind)


class _Plans:
    """Makes the functions that read each type, for a writer's and a reader's schema."""

    def __init__(self, writer: "Avro", reader: "Avro") -> None:
        self._written, self._named = writer.named, reader.named
        self._default = reader.default
        # The writer's records that enclose the current type, used to refuse recursive records.
        self._within: list[str] = []
        self._levels = 0
        self._made = 0

    def of(self, writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
        """Return a function that reads one type as another or, without a kind, skips the value."""
        self._levels += 1
        self._made += 1
        if self._levels > _DEEPEST or self._made > _MOST:
            raise OneByOne
        made = self._of(writer, reader, kind)
        self._levels -= 1
        return made

    def _of(self, writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
        writer = resolved(writer, self._written)
        if isinstance(writer, list):
            return self._union(writer, reader, kind)
        name = writer["type"]
        if kind is None:
            return self._one(writer, writer, None)
        reader = resolved(reader, self._named)
        if isinstance(reader, list):
            members = [member for member in reader if member != "null"]
            if len(members) != 1:
                raise OneByOne
            reader = resolved(members[0], self._named)
        if name != reader["type"] and (name, reader["type"]) not in _PROMOTED:
            raise OneByOne
        if "name" in writer and writer["name"] != reader["name"]:
            raise OneByOne
        return self._one(writer, reader, kind)

    def _one(self, writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
        makers: dict[str, Callable[..., Read]] = {
            "record": self._record,
            "array": self._array,
            "map": self._map,
        }
        make: Callable[..., Read] = makers.get(writer["type"], _leaf)
        return make(writer, reader, kind)

    def _record(self, writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
        if writer["name"] in self._within or not writer["fields"] or not reader["fields"]:
            raise OneByOne
        self._within.append(writer["name"])
        own = {field["name"]: field for field in reader["fields"]}
        changed = [*own] != [field["name"] for field in writer["fields"]]
        if changed and any(field.get("aliases") for field in reader["fields"]):
            raise OneByOne
        kinds = {} if kind is None else {field.name: field.type for field in kind}
        reads = []
        for field in writer["fields"]:
            name = field["name"]
            type_of_reader = own[name]["type"] if name in kinds else None
            reads.append((name, self.of(field["type"], type_of_reader, kinds.get(name))))
        self._within.pop()
        written = {field["name"] for field in writer["fields"]}
        added = {name: self._added(field) for name, field in own.items() if name not in written}

        def read(cursor: Cursor) -> pa.Array:
            columns = {name: read(cursor) for name, read in reads}
            if kind is None:
                return pa.nulls(len(cursor))
            same = pa.array(np.zeros(len(cursor), np.int64)) if added else None
            columns |= {name: value.take(same) for name, value in added.items()}
            arrays = [columns[field.name] for field in kind]
            return pa.StructArray.from_arrays(arrays, fields=[*kind])

        return read

    def _added(self, field: Mapping[str, Any]) -> pa.Array:
        """Return a column with one row for a field that the writer lacks."""
        try:
            return self._default(field["default"], field["type"])
        except MemoryError:
            raise
        except Exception as error:  # fastavro reports it for each record
            raise OneByOne from error

    def _union(self, writer: list[Any], reader: Any, kind: pa.DataType | None) -> Read:
        reader = None if kind is None else resolved(reader, self._named)
        members = reader if isinstance(reader, list) else [reader]
        several = len(members) - members.count("null") > 1
        if several and not self._same(writer, reader):
            raise OneByOne
        reads: list[Read | None] = []
        fields = iter(kind if several and kind is not None else ())
        for branch in writer:
            if branch == "null":
                reads.append(None if kind is None or "null" in members else _refused(kind))
            else:
                own = next(fields).type if several else kind
                reads.append(self._member(branch, branch if several else reader, own))
        return _union(reads, kind, writer if several else None)

    def _member(self, writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
        levels, within = self._levels, [*self._within]
        try:
            return self.of(writer, reader, kind)
        except OneByOne:
            # Only rows with this member are read one by one.
            self._levels, self._within = levels, within
            return _refused(kind)

    def _same(self, schema: Any, other: Any) -> bool:
        """Return True if the writer's type and the reader's type are the same throughout."""
        schema, other = resolved(schema, self._written), resolved(other, self._named)
        if isinstance(schema, list) or isinstance(other, list):
            return (
                isinstance(schema, list)
                and isinstance(other, list)
                and len(schema) == len(other)
                and all(map(self._same, schema, other))
            )
        parts = ("type", "name", "size", "symbols", "logicalType", "precision", "scale")
        if any(schema.get(part) != other.get(part) for part in parts):
            return False
        fields = [schema.get("fields", ()), other.get("fields", ())]
        names = [[field["name"] for field in each] for each in fields]
        inner = [part for part in ("items", "values") if part in schema]
        return (
            names[0] == names[1]
            and all(self._same(schema[part], other[part]) for part in inner)
            and all(map(self._same, *([field["type"] for field in each] for each in fields)))
        )

    def _array(self, writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
        inner = None if kind is None else kind.value_type
        item = self.of(writer["items"], reader["items"], inner)
        least = self._least(writer["items"])
        if not least:
            raise OneByOne  # A record could claim any number of items.
        return _blocks(lambda cursor: [item(cursor)], [inner], kind, least)

    def _map(self, writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
        inner = None if kind is None else kind.item_type
        item = self.of(writer["values"], reader["values"], inner)
        least = 1 + self._least(writer["values"])
        kinds = [pa.string(), inner]
        return _blocks(lambda cursor: [_text(cursor), item(cursor)], kinds, kind, least)

    def _least(self, schema: Any) -> int:
        """Return how many bytes a value of the writer's type takes at least."""
        schema = resolved(schema, self._written)
        if isinstance(schema, list):
            return 1
        if schema["type"] == "record":
            return sum(self._least(field["type"]) for field in schema["fields"])
        return int(schema["size"]) if schema["type"] == "fixed" else _LEAST.get(schema["type"], 1)


def _refused(kind: pa.DataType | None) -> Read:
    def read(cursor: Cursor) -> pa.Array:
        cursor.refuse(np.ones(len(cursor), bool))
        return pa.nulls(len(cursor), kind or pa.null())

    return read


def _union(reads: Sequence[Read | None], kind: pa.DataType | None, members: Any) -> Read:
    """Return a function that reads a union as a struct of ``members`` or, if None, one column."""

    def read(cursor: Cursor) -> pa.Array:
        indices = cursor.long()
        cursor.refuse((indices < 0) | (indices >= len(reads)))
        parts, places = [], []
        for number, read in enumerate(reads):
            chosen = np.flatnonzero(indices == number)
            if read is None or not len(chosen):
                continue
            if len(chosen) == len(cursor):
                part = read(cursor)
            else:
                some = cursor.some(chosen)
                part = read(some)
                cursor.at[chosen] = some.at
            parts.append(_of_member(part, kind, number, members) if members else part)
            places.append(chosen)
        if kind is None:
            return pa.nulls(len(cursor))
        return placed(parts, places, len(cursor), kind)

    return read


def _of_member(part: pa.Array, kind: Any, number: int, members: Sequence[Any]) -> pa.Array:
    """Return a union's column for rows that all have the same member."""
    own = number - [*members[:number]].count("null")
    children = [
        part if place == own else pa.nulls(len(part), field.type)
        for place, field in enumerate(kind)
    ]
    return pa.StructArray.from_arrays(children, fields=[*kind])


def _leaf(writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
    """Return a function that reads a type that contains no other types."""
    name = writer["type"]
    if name in {"bytes", "fixed"}:
        return _bytes(writer, reader, kind)
    if name in {"int", "long"}:
        return _integer(name, reader, kind)
    makers: dict[str, Callable[[], Read]] = {
        "null": lambda: lambda cursor: pa.nulls(len(cursor)),
        "boolean": lambda: _boolean,
        "float": lambda: _floating("<f4", pa.float32(), kind),
        "double": lambda: _floating("<f8", pa.float64(), kind),
        "string": lambda: _text,
        "enum": lambda: _enum(writer, reader),
    }
    return makers[name]()


def _floating(code: str, own: pa.DataType, kind: pa.DataType | None) -> Read:
    return lambda cursor: of_values(cursor.number(code), own).cast(kind or own)


def _boolean(cursor: Cursor) -> pa.Array:
    bytes_ = cursor.byte()
    cursor.refuse(bytes_ > 1)
    return pa.array(bytes_ == 1)


def _integer(name: str, reader: Any, kind: pa.DataType | None) -> Read:
    unit = str(reader.get("logicalType", "")).partition("timestamp-")[2]
    factor, divisor = UNITS.get(unit, (1, 1))
    most = 2**31 - 1 if name == "int" else (2**63 - 1) // factor
    is_checked = most < 2**63 - 1

    def read(cursor: Cursor) -> pa.Array:
        values = cursor.long()
        if is_checked:
            cursor.refuse((values > most) | (values < -most))
        if kind is None:
            return pa.nulls(len(cursor))
        if pa.types.is_floating(kind):
            return of_values(values.astype(np.float64), kind)
        if kind.bit_width == 32:
            return of_values(values.astype(np.int32), kind)
        if factor != 1:
            values = values * factor
        return of_values(values if divisor == 1 else np.floor_divide(values, divisor), kind)

    return read


def _text(cursor: Cursor) -> pa.Array:
    """Read strings."""
    return read_texts(cursor, cursor.text())


def _enum(writer: Any, reader: Any) -> Read:
    if not writer["symbols"]:
        raise OneByOne
    # Symbols that the reader's enum lacks become its default, or are errors.
    kept = [symbol if symbol in reader["symbols"] else None for symbol in writer["symbols"]]
    symbols, unknown = pa.array(kept, pa.string()), np.array([symbol is None for symbol in kept])

    def read(cursor: Cursor) -> pa.Array:
        indices = cursor.long()
        wrong = (indices < 0) | (indices >= len(kept))
        cursor.refuse(wrong)
        indices = np.where(wrong, 0, indices)
        cursor.refuse(unknown[indices])
        return symbols.take(pa.array(indices))

    return read


def _bytes(writer: Any, reader: Any, kind: pa.DataType | None) -> Read:
    size = writer.get("size")
    if size != reader.get("size"):
        raise OneByOne
    if reader.get("logicalType") == "decimal" and kind is not None:
        return _decimal(reader["precision"], kind, size)
    if kind is not None and not pa.types.is_binary(kind):
        raise OneByOne  # a UUID as text
    return lambda cursor: cursor.text() if size is None else cursor.slices(size)


def _decimal(precision: int, kind: pa.DataType, size: int | None) -> Read:
    most = 10 ** min(precision, _LONG_DIGITS) - 1

    def read(cursor: Cursor) -> pa.Array:
        sizes = cursor.long() if size is None else np.full(len(cursor), size)
        # Only numbers that fit into eight bytes are read here: in a longer number, the bytes before
        # the last eight must repeat the sign. Other numbers are read one by one.
        cursor.refuse((sizes < 0) | (sizes > 16))
        sizes = np.clip(sizes, 0, 16)
        _, ends = cursor.span(sizes)
        words = cursor.batch.words(">i8")
        low, high = (words[ends - before].astype(np.int64) for before in (8, 16))
        unused = 64 - 8 * np.minimum(sizes, 8)
        # A number without bytes is 0. The limit of 56 prevents shifts by 64 bits.
        low = np.where(sizes == 0, 0, (low << np.minimum(unused, 56)) >> np.minimum(unused, 56))
        rest = 64 - 8 * np.clip(sizes - 8, 1, 8)
        sign = low >> 63
        cursor.refuse((sizes > 8) & ((high << rest) >> rest != sign))
        cursor.refuse((low > most) | (low < -most))
        both = np.stack([low, sign], axis=1)
        return pa.Array.from_buffers(kind, len(low), [None, pa.py_buffer(both)])

    return read


def _blocks(
    items: Callable[[Cursor], list[pa.Array]],
    kinds: list[pa.DataType],
    kind: pa.DataType | None,
    least: int,  # how many bytes an item takes at least
) -> Read:
    """Return a function that reads arrays or maps of one block; others are read one by one."""

    def read(cursor: Cursor) -> pa.Array:
        counts = _counts(cursor, least, is_passed=kind is None)
        offsets = offsets_of(counts)
        parts: list[list[pa.Array]] = []
        places: list[np.ndarray] = []
        left, number = np.flatnonzero(counts), 0
        filled = left
        while len(left):
            if number >= _FEW and len(left) < max(_FEW, number // _PER_RECORD):
                # The unread items of these rows stay null.
                cursor.batch.refuse(cursor.rows[left])
                break
            some = cursor.some(left)
            parts.append(items(some))
            places.append(offsets[left] + number)
            cursor.at[left] = some.at
            number += 1
            left = left[counts[left] > number]
        if len(filled):
            some = cursor.some(filled)
            some.refuse(some.byte() != 0)
            cursor.at[filled] = some.at
        if kind is None:
            return pa.nulls(len(cursor))
        return containers(cursor, offsets, kind, _columns(parts, places, int(offsets[-1]), kinds))

    return read


def _counts(cursor: Cursor, least: int, *, is_passed: bool) -> np.ndarray:
    """Return each record's number of items in its first block; refuse more than its bytes hold."""
    counts = cursor.long()
    with_size = np.flatnonzero(counts < 0)
    if len(with_size):
        some = cursor.some(with_size)
        some.long()
        # To skip a value, fastavro jumps by the block's size, which may be wrong.
        some.refuse(np.full(len(some), is_passed))
        cursor.at[with_size] = some.at
        counts = np.abs(counts)
    wrong = (counts < 0) | (counts > cursor.left() // least)
    cursor.refuse(wrong)
    return np.where(wrong, 0, counts)


def _columns(
    parts: Sequence[list[pa.Array]],
    places: Sequence[np.ndarray],
    rows: int,
    kinds: Sequence[pa.DataType],
) -> list[pa.Array]:
    return [
        placed([part[number] for part in parts], places, rows, kind)
        for number, kind in enumerate(kinds)
    ]
