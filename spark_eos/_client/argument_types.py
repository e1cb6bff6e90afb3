"""Checks the arguments of public functions against their annotations, before anything is done."""

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
    """Make a public function refuse arguments that are not what its annotations say."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: P.args, **named: P.kwargs) -> R:
        hints = _hints(function)
        for name, value in signature.bind(*arguments, **named).arguments.items():
            if name not in hints:
                continue
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                for each, own in value.items():
                    check_type(each, own, hints[name])
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                for own in value:
                    check_type(name, own, hints[name])
            else:
                check_type(name, value, hints[name])
        return function(*arguments, **named)

    return checked


@functools.cache
def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    return typing.get_type_hints(function)


def check_type(name: str, value: object, wanted: Any) -> None:
    """Check one argument; the error shows no value, which may hold a secret.

    Raises:
        ConfigurationError: The value is not of the type.
    """
    if not _fits(value, wanted):
        raise ConfigurationError(f"{name} must be {_shown(wanted)}, not {_kind_of(value)}")


def _kind_of(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset) and value:
        held = sorted({type(each).__name__ for each in value})
        return f"a {type(value).__name__} that holds {' and '.join(held)}"
    return "None" if value is None else type(value).__name__


def _alternatives(wanted: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(wanted) in (Union, types.UnionType)
    return typing.get_args(wanted) if is_union else (wanted,)


def _fits(value: object, wanted: Any) -> bool:
    return any(_fits_one(value, each) for each in _alternatives(wanted))


def _fits_one(value: object, wanted: Any) -> bool:
    kind, items = typing.get_origin(wanted) or wanted, typing.get_args(wanted)
    if kind in (Any, object, Callable):
        return kind is not Callable or callable(value)
    if kind in (int, float):
        numbers = (int, float) if kind is float else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    if items:
        return isinstance(value, kind) and _hold(value, kind, items)
    # Spark Connect's classes have the names of classic Spark's, and no common base.
    return isinstance(value, kind) or (
        kind.__module__.startswith("pyspark.")
        and kind.__name__ in {each.__name__ for each in type(value).__mro__}
    )


def _hold(value: Any, kind: type, items: tuple[Any, ...]) -> bool:
    if issubclass(kind, Mapping):
        return all(_fits(key, items[0]) and _fits(each, items[1]) for key, each in value.items())
    if isinstance(value, str | bytes | Mapping):
        return False
    # What can be read only once is left for the function.
    is_list = isinstance(value, list | tuple | set | frozenset)
    return not is_list or all(_fits(each, items[0]) for each in value)


def _shown(wanted: Any) -> str:
    *others, last = (_word(each, 0) for each in _alternatives(wanted))
    return f"{', '.join(others)} or {last}" if others else last


def _word(wanted: Any, number: int) -> str:
    """Return a type in words: 0 in the singular, 1 in the plural."""
    kind, items = typing.get_origin(wanted) or wanted, typing.get_args(wanted)
    if kind in _WORDS:
        return _WORDS[kind][number]
    if isinstance(kind, type) and issubclass(kind, Iterable) and items:
        return f"a list of {' or '.join(_word(each, 1) for each in _alternatives(items[0]))}"
    name = f"{'spark_eos.' if kind.__module__.startswith('spark_eos.') else ''}{kind.__name__}"
    return f"{name}s" if number else f"a {name}"
