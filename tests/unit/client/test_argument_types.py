"""Public functions refuse arguments of a wrong type; errors name the argument and its types."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_eos
from spark_eos import ExactlyOnceSink, ExactlyOnceWriter, options
from spark_eos._client.argument_types import check_type
from spark_eos.errors import ConfigurationError
from spark_eos.schemas import SchemaRegistry
from support.client_settings import SERVERS

_FUNCTIONS: list[Callable[..., Any]] = [
    ExactlyOnceSink.__init__,
    ExactlyOnceSink.read,
    ExactlyOnceSink.write,
    ExactlyOnceWriter.trigger,
    ExactlyOnceWriter.outputMode,
    ExactlyOnceWriter.queryName,
    ExactlyOnceWriter.option,
    ExactlyOnceWriter.options,
    ExactlyOnceWriter.foreachBatch,
    ExactlyOnceWriter.start,
    SchemaRegistry.__init__,
    SchemaRegistry.decode,
    SchemaRegistry.encode,
    spark_eos.guarded,
    spark_eos.run,
    spark_eos.session_builder,
]


# Of arguments without a default.
_RIGHT: dict[str, object] = {
    "checkpoint_location": "c",
    "frame": type("DataFrame", (), {})(),
    "func": print,
    "function": print,
    "group_id": "g",
    "kafka": SERVERS,
    "key": "k",
    "outputMode": "append",
    "query": type("StreamingQuery", (), {})(),
    "queryName": "q",
    "schema": "a int",
    "settings": {},
    "spark": type("SparkSession", (), {})(),
    "subject": "s",
    "value": "v",
}


_FURTHER = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


class _Other:
    """A type that no argument has."""


def _arguments() -> Iterator[Any]:
    for function in _FUNCTIONS:
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.annotation is not parameter.empty:
                yield pytest.param(function, name, id=f"{function.__qualname__}-{name}")


@pytest.mark.parametrize(("function", "name"), [*_arguments()])
def test_an_argument_of_a_wrong_type(function: Callable[..., Any], name: str) -> None:
    signature = inspect.signature(function)
    bound = signature.bind_partial()
    for other, parameter in signature.parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in _FURTHER:
            bound.arguments[other] = _RIGHT.get(other)
    further: dict[Any, Any] = dict(zip(_FURTHER, ({name: _Other()}, (_Other(),)), strict=True))
    bound.arguments[name] = further.get(signature.parameters[name].kind, _Other())
    with pytest.raises(ConfigurationError, match=rf"^{name} must be .*, not _Other"):
        function(*bound.args, **bound.kwargs)


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, each.name) for kind in options.GROUPS.values() for each in dataclasses.fields(kind)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_field_of_a_wrong_type(kind: type, field: str) -> None:
    given = {"topic": "dlq"} if kind is spark_eos.DeadLetters else {}
    shown = rf"{kind._ARGUMENT}\.{field}"  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=f"^{shown} must be .*, not (_Other|bool)"):
        kind(**{**given, field: _Other()})
    others: list[object] = [[], {}, b"a", True]
    for wrong in others:
        if field != "stacktrace" or wrong is not True:
            with pytest.raises(ConfigurationError, match=f"^{shown} must be "):
                kind(**{**given, field: wrong})


@pytest.mark.parametrize(
    ("wanted", "right", "wrong", "words"),
    [
        (str, ["a"], [["a"], b"a", 5, None], "a string"),
        (int, [5], [True, 5.0, "5"], "an integer"),
        (float, [5, 5.5], [True, "5"], "a number"),
        (str | None, ["a", None], [5], "a string or None"),
        (
            str | typing.Iterable[str] | None,
            ["a", ["a", "b"], ("a",), {"a"}, None, iter("a")],
            [5, [5], {"a": 1}, b"a"],
            "a string, a list of strings or None",
        ),
        (
            str | typing.Mapping[str, typing.Iterable[int]],
            ["{}", {"a": [0, 1]}],
            [{"a": 0}, {"a": ["0"]}, {0: [0]}],
            "a string or a dict",
        ),
        (options.Limits, [options.Limits()], ["a", None], "a spark_eos.Limits"),
        (
            Callable[[int], int] | None,
            [print, None],
            [5],
            "a function or None",
        ),
        (
            typing.Iterable[str | Path],
            [[Path("a")]],
            [Path("a"), "a"],
            "a list of strings or Paths",
        ),
    ],
)
def test_what_fits(wanted: Any, right: list[Any], wrong: list[Any], words: str) -> None:
    for value in right:
        check_type("given", value, wanted)
    for value in wrong:
        with pytest.raises(ConfigurationError, match=f"^given must be {re.escape(words)}, not "):
            check_type("given", value, wanted)


def test_no_value_is_shown() -> None:
    """The value may be a secret."""
    with pytest.raises(ConfigurationError) as refused:
        ExactlyOnceSink(kafka="sasl.password=hush", group_id="g", checkpoint_location="c")  # type: ignore[arg-type]
    assert "hush" not in str(refused.value)
    assert "kafka must be a dict, not str" in str(refused.value)
    with pytest.raises(ConfigurationError) as refused:
        ExactlyOnceSink(kafka=SERVERS, group_id=["hush"], checkpoint_location="c")  # type: ignore[arg-type]
    assert "group_id must be a string, not a list that holds str" in str(refused.value)
