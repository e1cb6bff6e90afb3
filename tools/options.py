"""Writes docs/options.md from the code: signatures, docstrings and click's commands.

The page is committed, so that it can be read beside the code, and a changed option shows in a
review. A test fails if the page differs from this module's output. mkdocs-click (0.9, with click
8.5) would show neither metavars nor which options are required, and would show "Sentinel.UNSET" for
options without a default.
"""

import dataclasses
import inspect
import re
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import click

from spark_eos import ExactlyOnceSink
from spark_eos._cli import main
from spark_eos.options import FLAT, GROUPS, FlatOption

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "options.md"

_ARGUMENT: Final = re.compile(r"^    (\w+): (.*(?:\n      +.*)*)", re.MULTILINE)

_SHARED: Final = "Options of several commands"

# Pages that describe a command beyond the first sentence of its help.
_PAGES: Final = {
    "spark-eos abort": "[operations](operations.md#open-transactions)",
    "spark-eos acls": "[ACLs](acls.md)",
    "spark-eos adopt": "[moving](moving.md)",
    "spark-eos class-archive": "[starting sooner](deploying.md#starting-sooner)",
    "spark-eos jars": "[jars](versions.md#jars)",
    "spark-eos progress": "[mirrored queries](mirrored.md#see-the-progress)",
    "spark-eos status": "[operations](operations.md#check-a-querys-state)",
    "spark-eos verify": "[verifying](verify.md)",
    "jobs/relay.py": "[another cluster](mirrored.md) and "
    "[another registry](schemas.md#from-registry-to-registry)",
}

# An option and its meaning.
_Row: TypeAlias = tuple[str, str]

_HEAD: Final = """# Options

`make docs` generates this page from the code.

"""


def page() -> str:
    """Return the whole page."""
    return _HEAD + "\n".join([*_sink(), *_command_sections(), *_job_sections()])


def _sink() -> Iterator[str]:
    yield "## ExactlyOnceSink\n\nKeyword arguments. Arguments without a default are required.\n"
    yield _arguments(ExactlyOnceSink, inspect.getdoc(ExactlyOnceSink) or "")
    yield (
        "`kafka` takes the producer settings in librdkafka's\n"
        "[CONFIGURATION.md](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md)"
        "\nexcept the settings that the sink sets itself, and applies them to all clients. "
        "Spark's source\nalso takes consumer settings: `client.rack`, `fetch.*`, "
        "`retry.backoff.*` and others.\n"
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
    flat = {option.field: option for option in FLAT.values() if GROUPS[option.argument] is kind}
    rows = []
    for field in dataclasses.fields(kind):
        option = flat[field.name]
        default = "" if field.default is dataclasses.MISSING else _code(field.default)
        meaning = option.help.replace("``", "`")
        job = f"`{_job_option(option)}`"
        rows.append((f"`{field.name}`", _one_of(_type(field.type)), default, meaning, job))
    return _table(("field", "type", "default", "meaning", "option of jobs"), rows)


def _job_option(option: FlatOption) -> str:
    return "--" + option.name.replace("_", "-")


def _type(annotation: Any) -> str:
    # On Python 3.10, a class with arguments, such as Mapping[str, Any], is also a type.
    plain = isinstance(annotation, type) and not get_args(annotation)
    text = annotation.__name__ if plain else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _one_of(text: str) -> str:
    """Join the parts of ``a | b | c`` with "or": a bar would end the table's cell, even in code."""
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


def _commands() -> dict[str, click.Command]:
    context = click.Context(main, info_name="spark-eos")
    found: dict[str, click.Command] = {}
    for name in main.list_commands(context):
        if (command := main.get_command(context, name)) is not None:
            found[f"spark-eos {name}"] = command
            if isinstance(command, click.Group):
                for part, inner in sorted(command.commands.items()):
                    found[f"spark-eos {name} {part}"] = inner
    return found


def _job_commands() -> dict[str, click.Command]:
    paths = sorted((ROOT / "jobs").glob("*.py"))
    return {f"jobs/{path.name}": runpy.run_path(str(path))["main"] for path in paths}


def _command_sections() -> Iterator[str]:
    yield "## Commands\n"
    rows = {name: _rows(name, command) for name, command in _commands().items()}
    shared = _shared(rows.values(), least=3)
    yield f"### {_SHARED}\n"
    yield _table(("option", "meaning"), shared)
    for name, command in _commands().items():
        yield from _section(name, command, [row for row in rows[name] if row not in shared])
        if also := [row for row in rows[name] if row in shared]:
            yield f"{_also(also)}\n"


def _job_sections() -> Iterator[str]:
    values = [f"[`{argument}`](#{kind.__name__.lower()})" for argument, kind in GROUPS.items()]
    listed = f"{', '.join(values[:-1])} and {values[-1]}"
    yield (
        "## Jobs\n\nFor spark-submit. Jobs also take the fields of the sink's "
        f"{listed}, by the names in the last columns of these tables.\n"
    )
    jobs = _job_commands()
    rows = {name: _rows(name, command) for name, command in jobs.items()}
    shared = _shared(rows.values(), least=len(jobs))
    told = _shared([_rows(name, command) for name, command in _commands().items()], least=3)
    yield "### Options of all jobs\n"
    yield _table(("option", "meaning"), [row for row in shared if row not in told])
    yield f"{_also([row for row in shared if row in told])}\n"
    for name, command in jobs.items():
        yield from _section(name, command, [row for row in rows[name] if row not in shared])


def _shared(rows: Iterable[Sequence[_Row]], *, least: int) -> list[_Row]:
    """Return the options that are the same in several commands, which are described once."""
    times = Counter(row for own in rows for row in own)
    return [row for row, count in times.items() if count >= least]


def _also(rows: Iterable[_Row]) -> str:
    names = ", ".join(f"`{option.split()[0].strip('`')}`" for option, _meaning in rows)
    return f"[Also](#{_SHARED.lower().replace(' ', '-')}): {names}."


def _section(name: str, command: click.Command, rows: Sequence[_Row]) -> Iterator[str]:
    texts = inspect.cleandoc(command.help or "").split("\n\n")
    if (page := _PAGES.get(name)) is not None:
        texts = [f"{texts[0]} See {page}."]
    yield f"### {name}\n\n" + "\n\n".join(p for p in texts if "\b" not in p) + "\n"
    if rows:
        yield _table(("option", "meaning"), rows)


def _rows(name: str, command: click.Command) -> list[_Row]:
    context = click.Context(command, info_name=name)
    # The tables of fields already list the options that jobs have for these fields.
    named = {_job_option(option) for option in FLAT.values()} if name.startswith("jobs/") else set()
    found = []
    for parameter in command.get_params(context):
        if named.intersection(parameter.opts):
            continue
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
