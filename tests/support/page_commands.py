"""Runs the commands that pages show, or parses those that can't be run."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import click
from click.testing import CliRunner

from spark_eos._cli import main
from support.jobs import ROOT, job

_Runner: TypeAlias = Callable[[list[str]], str]

# Commands whose output the shell inserts into another command.
_WITHIN: Final = re.compile(r"\$\((spark-eos [^)]+)\)")
_CRON: Final = re.compile(r"^(?:[*/0-9]+ ){5}")


def commands(code: str) -> list[list[str]]:
    """The commands of a block; comments and continuation lines are handled as in a shell."""
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_commands(code: str) -> str:
    """Runs the commands of a block; returns the output of spark-eos commands."""
    return "".join(_RUNNERS[words[0]](words[1:]) for words in commands(code))


def parse_within(text: str) -> None:
    """Parses spark-eos commands that the shell inserts into others."""
    for command in _WITHIN.findall(text):
        _parse_spark_eos(shlex.split(command)[1:])


def parse_lines(code: str) -> list[str]:
    """Parses the commands at the start of lines, among other text; returns these lines."""
    return [line for line in code.replace("\\\n", " ").splitlines() if _parse_line(line)]


def _parse_line(line: str) -> bool:
    command = _CRON.sub("", line)
    if Path(command.partition(" ")[0]).name not in _PARSERS:
        return False
    words = shlex.split(command, comments=True)
    ends = (number for number, word in enumerate(words) if word in {">", ">>", "|"})
    _PARSERS[Path(words[0]).name](words[1 : next(ends, None)])
    return True


def _parse_spark_eos(words: list[str]) -> str:
    command: click.Command = main
    context = main.make_context("spark-eos", list(words))
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, found.make_context(name, list(words), parent=context)
    return ""


def _run_spark_eos(words: list[str]) -> str:
    if words[0] in {"broker", "registry"}:  # these run forever, and have their own tests
        return _parse_spark_eos(words)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, f"spark-eos {' '.join(words)}: {result.output}"
    return result.output


def _parse_spark_submit(words: list[str]) -> str:
    for index, word in enumerate(words):
        if word.startswith("jobs/"):
            job(Path(word).stem).main.make_context(word, words[index + 1 :])
    return ""


def _parse_make(words: list[str]) -> str:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in words if "=" not in word} <= set(targets)
    return ""


def _run_python(words: list[str]) -> str:
    # A page's own scripts are run where the page shows them.
    if words[0] not in {"my_query.py", "produce.py"}:
        subprocess.run([sys.executable, *words], check=True, timeout=240)
    return ""


def _parse_python(words: list[str]) -> str:
    assert Path(words[0]).name == "my_query.py", words
    return ""


def _pass_over(_words: list[str]) -> str:
    """Skips commands that need another machine, a network or other tools."""
    return ""


_KAFKAS: Final = (
    "kafka-consumer-groups.sh",
    "kafka-reassign-partitions.sh",
    "kafka-topics.sh",
    "kafka-transactions.sh",
)
_RUNNERS: Final[dict[str, _Runner]] = {
    "spark-eos": _run_spark_eos,
    "spark-submit": _parse_spark_submit,
    "make": _parse_make,
    "python": _run_python,
    **dict.fromkeys(("pip", "python3", ".", *_KAFKAS), _pass_over),
}
_PARSERS: Final[dict[str, _Runner]] = {
    **_RUNNERS,
    "spark-eos": _parse_spark_eos,
    "python": _parse_python,
}
