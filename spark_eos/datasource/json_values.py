"""Converts dataclasses to plain values for JSON, and back by their type hints.

Only what the types name is created: the sender can't choose what is called.
"""

import dataclasses
import enum
import functools
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Union, get_args, get_origin

from spark_eos.errors import PrintableError

_SCALARS: Final = (str, int, float, bool, type(None))
_SEQUENCES: Final = (tuple, list, frozenset, set)


class PlainError(PrintableError, ValueError):
    """A value does not have its declared type."""


@dataclasses.dataclass(frozen=True)
class Translator:
    """Converts by type: scalars, dataclasses, mappings, sequences, enums and UUIDs.

    Attributes:
        special: Two functions for each further class: to a plain value, and back.
    """

    special: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]]

    def to_plain(self, value: Any, kind: Any) -> Any:
        """A value that JSON can hold.

        Raises:
            PlainError: The value does not have that type.
        """
        return self._translate(value, kind, into=True)

    def from_plain(self, value: Any, kind: Any) -> Any:
        """The inverse of `to_plain`.

        Raises:
            PlainError: `to_plain` makes no such value of that type.
        """
        return self._translate(value, kind, into=False)

    def _translate(self, value: Any, kind: Any, *, into: bool) -> Any:
        origin = get_origin(kind)
        if origin in (Union, types.UnionType):
            return self._one_of(value, get_args(kind), into=into)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(value, kind, into=into)
        if isinstance(origin, type) and issubclass(origin, Iterable):
            several = self._mapping if issubclass(origin, Mapping) else self._sequence
            return several(value, get_args(kind), origin, into=into)
        return self._single(value, kind, into=into)

    def _single(self, value: Any, kind: Any, *, into: bool) -> Any:
        if kind in _SCALARS:
            return _scalar(value, kind)
        if kind in self.special:
            return self.special[kind][0 if into else 1](value)
        if kind is uuid.UUID:
            return str(value) if into else uuid.UUID(_scalar(value, str))
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return value.value if into else kind(value)
        raise TypeError(f"{kind} has no plain form")

    def _one_of(self, value: Any, kinds: tuple[Any, ...], *, into: bool) -> Any:
        if type(value) in kinds and type(value) in _SCALARS:
            return value
        (kind,) = (k for k in kinds if k is not type(None))
        return self._translate(value, kind, into=into)

    def _dataclass(self, value: Any, kind: Any, *, into: bool) -> Any:
        hints = _hints(kind)
        if into:
            return {name: self.to_plain(getattr(value, name), hints[name]) for name in hints}
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise PlainError(f"not a {kind.__name__}")
        return kind(**{name: self.from_plain(value[name], hints[name]) for name in hints})

    def _mapping(self, value: Any, kinds: tuple[Any, ...], origin: type, *, into: bool) -> Any:
        pairs = value.items() if into else value
        if not isinstance(pairs, Iterable):
            raise PlainError(f"not a {origin.__name__}")
        found = [self._sequence(pair, kinds, tuple, into=into) for pair in pairs]
        return found if into else dict(found)

    def _sequence(self, value: Any, kinds: tuple[Any, ...], origin: type, *, into: bool) -> Any:
        if not into and not isinstance(value, list):
            raise PlainError(f"not a {origin.__name__}")
        values = list(value)
        if origin is tuple and kinds[-1] is not Ellipsis:
            if len(values) != len(kinds):
                raise PlainError(f"{len(values)} values instead of {len(kinds)}")
            each = list(kinds)
        else:
            each = [kinds[0]] * len(values)
        found = [self._translate(v, k, into=into) for v, k in zip(values, each, strict=True)]
        if into:
            return found
        return origin(found) if origin in _SEQUENCES else tuple(found)


def _scalar(value: Any, kind: type) -> Any:
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise PlainError(f"{type(value).__name__} instead of {kind.__name__}")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind) if one.init}
