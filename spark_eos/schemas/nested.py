"""Arrays, maps and structs, for all formats."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T

from spark_eos.schemas.kinds import BadRows, Kind, each, said


class List(Kind):
    """Lists of items of one kind."""

    def __init__(self, item: Kind) -> None:
        super().__init__(T.ArrayType(item.spark), items=[item])
        self.tagged = item.tagged
        self.item = item

    def _array(self, values: Sequence[Any]) -> pa.Array:
        items = self.item.array([*chain.from_iterable(filter(None, values))])
        return _with_lengths(values, self.arrow, items)

    def values(self, array: pa.Array, path: str) -> Iterable[Any]:
        """Return a list for each row."""
        with _by_containers(array):
            items = self.item.inner_values(array.flatten(), f"{path}[]")
        return _by_row(array, items)


class Map(Kind):
    """Maps, as dictionaries."""

    def __init__(self, key: Kind, value: Kind) -> None:
        super().__init__(T.MapType(key.spark, value.spark), items=[key, value])
        self.tagged = value.tagged
        self.key = key
        self.value = value

    def _array(self, values: Sequence[Any]) -> pa.Array:
        pairs = [*chain.from_iterable(mapping.items() for mapping in filter(None, values))]
        columns = [
            self.key.array([key for key, _ in pairs]),
            self.value.array([value for _, value in pairs]),
        ]
        fields = [self.arrow.key_field, self.arrow.item_field]
        entries = pa.StructArray.from_arrays(columns, fields=fields)
        return _with_lengths(values, self.arrow, entries)

    def values(self, array: pa.Array, path: str) -> Iterable[Any]:
        """Return a dictionary for each row."""
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        path = f"{path}{{}}"
        with _by_containers(array):
            keys = self.key.inner_values(array.keys[first:last], path)
            items = self.value.inner_values(array.items[first:last], path)
        return map(dict, _by_row(array, zip(keys, items, strict=True)))


def _with_lengths(values: Sequence[Any], kind: pa.DataType, items: pa.Array) -> pa.Array:
    """Return a column of lists or maps; ``items`` are the items of all rows."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    own = [valid, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(values), own, children=[items])


@contextmanager
def _by_containers(array: pa.Array) -> Iterator[None]:
    """Re-raise BadRows of items with the rows of their lists or maps; the array has no nulls."""
    try:
        yield
    except BadRows as bad:
        raise bad.placed(np.repeat(np.arange(len(array)), np.diff(array.offsets))) from None


def _by_row(array: pa.Array, items: Iterable[Any]) -> Iterator[list[Any]]:
    """Return the items of each list or map; the array has no nulls."""
    rest = iter(items)
    return ([*islice(rest, count)] for count in np.diff(array.offsets).tolist())


class Record(Kind):
    """Structs, as dictionaries with a kind for each field."""

    def __init__(self, fields: Mapping[str, Kind], required: Sequence[str] = ()) -> None:
        struct = T.StructType([T.StructField(name, kind.spark) for name, kind in fields.items()])
        super().__init__(struct, fields=fields, required=required)
        self.tagged = any(kind.tagged for kind in fields.values())
        self._empty: Any = dict.fromkeys(fields)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        if not self.fields:
            return pa.array([None if value is None else {} for value in values], self.arrow)
        records = [self._empty if value is None else value for value in values]
        children = [kind.array(self._parts(records, n)) for n, kind in self.fields.items()]
        is_null = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=[*self.arrow], mask=is_null)

    def _parts(self, records: Sequence[Any], name: str) -> list[Any]:
        return [*map(itemgetter(name), records)]

    def values(self, array: pa.Array, path: str) -> Iterable[Any]:
        """Return a record for each row."""
        dot = f"{path}." if path else ""
        arrays = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        self._check_together(arrays, path)
        parts = [self.fields[n].inner_values(array, dot + n) for n, array in arrays.items()]
        names, rows = [*arrays], zip(*parts, strict=True) if parts else repeat((), len(array))
        if type(self)._record is Record._record:  # noqa: SLF001
            # Avoid a call for each row, which would take a tenth of the time for encoding.
            return map(dict, map(zip, repeat(names), rows))
        made, errors = each(rows, partial(self._record, names), said)
        if errors:
            raise BadRows(errors, path)
        return made

    def _record(self, names: list[str], parts: tuple[Any, ...]) -> Any:
        return dict(zip(names, parts, strict=True))

    def _check_together(self, arrays: Mapping[str, pa.Array], path: str) -> None:
        """Raise BadRows for rows whose fields contradict each other."""


def check_filled(
    arrays: Iterable[pa.Array], fits: Callable[[np.ndarray], np.ndarray], text: str
) -> None:
    """Raise BadRows for rows in which ``fits`` rejects the number of non-null columns."""
    count = sum((np.asarray(array.is_valid()).astype(int) for array in arrays), np.zeros(1, int))
    bad = np.flatnonzero(~fits(count)).tolist()
    if bad:
        raise BadRows(dict.fromkeys(bad, text))
