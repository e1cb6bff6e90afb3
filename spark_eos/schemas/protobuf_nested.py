"""Protobuf's messages, repeated fields and maps as columns."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import said
from spark_eos.schemas.protobuf_kinds import (
    REFUSED,
    Fault,
    Kind,
    check_known,
    offsets_of,
    valid_rows,
)


class Field:
    """A field of a message.

    Args:
        descriptor: The field.
        kind: Its type as a column.
        has: Whether a message has a field of a name; a message's own attribute may be a field.

    Attributes:
        name: Its name.
        kind: Its type as a column.
        required: Whether each message must have it, as in proto2.
        nullable: Whether a null may be written.
    """

    def __init__(self, descriptor: Any, kind: Kind, has: Callable[[Any, str], bool]) -> None:
        self.name: str = descriptor.name
        self.kind = kind
        self._has = has
        self.required: bool = descriptor.is_required
        self.nullable: bool = descriptor.has_presence and not descriptor.is_required
        self._may_lack = self.nullable and not descriptor.has_default_value

    def array(self, messages: Sequence[Any]) -> pa.Array:
        """The field of all messages; null where one lacks it."""
        name, has = self.name, self._has
        if self._may_lack:
            return self.kind.array([getattr(m, name) if has(m, name) else None for m in messages])
        return self.kind.array([*map(attrgetter(name), messages)])

    def values(self, array: pa.Array, path: str) -> list[Any]:
        """What messages are made of."""
        found = self.kind.values(array, path)
        return found if self.nullable else _without_nulls(array, found, path)


def _without_nulls(array: pa.Array, values: list[Any], path: str) -> list[Any]:
    if not array.null_count:
        return values
    fault = Fault(f"{path} is null, which its schema does not allow")
    return [fault if one is None else one for one in values]


class Message(Kind):
    """A struct.

    Args:
        make: Makes such a message.
        fields: Its fields.
        groups: The names of the fields of each oneof.
    """

    def __init__(self, make: Any, fields: Sequence[Field], groups: Sequence[Sequence[str]]) -> None:
        types = [T.StructField(field.name, field.kind.spark) for field in fields]
        super().__init__(
            T.StructType(types),
            pa.null(),
            fields={field.name: field.kind for field in fields},
            required=[field.name for field in fields if field.required],
        )
        self._make = make
        self._fields = {field.name: field for field in fields}
        self._groups = groups

    def array(self, values: Sequence[Any]) -> pa.Array:
        check_known(values)
        is_null = pa.array([one is None for one in values], pa.bool_())
        if not self._fields:
            return pa.array([None if one is None else {} for one in values], self.arrow)
        empty = self._make()
        messages = [empty if one is None else one for one in values]
        children = [field.array(messages) for field in self._fields.values()]
        return pa.StructArray.from_arrays(children, fields=[*self.arrow], mask=is_null)

    def values(self, array: pa.Array, path: str) -> list[Any]:
        return [*self.messages(array, path)]

    def messages(self, array: pa.Array, path: str) -> Iterator[Any]:
        """Yields messages one by one: to keep all of a batch takes time and memory."""
        names = [field.name for field in array.type]
        dot = f"{path}." if path else ""
        parts = array.flatten()
        columns = [
            self._fields[name].values(part, dot + name)
            for name, part in zip(names, parts, strict=True)
        ]
        self._refuse_several(names, parts, columns, path)
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        for is_valid, row in zip(valid_rows(array), rows, strict=True):
            yield self._message(names, row, path) if is_valid else None

    def _message(self, names: list[str], row: tuple[Any, ...], path: str) -> Any:
        try:
            return self._make(**dict(zip(names, row, strict=True)))
        except REFUSED as error:
            faults = (fault for one in row if (fault := _fault(one)) is not None)
            return next(faults, Fault(f"{path or 'the message'}: {said(error)}"))

    def _refuse_several(
        self, names: list[str], parts: list[pa.Array], columns: list[list[Any]], path: str
    ) -> None:
        """Puts faults where more than one field of a oneof has a value."""
        for group in self._groups:
            own = [names.index(name) for name in group if name in names]
            filled = sum(
                (np.asarray(parts[one].is_valid()).astype(int) for one in own), np.zeros(1)
            )
            for row in np.flatnonzero(filled > 1):
                text = f"at most one of {', '.join(group)} may have a value"
                columns[own[0]][int(row)] = Fault(f"{path}: {text}" if path else text)


def _fault(value: Any) -> Fault | None:
    if isinstance(value, Fault):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((one for one in items if isinstance(one, Fault)), None)


class List(Kind):
    """A repeated field: an array, which is never null."""

    def __init__(self, item: Kind) -> None:
        super().__init__(T.ArrayType(item.spark), pa.null(), items=[item])
        self._item = item

    def array(self, values: Sequence[Any]) -> pa.Array:
        child = self._item.array([*chain.from_iterable(values)])
        return _with_lengths(values, self.arrow, child)

    def values(self, array: pa.Array, path: str) -> list[Any]:
        offsets, own = offsets_of(array)
        items = array.values.slice(*own)
        found = _without_nulls(items, self._item.values(items, f"{path}[]"), f"{path}[]")
        spans = zip(valid_rows(array), offsets[:-1], offsets[1:], strict=True)
        return [found[begin:end] if is_valid else None for is_valid, begin, end in spans]


class Map(Kind):
    """A map, which is never null."""

    def __init__(self, key: Kind, value: Kind) -> None:
        super().__init__(T.MapType(key.spark, value.spark), pa.null(), items=[key, value])
        self._key = key
        self._value = value

    def array(self, values: Sequence[Any]) -> pa.Array:
        pairs = [*chain.from_iterable(one.items() for one in values)]
        columns = [
            self._key.array([key for key, _ in pairs]),
            self._value.array([value for _, value in pairs]),
        ]
        fields = [self.arrow.key_field, self.arrow.item_field]
        return _with_lengths(values, self.arrow, pa.StructArray.from_arrays(columns, fields=fields))

    def values(self, array: pa.Array, path: str) -> list[Any]:
        offsets, own = offsets_of(array)
        path = f"{path}{{}}"
        items = array.items.slice(*own)
        keys = self._key.values(array.keys.slice(*own), path)
        found = _without_nulls(items, self._value.values(items, path), path)
        spans = zip(valid_rows(array), offsets[:-1], offsets[1:], strict=True)
        return [
            dict(zip(keys[begin:end], found[begin:end], strict=True)) if is_valid else None
            for is_valid, begin, end in spans
        ]

    def check(self, kind: T.DataType, path: str) -> None:
        super().check(kind, path)
        if "CopyFrom" in getattr(self._value.spark, "names", ()):
            # The one method by which Protobuf fills in a map is a field then.
            raise SchemaError(f"{path}{{}}: messages with a field 'CopyFrom' can't be put in a map")


def _with_lengths(values: Sequence[Any], kind: pa.DataType, child: pa.Array) -> pa.Array:
    """A list, or a map, for each of some containers; the child has all their items."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(one) for one in values], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=[child])
