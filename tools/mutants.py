"""``make mutants``: breaks the code that decides on commits in random places; tests must fail.

cosmic-ray makes the mutants. Each is run against the tests that reach its line, beginning with
those most specific to its file. Its outcome is a line of evidence/mutants.jsonl; remarks about
survivors in this file are kept.
"""

import ast
import hashlib
import json
import os
import queue
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import click
from coverage import CoverageData
from rich.progress import track

from support.origin import origin

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "evidence" / "mutants.jsonl"
MODULES: Final = (
    "spark_eos/_exactly_once",
    "spark_eos/_delivery",
    "spark_eos/_checkpoint",
    "spark_eos/_checks",
    "spark_eos/_worker/producer.py",
    "spark_eos/_worker/record_sender.py",
    "spark_eos/_worker/record_arrays.py",
    "spark_eos/_client/librdkafka.py",
)
_COSMIC_RAY: Final = ROOT / ".venv" / "mutants" / "bin" / "cosmic-ray"
_GIT: Final = shutil.which("git") or "git"
# Of the mutations that replace an operator, those that most tools have: boundary and opposite.
_REPLACED: Final = re.compile(
    r"Operator_(Eq_NotEq|NotEq_Eq|Lt_(LtE|GtE)|LtE_(Lt|Gt)|Gt_(GtE|LtE)|GtE_(Gt|Lt)|Is_IsNot|IsNot_Is"
    r"|Add_Sub|Sub_Add|Mul_Div|Div_Mul|BitAnd_BitOr|LShift_RShift|Delete_Not|Delete_USub)$"
)
# Duration of the tests that are run first, without the mutant.
_QUICK_SECONDS: Final = 15.0
# If one test, or all of them together, take longer, the mutant is found.
_TEST_TIMEOUT_SECONDS: Final = 90
_TIMEOUT_SECONDS: Final = 1_000

Line = dict[str, Any]


@dataclass(frozen=True)
class Mutant:
    """One way to break one place, as cosmic-ray names it."""

    module: str
    operator: str
    occurrence: int
    line: int
    last_line: int
    function: str

    @property
    def name(self) -> str:
        """The mutant's identity in the results."""
        return f"{self.module}:{self.line} {self.operator} {self.occurrence}"


def chosen(number: int, seed: int) -> list[Mutant]:
    """Return randomly chosen places in `MODULES`, each with one random way to break it."""
    places: dict[tuple[str, int, int], list[Mutant]] = {}
    for mutant, column in _all_mutants():
        if "RemoveDecorator" in mutant.operator or not mutant.function:
            continue
        if "Operator_" not in mutant.operator or _REPLACED.search(mutant.operator):
            places.setdefault((mutant.module, mutant.line, column), []).append(mutant)
    # Each place and way has its own random value, so a larger number includes a smaller one's.
    order = sorted(places, key=lambda place: _chance(seed, *place))
    picked = (places[place] for place in order[:number])
    return [min(ways, key=lambda way: _chance(seed, way.name)) for ways in picked]


def _chance(*what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()


def _all_mutants() -> list[tuple[Mutant, int]]:
    """Return all mutants that cosmic-ray can make, with their columns."""
    with tempfile.TemporaryDirectory() as directory:
        config, session = Path(directory, "config.toml"), Path(directory, "session.sqlite")
        config.write_text(
            f'[cosmic-ray]\nmodule-path = {json.dumps(MODULES)}\ntest-command = "false"\n'
            'timeout = 1.0\nexcluded-modules = []\n[cosmic-ray.distributor]\nname = "local"\n',
            encoding="utf-8",
        )
        subprocess.run([_COSMIC_RAY, "init", config, session], cwd=ROOT, check=True)
        with closing(sqlite3.connect(session)) as connection:
            rows = connection.execute(
                "SELECT module_path, operator_name, occurrence, start_pos_row, end_pos_row,"
                " COALESCE(definition_name, ''), start_pos_col FROM mutation_specs"
            ).fetchall()
    return [(Mutant(*fields), column) for *fields, column in sorted(rows)]


class Reach:
    """The tests that reach each line, and their durations."""

    def __init__(self, coverage: Path, report: Path) -> None:
        """Read the files that pytest wrote with --cov-context=test and --junitxml."""
        self._data = CoverageData(str(coverage))
        self._data.read()
        measured = self._data.measured_files()
        self._files = {file[file.rindex("/spark_eos/") + 1 :]: file for file in measured}
        self._seconds = {
            f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}": float(
                case.attrib["time"]
            )
            for case in _cases(report)
            if case.find("failure") is None and case.find("skipped") is None
        }

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach a mutant, beginning with those most specific to its file.

        A test is specific to a file if few other tests reach the same lines. For a line that only
        imports run, return all tests that reach its file.
        """
        by_line = {
            line: self._known(contexts)
            for line, contexts in self._data.contexts_by_lineno(self._files[mutant.module]).items()
        }
        about: defaultdict[str, float] = defaultdict(float)
        for tests in by_line.values():
            for test in tests:
                about[test] += 1 / len(tests)
        lines = range(mutant.line, mutant.last_line + 1)
        found = set().union(*(by_line.get(line, ()) for line in lines)) or set(about)
        return sorted(found, key=lambda test: (-about[test] / self._cost(test), test))

    def _cost(self, test: str) -> float:
        """Return a test's seconds, and more for what it starts: Spark costs more than a broker."""
        quick = re.match(r"tests/(unit|integration/(driver|kafka|worker))/", test)
        return self._seconds[test] + (1.0 if quick else 4.0)

    def within(self, tests: list[str], seconds: float) -> list[str]:
        """Return the first tests, at least one, that together take at most ``seconds``."""
        total = 0.0
        kept: list[str] = []
        for test in tests:
            total += self._seconds[test]
            if kept and total > seconds:
                break
            kept.append(test)
        return kept

    def _known(self, contexts: Iterable[str]) -> set[str]:
        return {context.rpartition("|")[0] for context in contexts} & self._seconds.keys()


