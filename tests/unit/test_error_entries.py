"""docs/errors.md has an entry for each public error and each warning, and no others."""

import ast
import logging
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import spark_eos
from spark_eos import errors
from spark_eos._cli import main
from spark_eos.errors import (
    PrintableError,
    QueryFailedError,
    SparkEosError,
    WriteError,
    warn,
    with_entry,
)
from support.error_classes import own_errors
from support.jobs import ROOT

_PACKAGE = Path(spark_eos.__file__).parent
_PARTS = ("- **Cause**: ", "- **Check**: ", "- **Cure**: ")


def _entries() -> dict[str, str]:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    _, *pairs = re.split(r"^## (EOS\d\d)$", text, flags=re.MULTILINE)
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _errors() -> dict[str, type[PrintableError]]:
    having = [
        found
        for found in own_errors()
        if issubclass(found, PrintableError) and "entry" in vars(found) and found.entry
    ]
    assert {entry: n for entry, n in Counter(each.entry for each in having).items() if n > 1} == {}
    return {each.entry: each for each in having}


def _warnings() -> set[str]:
    sources = [path.read_text(encoding="utf-8") for path in _PACKAGE.rglob("*.py")]
    return {code for text in sources for code in re.findall(r'\bwarn\(\s*logger,\s*"(\w+)"', text)}


def test_errors_and_warnings_match_their_entries_one_to_one() -> None:
    assert _errors().keys().isdisjoint(_warnings())
    assert {*_errors(), *_warnings()} == _entries().keys()
    for code, error in _errors().items():
        assert _entries()[code].startswith(f"\n\n`{error.__name__}`\n")


def test_no_public_error_is_without() -> None:
    public = [getattr(spark_eos, name) for name in spark_eos.__all__]
    public += [getattr(errors, name) for name in dir(errors)]
    own = {c for c in public if isinstance(c, type) and issubclass(c, errors.SparkEosError)}
    assert own <= {*_errors().values()}


@pytest.mark.parametrize("code", _entries())
def test_an_entry_has_cause_check_and_remedy(code: str) -> None:
    lines = _entries()[code].strip().splitlines()[2:5]
    assert all(line.startswith(part) for line, part in zip(lines, _PARTS, strict=True))
    assert all(len(line) > len(part) for line, part in zip(lines, _PARTS, strict=True))


def test_the_index_names_all() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(EOS\d\d)\]\(#eos\d\d\)", text, re.MULTILINE) == [*_entries()]


def test_the_command_is_added_where_an_error_is_shown() -> None:
    row = WriteError("no such partition")
    assert str(row) == "no such partition [more: spark-eos explain EOS17]"
    assert row.text == "no such partition"


def test_the_text_of_a_failure_sets_no_entry() -> None:
    failed = QueryFailedError(str(WriteError("no disk")))
    assert str(failed).endswith("EOS17] [more: spark-eos explain EOS19]")


def test_a_failed_query_has_the_entry_of_its_cause() -> None:
    failed = QueryFailedError("WriteError: no such partition", "EOS17")
    failed = pickle.loads(pickle.dumps(failed))  # noqa: S301 - our own
    assert str(failed) == "WriteError: no such partition [more: spark-eos explain EOS17]"
    assert failed.text == "WriteError: no such partition"


def _shown_in_texts(path: Path) -> Iterator[str]:
    """Where a caught error of ours is put into a text with its command, as `{error}`."""
    ours = {found.__name__ for found in own_errors() if issubclass(found, SparkEosError)}
    for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(handler, ast.ExceptHandler) and handler.type is not None:
            caught = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
            for node in ast.walk(handler):
                if (
                    caught & ours
                    and isinstance(node, ast.FormattedValue)
                    and isinstance(node.value, ast.Name)
                    and (node.value.id, node.conversion) == (handler.name, -1)
                ):
                    yield f"{path.name}:{node.lineno}"


def test_no_text_holds_the_command_of_another_error() -> None:
    """There, it must be `error.text`; or `error!s`, if the text is shown."""
    found = [place for path in _PACKAGE.rglob("*.py") for place in _shown_in_texts(path)]
    assert found == []


def test_a_warning_ends_with_its_command(caplog: pytest.LogCaptureFixture) -> None:
    warn(logging.getLogger("spark_eos.example"), "EOS54", "%d%% smaller", 7)
    (record,) = caplog.records
    assert record.getMessage() == "7% smaller [more: spark-eos explain EOS54]"
    # As if the caller had logged it.
    assert (record.name, record.filename) == ("spark_eos.example", Path(__file__).name)


@pytest.mark.parametrize("code", _entries())
def test_the_command_of_an_error_prints_its_entry(code: str) -> None:
    (command,) = re.findall(r"\[more: spark-eos (.*)\]$", with_entry("", code))
    shown = CliRunner().invoke(main, command.split())
    assert shown.exit_code == 0, shown.output
    title, *lines = _entries()[code].strip().splitlines()
    assert shown.output.startswith(f"{code}: {title.strip('`').replace('`', '')}")
    assert shown.output.count(" • ") == len(lines) - 1
    assert "](" not in shown.output


def test_an_unknown_code_is_answered_with_those_known() -> None:
    shown = CliRunner().invoke(main, ["explain", "EOS99"])
    assert shown.exit_code == 2
    assert "EOS01, EOS02" in shown.output


def test_a_warning_of_an_error_has_one_command(caplog: pytest.LogCaptureFixture) -> None:
    warn(logging.getLogger("spark_eos.example"), "EOS58", "%s: later", WriteError("closed"))
    (record,) = caplog.records
    assert record.getMessage() == "closed: later [more: spark-eos explain EOS58]"
