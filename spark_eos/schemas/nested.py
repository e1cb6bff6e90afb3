"""Arrays, maps and structs, in all formats."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spark_eos.schemas.kinds import Kind, Written, said

# What messages raise if a value does not fit.
REFUSED: Final = (TypeError, ValueError, OverflowError)


class List(Kind):
    """Lists of items of one kind."""

    def __init__(self, item: Kind) -> None:
        super().__init__(T.ArrayType(item.spark), items=[item])
        self.tagged = item.tagged
        self._item = item

    def _array(self, values: Sequence[Any]) -> pa.Array:
        items = self._item.array([*chain.from_iterable(filter(None, values))])
        return _with_lengths(values, self.arrow, items)

    def values(self, array: pa.Array, path: str) -> Written:
        """A list for each row."""
        items = array.values.slice(*_extent(array))
        return _by_row(array, self._item.inner_values(items, f"{path}[]"))


class Map(Kind):
    """Dictionaries."""

    def __init__(self, key: Kind, value: Kind) -> None:
        super().__init__(T.MapType(key.spark, value.spark), items=[key, value])
        self.tagged = value.tagged
        self._key = key
        self._value = value

    def _array(self, values: Sequence[Any]) -> pa.Array:
        pairs = [*chain.from_iterable(one.items() for one in filter(None, values))]
        columns = [
            self._key.array([key for key, _ in pairs]),
            self._value.array([value for _, value in pairs]),
        ]
        fields = [self.arrow.key_field, self.arrow.item_field]
        entries = pa.StructArray.from_arrays(columns, fields=fields)
        return _with_lengths(values, self.arrow, entries)

    def values(self, array: pa.Array, path: str) -> Written:
        """A dictionary for each row."""
        own, path = _extent(array), f"{path}{{}}"
        keys = self._key.inner_values(array.keys.slice(*own), path)
        items = self._value.inner_values(array.items.slice(*own), path)
        pairs = [*zip(keys.values, items.values, strict=True)]
        found, faults = _by_row(array, Written(pairs, keys.faults | items.faults))
        return Written([None if one is None else dict(one) for one in found], faults)


def _with_lengths(values: Sequence[Any], kind: pa.DataType, items: pa.Array) -> pa.Array:
    """A list, or a map, for each of some containers; ``items`` are those of all."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if one is None else len(one) for one in values], out=offsets[1:])
    valid = pa.array([one is not None for one in values], pa.bool_()).buffers()[1]
    own = [valid, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(values), own, children=[items])


def _extent(array: pa.Array) -> tuple[int, int]:
    """Where the items of lists or maps begin, and how many there are."""
    if not len(array):
        return 0, 0
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return first, last - first


def _by_row(array: pa.Array, items: Written) -> Written:
    """The items of each list or map of an array."""
    offsets = np.asarray(array.offsets) if len(array) else np.zeros(1, np.int32)
    bounds = (offsets - offsets[0]).tolist()
    whole: Any = items.values
    spans = zip(array.is_valid().to_pylist(), bounds[:-1], bounds[1:], strict=True)
    values = [whole[begin:end] if is_valid else None for is_valid, begin, end in spans]
    faults = {}
    for item, text in sorted(items.faults.items()):
        row = bisect_right(bounds, item) - 1
        # Not within a null, which may have items, too.
        if values[row] is not None:
            values[row], faults[row] = None, text
    return Written(values, faults)


class Record(Kind):
    """Dictionaries with one kind for each name."""

    def __init__(self, fields: Mapping[str, Kind], required: Sequence[str] = ()) -> None:
        struct = T.StructType([T.StructField(name, kind.spark) for name, kind in fields.items()])
        super().__init__(struct, fields=fields, required=required)
        self.tagged = any(kind.tagged for kind in fields.values())
        self._empty: Any = dict.fromkeys(fields)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        if not self._fields:
            return pa.array([None if one is None else {} for one in values], self.arrow)
        records = [self._empty if one is None else one for one in values]
        children = [kind.array(self._parts(records, n)) for n, kind in self._fields.items()]
        is_null = pa.array([one is None for one in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=[*self.arrow], mask=is_null)

    def _parts(self, records: Sequence[Any], name: str) -> list[Any]:
        return [*map(itemgetter(name), records)]

    def values(self, array: pa.Array, path: str) -> Written:
        """A record for each row."""
        dot = f"{path}." if path else ""
        arrays = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        parts = [self._fields[n].inner_values(one, dot + n) for n, one in arrays.items()]
        faults = self._faults(array, path)
        for part in parts:
            faults = part.faults | faults
        valid = array.is_valid().to_pylist()
        faults = {row: text for row, text in faults.items() if valid[row]}
        rows = zip(*(part.values for part in parts), strict=True) if parts else repeat(())
        own = type(self)._record is not Record._record  # noqa: SLF001
        if parts and not (own or faults) and all(valid):
            # No call for each row, which takes a tenth of encoding.
            return Written(map(dict, map(zip, repeat([*arrays]), rows)), faults)
        return Written(self._records([*arrays], valid, rows, faults, path), faults)

    def _records(
        self,
        names: list[str],
        valid: list[bool],
        rows: Iterator[tuple[Any, ...]],
        faults: dict[int, str],
        path: str,
    ) -> Iterator[Any]:
        """Yields records one by one: to keep all of a batch takes time and memory."""
        for row, (is_valid, parts) in enumerate(zip(valid, rows, strict=False)):
            made = None
            if is_valid and row not in faults:
                try:
                    made = self._record(names, parts)
                except REFUSED as error:
                    faults[row] = f"{path or 'the record'}: {said(error)}"
            yield made

    def _record(self, names: list[str], parts: tuple[Any, ...]) -> Any:
        return dict(zip(names, parts, strict=True))

    def _faults(self, array: pa.Array, path: str) -> dict[int, str]:  # noqa: ARG002
        """What is wrong with the fields together."""
        return {}


def filled(arrays: Iterable[pa.Array], rows: int) -> np.ndarray:
    """How many of some columns are not null, in each of some rows."""
    return sum((np.asarray(one.is_valid()) for one in arrays), np.zeros(rows, int))