def _cases(report: Path) -> Iterator[ET.Element]:
    return ET.parse(report).iter("testcase")  # noqa: S314 - pytest wrote it


@contextmanager
def _copies(number: int) -> Iterator["queue.Queue[Path]"]:
    """Yield clones of the committed code, to break."""
    free: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        for index in range(number):
            copy = Path(directory, str(index))
            subprocess.run([_GIT, "clone", "--quiet", str(ROOT), str(copy)], check=True)
            free.put(copy)
        yield free


def _red(copy: Path, tests: list[str]) -> str | None:
    """Return the first test that fails, or what else ended the run; None if all tests pass."""
    if not tests:
        return None
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-x", "-q", "-p", "no:randomly", f"--timeout={_TEST_TIMEOUT_SECONDS}"]
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {_TIMEOUT_SECONDS} s"
    if ran.returncode == 0:
        return None
    for case in _cases(report) if report.exists() else ():
        if case.find("failure") is not None or case.find("error") is not None:
            return f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
    said = (ran.stdout + ran.stderr).strip().splitlines()
    return said[-1] if said else f"exit status {ran.returncode}"


def outcome(mutant: Mutant, copy: Path, reach: Reach, seconds: float) -> Line | None:
    """Return the mutant's change, and the test that finds it; None if it is not valid Python."""
    occurrence = str(mutant.occurrence)
    apply: list[str | Path] = [_COSMIC_RAY, "apply", mutant.module, mutant.operator, occurrence]
    subprocess.run(apply, cwd=copy, check=True, capture_output=True)
    try:
        ast.parse((copy / mutant.module).read_text(encoding="utf-8"))
        changed = subprocess.run(
            [_GIT, "diff", "-U0"], cwd=copy, check=True, capture_output=True, text=True
        ).stdout
        tests = reach.tests(mutant)
        quick, run = reach.within(tests, _QUICK_SECONDS), reach.within(tests, seconds)
        found = _red(copy, quick) or _red(copy, run[len(quick) :])
    except SyntaxError:
        return None
    finally:
        subprocess.run([_GIT, "checkout", "--quiet", "."], cwd=copy, check=True)
    return {
        "mutant": mutant.name,
        "function": mutant.function,
        "change": [line for line in changed.splitlines() if re.match(r"[-+](?![-+])", line)],
        "tests": len(run),
        "reached_by": len(tests),
        "found_by": found,
    }


def read_results() -> dict[str, Line]:
    """Return earlier results by mutant's name, for places that have not changed since."""
    lines = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return {line["mutant"]: line for line in lines if _is_there(line)}


def _is_there(line: Line) -> bool:
    module, _, place = line["mutant"].partition(":")
    file = ROOT / module
    text = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    at = int(place.partition(" ")[0]) - 1
    return bool(text[at : at + 1] == [line["change"][0].removeprefix("-")])


@click.command()
@click.option("--number", default=320, show_default=True, help="Number of places to break.")
@click.option("--seed", default=1, show_default=True, help="Seed for choosing places and changes.")
@click.option("--processes", default=2, show_default=True, help="Number of concurrent mutants.")
@click.option(
    "--survivors",
    is_flag=True,
    help="Run open mutants again: survivors without a remark.",
)
@click.option("--seconds", default=60, show_default=True, help="Seconds of tests per mutant.")
@click.option("--coverage", type=click.Path(path_type=Path), default=ROOT / ".coverage")
@click.option("--report", type=click.Path(path_type=Path), default=ROOT / "build" / "tests.xml")
def main(
    *,
    number: int,
    seed: int,
    processes: int,
    survivors: bool,
    seconds: int,
    coverage: Path,
    report: Path,
) -> None:
    """Run mutants that have not been run, and add their outcomes to evidence/mutants.jsonl."""
    known, reach, of = read_results(), Reach(coverage, report), origin()

    still_open = {n for n, line in known.items() if not line["found_by"] and "said" not in line}
    due = (
        [mutant for mutant, _ in _all_mutants() if mutant.name in still_open]
        if survivors
        else [mutant for mutant in chosen(number, seed) if mutant.name not in known]
    )
    with _copies(processes) as free, ThreadPoolExecutor(processes) as pool:

        def run(mutant: Mutant) -> Line | None:
            copy = free.get()
            try:
                return outcome(mutant, copy, reach, seconds)
            finally:
                free.put(copy)

        runs = [pool.submit(run, mutant) for mutant in due]
        try:
            for done in track(as_completed(runs), "Mutants", total=len(runs)):
                found = done.result()
                if found is None:
                    continue
                line = {**found, **of}
                said = known.get(line["mutant"], {}).get("said")
                known[line["mutant"]] = line if said is None else {**line, "said": said}
                lines = (f"{json.dumps(known[name])}\n" for name in sorted(known))
                RESULTS.write_text("".join(lines), encoding="utf-8")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


if __name__ == "__main__":
    main()
