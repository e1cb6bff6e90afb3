"""Layers, files, functions and tests that pages name exist."""

import re
from functools import cache
from pathlib import Path

from support.jobs import ROOT
from support.pages import page

PAGE = page("docs/architecture.md")
CHANGES = page("CONTRIBUTING.md")
_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"`(test_\w+(?:\.py)?)`")
_FILE = re.compile(r"[\w./-]+\.(?:py|md|json|txt|yml|toml)|Makefile")


@cache
def _found(name: str) -> Path | None:
    """A file, by its path in the repository or the package, or by the end of its path in tests."""
    for path in (ROOT / name, ROOT / "spark_eos" / name):
        if path.is_file():
            return path
    return next((ROOT / "tests").rglob(name), None)


def test_the_layers_are_those_of_the_import_contract() -> None:
    (drawn,) = (code for _, code in PAGE.fences if code.startswith("_cli "))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (layers,) = re.findall(r"^layers = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert drawn.splitlines() == re.findall(r'"(.+)"', layers)


def test_every_package_has_a_line() -> None:
    documented = {row["package"].strip("`") for row in PAGE.table("Packages").rows}
    assert documented == {path.parent.name for path in (ROOT / "spark_eos").glob("*/__init__.py")}


def test_the_files_exist() -> None:
    changes = [code for code in CHANGES.inline_code if code[0] == "What a change touches"]
    for named in (PAGE.inline_code, changes):
        names = {code for _section, code in named if _FILE.fullmatch(code)}
        assert len(names) > 20
        assert not [name for name in names if _found(name) is None]


def test_what_to_read_first_is_there() -> None:
    """Each name follows the file that defines it."""
    found = [table for table in PAGE.tables if table.section == "Read this first"]
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
    changes = CHANGES.table("What a change touches").rows
    assert len(changes) >= 12
    for row in changes:
        example = row["an example"].strip("`")
        paths = [path for name in _CODE.findall(row["files"]) if (path := _found(name))]
        assert paths, row
        assert any(example in path.read_text(encoding="utf-8") for path in paths), row


def test_every_row_of_the_guarantees_names_its_tests() -> None:
    tables = page("docs/guarantees.md").tables
    rows = [row for table in tables for row in table.rows if "test" in row]
    assert len(rows) > 50
    for row in rows:
        assert _TEST.findall(row["test"]), row


def test_the_tests_that_pages_name_exist() -> None:
    paths = ROOT.glob("tests/**/test_*.py")
    files = {path.name: path.read_text(encoding="utf-8") for path in paths}
    tests = set(re.findall(r"^def (test_\w+)", "\n".join(files.values()), re.MULTILINE))
    for path in ROOT.glob("docs/*.md"):
        named = set(_TEST.findall(path.read_text(encoding="utf-8")))
        assert named <= tests | files.keys(), path.name


def test_the_table_of_apis_names_every_case() -> None:
    file = (ROOT / "tests/integration/spark/test_apis.py").read_text(encoding="utf-8")
    cases = re.findall(r"^def (test_\w+)\((.*)", file, re.MULTILINE)
    # Each runs with every API.
    assert all(arguments.startswith("api: Api") for _, arguments in cases)
    rows = page("docs/guarantees.md").table("APIs").rows
    named = [name for row in rows for name in _TEST.findall(row["test"])]
    assert sorted(named) == sorted(name for name, _ in cases)
