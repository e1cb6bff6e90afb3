"""Writes docs/options.md from the code: signatures, docstrings and click's commands.

The page is committed, so that it can be read where the code is read, and a change of an option
shows in its review; a test fails while it is not what this module makes. mkdocs-click (0.9, with
click 8.5) would print neither metavars nor which options are required, and "Sentinel.UNSET" for
each without a default.
"""

import dataclasses
import inspect
import re
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import click

from spark_eos import ExactlyOnceSink
from spark_eos._cli import main
from spark_eos.options import FLAT, GROUPS

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "options.md"

_ARGUMENT: Final = re.compile(r"^    (\w+): (.*(?:\n      +.*)*)", re.MULTILINE)

_HEAD: Final = """# Options

`make docs` generates this page from the code.

"""


def page() -> str:
    """Returns the whole page."""
    return _HEAD + "\n".join([*_sink(), *_commands(), *_jobs()])


def _sink() -> Iterator[str]:
    yield "## ExactlyOnceSink\n\nKeyword arguments; those without a default are required.\n"
    yield _arguments(ExactlyOnceSink, inspect.getdoc(ExactlyOnceSink) or "")
    yield (
        "`kafka` takes the producer settings in librdkafka's\n"
        "[CONFIGURATION.md](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md)"
        "\nexcept those that the sink sets itself, and applies them to all clients. Spark's source "
        "gets\nthose of consumers: `client.rack`, `fetch.*`, `retry.backoff.*` and others.\n"
    )
    for argument, kind in GROUPS.items():
        yield f"### {kind.__name__}\n\nThe sink's `{argument}`.\n"
        yield _fields(kind)
    yield "## sink.read\n"
    yield _arguments(ExactlyOnceSink.read, inspect.getdoc(ExactlyOnceSink.read) or "")


def _arguments(function: Callable[..., Any], doc: str) -> str:
    meanings = {
        name: " ".join(text.split())
        for name, text in _ARGUMENT.findall(doc.partition("Args:\n")[2].partition("\n\n")[0])
    }
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        required = parameter.default is parameter.empty
        rows.append(
            (
                f"`{name}`",
                _one_of(_type(parameter.annotation)),
                "" if required else _code(parameter.default),
                meanings[name].replace("``", "`"),
            )
        )
    return _table(("option", "type", "default", "meaning"), rows)


def _fields(kind: Any) -> str:
    helps = {one.field: one.help for one in FLAT.values() if GROUPS[one.argument] is kind}
    rows = []
    for one in dataclasses.fields(kind):
        default = "" if one.default is dataclasses.MISSING else _code(one.default)
        meaning = helps[one.name].replace("``", "`")
        rows.append((f"`{one.name}`", _one_of(_type(one.type)), default, meaning))
    return _table(("field", "type", "default", "meaning"), rows)


def _type(annotation: Any) -> str:
    # On Python 3.10 a class with arguments, Mapping[str, Any], is a type too.
    plain = isinstance(annotation, type) and not get_args(annotation)
    text = annotation.__name__ if plain else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _one_of(text: str) -> str:
    """The parts of ``a | b | c`` in words: a bar would end the table's cell, even in code."""
    parts = [f"`{part.strip()}`" for part in re.split(r"\|(?![^\[]*\])", text)]
    return " or ".join(", ".join(some) for some in (parts[:-1], parts[-1:]) if some)


def _code(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return f"`{type(value).__name__}()`"
    number = isinstance(value, int) and not isinstance(value, bool) and value >= 10_000
    return f"{value:,}" if number else f"`{value}`"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    if bars := [cell for line in lines for cell in line if "|" in cell]:
        raise ValueError(f"a bar would end these cells: {bars}")
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _commands() -> Iterator[str]:
    context = click.Context(main, info_name="spark-eos")
    found: dict[str, click.Command] = {}
    for name in main.list_commands(context):
        if (command := main.get_command(context, name)) is not None:
            found[f"spark-eos {name}"] = command
            if isinstance(command, click.Group):
                for part, inner in sorted(command.commands.items()):
                    found[f"spark-eos {name} {part}"] = inner
    yield "## Commands\n"
    yield from _sections(found, "Options of several commands", least=3)


def _jobs() -> Iterator[str]:
    yield "## Jobs\n\nFor spark-submit.\n"
    paths = sorted((ROOT / "jobs").glob("*.py"))
    found = {f"jobs/{path.name}": runpy.run_path(str(path))["main"] for path in paths}
    yield from _sections(found, "Options of all jobs", least=len(found))


def _sections(commands: Mapping[str, click.Command], shared: str, *, least: int) -> Iterator[str]:
    """A section for each command; options that are the same in several are in one of their own."""
    rows = {name: _rows(name, command) for name, command in commands.items()}
    times = Counter(row for own in rows.values() for row in own)
    yield f"### {shared}\n"
    yield _table(("option", "meaning"), [row for row, count in times.items() if count >= least])
    link = f"[{shared[0].lower()}{shared[1:]}](#{shared.lower().replace(' ', '-')})"
    for name, command in commands.items():
        texts = inspect.cleandoc(command.help or "").split("\n\n")
        yield f"### {name}\n\n" + "\n\n".join(p for p in texts if "\b" not in p) + "\n"
        if own := [row for row in rows[name] if times[row] < least]:
            yield _table(("option", "meaning"), own)
        also = [row[0].split()[0].strip("`") for row in rows[name] if times[row] >= least]
        if also and len(also) < sum(count >= least for count in times.values()):
            yield f"Of the {link}: {', '.join(f'`{option}`' for option in also)}.\n"
        elif also:
            yield f"All {link}.\n"


def _rows(name: str, command: click.Command) -> list[tuple[str, str]]:
    context = click.Context(command, info_name=name)
    found = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        option, meaning = record
        choices = re.sub(r" \[([^]]+\|[^]]+)\]", r" \1", option)
        found.append((_one_of(choices), re.sub(r" +", " ", meaning)))
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
