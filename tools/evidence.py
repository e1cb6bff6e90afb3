"""Writes docs/evidence.md: for each promise of the pages, the tests that are marked to prove it.

A promise is a row of a table with a link to ``evidence.md#ID``. A test proves it with
``@pytest.mark.proves("ID")``, or only with some parameters: ``case="what their ids have"``.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parent.parent
_DOCS: Final = _ROOT / "docs"
PAGE: Final = _DOCS / "evidence.md"

_ROW: Final = re.compile(r"^\| (.*?) \|.*\]\(evidence\.md#([\w-]+)\).*$")
_HEADING: Final = re.compile(r"^#+ (.*)$")
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")
# Not run by `make test-slow`, but by a target of their own.
_KILLS: Final = "test_staged_kills.py"
_HEAD: Final = """\
# Evidence

Which tests prove what the pages promise. `make docs` makes this page from the marks of the tests
(`@pytest.mark.proves`), and `make test` fails if it is not up to date, or a promise has no test."""


@dataclass(frozen=True)
class Promise:
    """A row of a page's table."""

    id: str
    page: str
    section: str
    text: str


@dataclass(frozen=True)
class Test:
    """A test, by its file's name, function and parameters, and the marks that it has."""

    file: str
    function: str
    parameters: str
    slow: bool
    marks: tuple[tuple[str, str | None], ...]

    def name(self, case: str | None) -> str | None:
        """The name by which the test proves a promise; None if it has other parameters."""
        if case is None:
            return f"{self.file}::{self.function}"
        if self.parameters.startswith(f"[{case}"):
            return f"{self.file}::{self.function}[{case.rstrip(']')}]"
        return None

    @property
    def proves(self) -> set[str]:
        """The promises that it proves."""
        return {promise for promise, case in self.marks if self.name(case)}

    @property
    def target(self) -> str:
        """The target of the Makefile that runs it."""
        kills = "test-kills" if self.file == _KILLS else "test-slow"
        return kills if self.slow else "test"


def promises() -> list[Promise]:
    """All promises, in the order of the pages."""
    found = []
    for path in sorted(_DOCS.glob("*.md")):
        section = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if heading := _HEADING.match(line):
                section = heading[1]
            elif path != PAGE and (row := _ROW.match(line)):
                found.append(Promise(row[2], path.name, section, row[1]))
    return found


def collect() -> list[dict[str, Any]]:
    """All tests that pytest finds, as ``tests/support/collected.py`` describes them."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "collected.json")
        options = ("--collect-only", "-p", "no:cacheprovider", "--collected", str(file))
        command = [sys.executable, "-m", "pytest", *options, "tests"]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"pytest can't collect the tests:\n{done.stdout}{done.stderr}")
        found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def as_tests(collected: Iterable[dict[str, Any]]) -> list[Test]:
    """The tests of what `collect` has found. A file's name is enough: no two have the same.

    Raises:
        ValueError: Two files have one name.
    """
    paths = {one["id"].partition("::")[0] for one in collected}
    if len({Path(path).name for path in paths}) != len(paths):
        raise ValueError("two files of tests have one name")
    found = []
    for one in collected:
        path, _, function = one["id"].partition("::")
        name, bracket, parameters = function.partition("[")
        marks = tuple((promise, case) for promise, case in one["proves"])
        found.append(Test(Path(path).name, name, bracket + parameters, one["slow"], marks))
    return found


def problems(tests: Sequence[Test]) -> list[str]:
    """Promises without a test or of one id, and marks that prove nothing."""
    known = [promise.id for promise in promises()]
    proved = {promise for test in tests for promise in test.proves}
    # Of a test with parameters, each mark has to fit one of them.
    fits: dict[tuple[str, str, str | None], bool] = {}
    for test in tests:
        for promise, case in test.marks:
            key = (f"{test.file}::{test.function}", promise, case)
            fits[key] = fits.get(key, False) or test.name(case) is not None
    return [
        *(f"{one} is more than one promise" for one in sorted(set(known)) if known.count(one) > 1),
        *(f"no test proves {one}" for one in known if one not in proved),
        *(f"{one} is no promise" for one in sorted(proved.difference(known))),
        *(
            f"no case {case!r} of {name} for {promise}"
            for (name, promise, case), fit in fits.items()
            if not fit
        ),
    ]


def page(tests: Iterable[Test]) -> str:
    """Returns the whole page."""
    names: dict[str, set[str]] = {}
    targets: dict[str, set[str]] = {}
    for test in tests:
        for promise, case in test.marks:
            if name := test.name(case):
                names.setdefault(promise, set()).add(f"`{name}`")
                targets.setdefault(promise, set()).add(f"`make {test.target}`")
    lines, place = [_HEAD], ("", "")
    for one in promises():
        if (one.page, one.section) != place:
            place = one.page, one.section
            lines += ["", f"## {one.section}: [{one.page}]({one.page})", ""]
            lines += ["| id | promise | tests | run by |", "| --- | --- | --- | --- |"]
        cells = (
            f'<a id="{one.id}"></a>{one.id}',
            _LINK.sub(lambda link: link[1], one.text),
            ", ".join(sorted(names.get(one.id, ()))),
            ", ".join(sorted(targets.get(one.id, ()))),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Updates docs/evidence.md."""
    tests = as_tests(collect())
    if found := problems(tests):
        raise SystemExit("\n".join(found))
    PAGE.write_text(page(tests), encoding="utf-8")


if __name__ == "__main__":
    main()
