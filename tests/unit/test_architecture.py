"""docs/architecture.md and CONTRIBUTING.md name layers, files and functions that exist."""

import re
from functools import cache
from pathlib import Path

from support.jobs import ROOT
from support.tables import table_of, tables

PAGE = "architecture.md"
CHANGES = "../CONTRIBUTING.md"
_CODE = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"[\w./-]+\.(?:py|md|json|txt|yml|toml)|Makefile")


def _text(page: str = PAGE) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def _files(cell: str) -> list[str]:
    return [name for name in _CODE.findall(cell) if _FILE.fullmatch(name)]


@cache
def _found(name: str) -> Path | None:
    """A file, by its path in the repository or the package, or by the end of its path in tests."""
    for path in (ROOT / name, ROOT / "spark_eos" / name):
        if path.is_file():
            return path
    return next((ROOT / "tests").rglob(name), None)


def test_the_layers_are_those_of_the_import_contract() -> None:
    (drawn,) = re.findall(r"^```\n(_cli .*?)^```$", _text(), re.MULTILINE | re.DOTALL)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (layers,) = re.findall(r"^layers = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert drawn.splitlines() == re.findall(r'"(.+)"', layers)


def test_every_package_has_a_line() -> None:
    documented = {row["package"].strip("`") for row in table_of(PAGE, "Packages").rows}
    assert documented == {path.parent.name for path in (ROOT / "spark_eos").glob("*/__init__.py")}


def test_the_files_exist() -> None:
    texts = _text(), _text(CHANGES).split("\n## What a change touches\n")[1].partition("\n## ")[0]
    for text in texts:
        names = set(_files(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)))
        assert len(names) > 20
        assert not [name for name in names if _found(name) is None]


def test_what_to_read_first_is_there() -> None:
    """Each name follows the file that defines it."""
    found = [table for table in tables(PAGE) if table.section == "Read this first"]
    path, answers = (table.rows for table in found)
    assert len(path) == 5
    assert len(answers) > 10
    for row in (*path, *answers):
        named = 0
        source = ""
        for code in _CODE.findall(row["where"]):
            if _FILE.fullmatch(code):
                place = _found(code)
                assert place is not None
                source = place.read_text(encoding="utf-8")
                continue
            *owner, name = code.split(".")
            indent = r"    " if owner else ""
            assert all(re.search(rf"^class {one}\b", source, re.MULTILINE) for one in owner), row
            assert re.search(rf"^{indent}(class|def) {name}\b", source, re.MULTILINE), row
            named += 1
        assert named or "test_fourth_delivery.py" in row["where"], row


def test_the_examples_of_changes_exist() -> None:
    changes = table_of(CHANGES, "What a change touches").rows
    assert len(changes) >= 12
    for row in changes:
        example = row["an example"].strip("`")
        paths = [path for name in _files(row["files"]) if (path := _found(name)) is not None]
        assert paths, row
        assert any(example in path.read_text(encoding="utf-8") for path in paths), row
