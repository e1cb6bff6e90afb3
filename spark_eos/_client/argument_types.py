"""Checks arguments of public functions against their annotations before the function runs."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, ParamSpec, TypeVar, Union

from spark_eos.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")

_WORDS: Final[Mapping[Any, tuple[str, str]]] = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "booleans"),
    type(None): ("None", "None"),
    Mapping: ("a dict", "dicts"),
    Callable: ("a function", "functions"),
    type: ("a class", "classes"),
}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function to refuse arguments that don't match its annotations."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        hints = _hints(function)
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if name not in hints:
                continue
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                for keyword, item in value.items():
                    check_type(keyword, item, hints[name])
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                for item in value:
                    check_type(name, item, hints[name])
            else:
                check_type(name, value, hints[name])
        return function(*arguments, **named)

    return checked


@functools.cache
def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    return typing.get_type_hints(function)


def check_type(name: str, value: object, wanted: Any) -> None:
    """Check one argument. The error doesn't show the value, which may contain a secret.

    Raises:
        ConfigurationError: The value doesn't have the wanted type.
    """
    if not _fits(value, wanted):
        raise ConfigurationError(f"{name} must be {_shown(wanted)}, not {_kind_of(value)}")


def _kind_of(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset) and value:
        held = sorted({type(item).__name__ for item in value})
        return f"a {type(value).__name__} that holds {' and '.join(held)}"
    return "None" if value is None else type(value).__name__


def _alternatives(wanted: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(wanted) in (Union, types.UnionType)
    return typing.get_args(wanted) if is_union else (wanted,)


def _fits(value: object, wanted: Any) -> bool:
    return any(_fits_one(value, kind) for kind in _alternatives(wanted))


def _fits_one(value: object, wanted: Any) -> bool:
    kind, items = typing.get_origin(wanted) or wanted, typing.get_args(wanted)
    if kind in (Any, object, Callable):
        return kind is not Callable or callable(value)
    if kind in (int, float):
        numbers = (int, float) if kind is float else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    if items:
        return isinstance(value, kind) and _hold(value, kind, items)
    # Spark Connect's classes have the same names as classic Spark's, but no common base class.
    return isinstance(value, kind) or (
        kind.__module__.startswith("pyspark.")
        and kind.__name__ in {base.__name__ for base in type(value).__mro__}
    )


def _hold(value: Any, kind: type, items: tuple[Any, ...]) -> bool:
    if issubclass(kind, Mapping):
        return all(_fits(key, items[0]) and _fits(item, items[1]) for key, item in value.items())
    if isinstance(value, str | bytes | Mapping):
        return False
    # An iterator can be consumed only once, so its items aren't checked here.
    is_list = isinstance(value, list | tuple | set | frozenset)
    return not is_list or all(_fits(item, items[0]) for item in value)


def _shown(wanted: Any) -> str:
    *others, last = (_word(kind, 0) for kind in _alternatives(wanted))
    return f"{', '.join(others)} or {last}" if others else last


def _word(wanted: Any, number: int) -> str:
    """Describe a type in words; ``number`` is 0 for the singular, 1 for the plural."""
    kind, items = typing.get_origin(wanted) or wanted, typing.get_args(wanted)
    if kind in _WORDS:
        return _WORDS[kind][number]
    if isinstance(kind, type) and issubclass(kind, Iterable) and items:
        return f"a list of {' or '.join(_word(item, 1) for item in _alternatives(items[0]))}"
    name = f"{'spark_eos.' if kind.__module__.startswith('spark_eos.') else ''}{kind.__name__}"
    return f"{name}s" if number else f"a {name}"
