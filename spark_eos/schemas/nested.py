"""Arrays, maps, records and unions of Avro, and those of JSON, as columns."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from spark_eos.schemas.kinds import PRIMITIVES, Faults, Kind


class List(Kind):
    def __init__(self, item: Kind) -> None:
        super().__init__(T.ArrayType(item.spark), pa.list_(item.raw), items=[item])
        self.plain, self.tagged, self.converted = item.plain, item.tagged, item.converted
        self._item = item

    def from_wire(self, array: pa.Array) -> pa.Array:
        return _with_child(array, self.arrow, self._item.from_wire(array.values))

    def to_wire(self, array: pa.Array) -> pa.Array:
        child = self._item.to_wire(array.values)
        return _with_child(array, pa.list_(child.type), child)

    def faults(self, array: pa.Array, path: str) -> Faults:
        yield from _item_faults(array, array.values, self._item, f"{path}[]")

    def raw_of(self, value: Any) -> Any:
        found = super().raw_of(value)
        return found and [self._item.raw_of(one) for one in found]

    def to_write(self, value: Any) -> Any:
        return value and [self._item.written(one) for one in value]


class Map(Kind):
    converted = True

    def __init__(self, item: Kind) -> None:
        spark, raw = T.MapType(T.StringType(), item.spark), pa.map_(pa.string(), item.raw)
        super().__init__(spark, raw, items=[Kind(*PRIMITIVES["string"]), item])
        self.plain, self.tagged = item.plain, item.tagged
        self._item = item

    def from_wire(self, array: pa.Array) -> pa.Array:
        return _with_items(array, self.arrow, self._item.from_wire(array.items))

    def to_wire(self, array: pa.Array) -> pa.Array:
        child = self._item.to_wire(array.items)
        return _with_items(array, pa.map_(array.type.key_type, child.type), child)

    def faults(self, array: pa.Array, path: str) -> Faults:
        yield from _item_faults(array, array.items, self._item, f"{path}{{}}")

    def raw_of(self, value: Any) -> Any:
        found = super().raw_of(value)
        return found and {key: self._item.raw_of(one) for key, one in found.items()}

    def to_write(self, value: Any) -> Any:
        # Arrow has maps as pairs.
        return None if value is None else {key: self._item.written(one) for key, one in value}


def _with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """A list, or a map, with another child; the same slice of the same rows."""
    own = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), own, offset=array.offset, children=[child])


def _with_items(array: pa.Array, kind: pa.DataType, items: pa.Array) -> pa.Array:
    entries = pa.StructArray.from_arrays(
        [array.keys, items], fields=[kind.key_field, kind.item_field]
    )
    return _with_child(array, kind, entries)


def _item_faults(array: pa.Array, items: pa.Array, kind: Kind, path: str) -> Faults:
    """What is wrong with the items of lists or maps, by row of those."""
    offsets = np.asarray(array.offsets)
    begin, end = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
    own = items.slice(begin, end - begin)
    rows = np.repeat(np.arange(len(array)), np.diff(offsets)) if len(array) else offsets[:0]
    yield from ((rows[found], text) for found, text in _null_faults(own, None, kind, path))


def _null_faults(array: pa.Array, within: pa.Array | None, kind: Kind, path: str) -> Faults:
    """What is wrong with values within valid ones, first of all nulls that may not be."""
    if array.null_count and not kind.nullable:
        missing = array.is_null() if within is None else pc.and_(array.is_null(), within)
        yield (
            np.flatnonzero(np.asarray(missing)),
            f"{path} is null, which its schema does not allow",
        )
    yield from kind.faults(array, path)


class Record(Kind):
    def __init__(self, fields: Sequence[tuple[str, Kind, bool]]) -> None:
        self._fields = {name: kind for name, kind, _ in fields}
        kinds = self._fields.items()
        super().__init__(
            T.StructType([T.StructField(name, kind.spark) for name, kind in kinds]),
            pa.struct([(name, kind.raw) for name, kind in kinds]),
            fields=self._fields,
            required=[name for name, _, default in fields if not default],
        )
        self.plain = all(kind.plain for _, kind in kinds)
        self.tagged = any(kind.tagged for _, kind in kinds)
        self._converted = [name for name, kind in kinds if kind.converted]
        self.converted = bool(self._converted)

    def from_wire(self, array: pa.Array) -> pa.Array:
        if self.plain and array.type == self.arrow:
            return array
        parts = zip(self._fields.values(), array.flatten(), strict=True)
        return _struct(array, [kind.from_wire(part) for kind, part in parts], [*self.arrow])

    def to_wire(self, array: pa.Array) -> pa.Array:
        names = [field.name for field in array.type]
        parts = zip(names, array.flatten(), strict=True)
        children = [self._fields[name].to_wire(part) for name, part in parts]
        pairs = zip(names, children, strict=True)
        return _struct(array, children, [pa.field(name, one.type) for name, one in pairs])

    def faults(self, array: pa.Array, path: str) -> Faults:
        dot = f"{path}." if path else ""
        valid = array.is_valid()
        for field, part in zip(array.type, array.flatten(), strict=True):
            yield from _null_faults(part, valid, self._fields[field.name], dot + field.name)

    def raw_of(self, value: Any) -> Any:
        record = super().raw_of(value)
        # All fields: the writer may have unions where the reader has none.
        return record and {n: kind.raw_of(record[n]) for n, kind in self._fields.items()}

    def to_write(self, value: Any) -> Any:
        for name in self._converted if value is not None else ():
            if name in value:
                value[name] = self._fields[name].written(value[name])
        return value


def _struct(array: pa.Array, children: list[pa.Array], fields: list[pa.Field]) -> pa.Array:
    if not fields:
        return array
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


_MEMBERS: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("int", "long", "double", "float"),
    float: ("double", "float"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}


class Union(Kind):
    """One member of a struct for each type; the others are null."""

    plain = False
    tagged = True
    converted = True

    def __init__(self, members: dict[str, tuple[str, Kind]]) -> None:
        self._members = members
        self._by_tag = {tag: name for name, (tag, _) in members.items()}
        super().__init__(
            T.StructType([T.StructField(name, kind.spark) for name, (_, kind) in members.items()]),
            pa.struct([(name, kind.raw) for name, (_, kind) in members.items()]),
            fields={name: kind for name, (_, kind) in members.items()},
        )
        self._struct = Record([(name, kind, True) for name, (_, kind) in members.items()])
        for tag, kind in members.values():
            kind.nullable, kind.tag = True, tag

    def from_wire(self, array: pa.Array) -> pa.Array:
        return self._struct.from_wire(array)

    def to_wire(self, array: pa.Array) -> pa.Array:
        return self._struct.to_wire(array)

    def faults(self, array: pa.Array, path: str) -> Faults:
        members = array.flatten()
        found = sum(np.asarray(part.is_valid()).astype(int) for part in members)
        wrong = np.asarray(array.is_valid()) & (found != 1)
        yield np.flatnonzero(wrong), f"{path} must have exactly one member that is not null"
        yield from self._struct.faults(array, path)

    def raw_of(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            name, value = self._by_tag[value[0]], value[1]
        else:
            tags = (tag for tag in _MEMBERS[type(value)] if tag in self._by_tag)
            name = self._by_tag[next(tags)]
        return {name: self._members[name][1].raw_of(value)}

    def to_write(self, value: Any) -> Any:
        if value is None:
            return None
        ((name, one),) = ((name, one) for name, one in value.items() if one is not None)
        return self._members[name][1].written(one)
