"""``make matrix``: runs a suite of tests with chosen versions of Python, Spark and Kafka.

Each pair of Python and Spark has its own environment below .venv/matrix, with the pinned packages
and constraints-spark-*.txt. Each result goes to evidence/matrix.json as soon as it is known;
docs/versions.md is brought up to date manually.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import click
from packaging.requirements import Requirement
from packaging.version import Version

from spark_eos._jars.java import find_java
from spark_eos._jars.lockfile import lock_names
from support.origin import origin

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "evidence" / "matrix.json"
_PYTHONS: Final = ("python3.10", "python3.11", "python3.12", "python3.13")
_KILLS: Final = "tests/integration/spark/test_staged_kills.py"
# Tests of code that uses kafka-python's internals; see MAINTAINING.md, "Upgrading kafka-python".
_CLIENT: Final = (
    "tests/unit/client",
    "tests/integration/kafka",
    "tests/integration/security",
    "tests/integration/exactly_once/test_older_brokers.py",
)


@dataclass(frozen=True)
class Tests:
    """The tests to run, their order, and the number of busy loops that run beside them."""

    suite: str
    files: tuple[str, ...]
    order: int | None
    busy: int

    @property
    def label(self) -> str:
        """The name of these tests in docs/versions.md."""
        order = f", order {self.order}" if self.order is not None else ""
        busy = f", beside {self.busy} busy loops" if self.busy else ""
        return (" ".join(self.files) or self.suite) + order + busy

    @property
    def arguments(self) -> list[str]:
        """The arguments for pytest; of given files, all tests are run."""
        chosen = {
            "all": ["-m", "not slow"],
            "slow": ["-m", "slow"],
            "kills": [_KILLS],
            "client": [*_CLIENT],
        }
        order = [f"--randomly-seed={self.order}"] if self.order is not None else []
        return [*(self.files or chosen[self.suite]), *order]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Keep processors busy until the block ends."""
        loops = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(self.busy)]
        try:
            yield
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()


_BUSY: Final = "while True: pass"


def _pins(file: Path) -> dict[str, Requirement]:
    """Return pyspark's versions in a file; their markers name the Python versions."""
    lines = re.findall(r"^pyspark==[^\\\n]+", file.read_text(encoding="utf-8"), re.MULTILINE)
    found = [Requirement(line) for line in lines]
    return {one.version: pin for pin in found for one in pin.specifier}


# Versions for `make SPARK=`; constraints.txt has the newest version for each Python.
_OTHERS: Final = {
    version: pin
    for file in ROOT.glob("constraints-spark-*.txt")
    for version, pin in _pins(file).items()
}
_PINS: Final = _pins(ROOT / "constraints.txt") | _OTHERS
SPARKS: Final = sorted(_PINS, key=Version)
KAFKAS: Final = sorted(
    (name.removeprefix("kafka-") for name in lock_names() if name.startswith("kafka-")),
    key=Version,
)


def _version(python: str) -> str | None:
    """Return the full version of an interpreter; None if it does not exist or does not run."""
    try:
        said = subprocess.run(
            [python, "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):  # pyenv's shims may exist without a version
        return None
    return said.stdout.strip()


def _runs_on(version: str, spark: str) -> bool:
    marker = _PINS[spark].marker
    return marker is None or marker.evaluate({"python_full_version": version})


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="COMMAND",
    help="Python to use, such as python3.12.",
)
@click.option("--spark", "sparks", multiple=True, type=click.Choice(SPARKS))
@click.option("--kafka", "kafkas", multiple=True, type=click.Choice(KAFKAS))
@click.option("--full", is_flag=True, help="Run all combinations that are possible here.")
@click.option("--resume", is_flag=True, help="Skip combinations that passed at this commit.")
@click.option("--processes", default=2, show_default=True, help="Number of parallel tests.")
@click.option(
    "--suite",
    type=click.Choice(["all", "slow", "kills", "client"]),
    default="all",
    show_default=True,
    help="The tests of make test, make test-slow or make test-kills; or the client's tests, with "
    "the newest kafka-python on PyPI.",
)
@click.option("--order", type=int, help="Seed of the tests' order; the result gets its own row.")
@click.option("--busy", default=0, help="Number of busy loops beside the tests.")
@click.argument("files", nargs=-1, metavar="[FILES]...")
def main(
    *,
    pythons: tuple[str, ...],
    sparks: tuple[str, ...],
    kafkas: tuple[str, ...],
    full: bool,
    resume: bool,
    processes: int,
    suite: str,
    order: int | None,
    busy: int,
    files: tuple[str, ...],
) -> None:
    """Run a suite, or FILES, on combinations of versions.

    By default, runs all versions of Spark and Kafka with this Python, and the newest of both with
    every other Python. Given versions are all combined with each other. Exits with status 1 if a
    test fails.
    """
    found = {name: version for name in pythons or _PYTHONS if (version := _version(name))}
    if missing := [name for name in pythons if name not in found]:
        raise click.UsageError(f"{', '.join(missing)} can't be run here.")
    chosen = [
        one
        for one in product(found, sparks or SPARKS, kafkas or KAFKAS)
        if _runs_on(found[one[0]], one[1])
    ]
    if not (pythons or sparks or kafkas or full):
        own = "python{}.{}".format(*sys.version_info)
        newest = {python: spark for python, spark, _ in chosen}
        chosen = [one for one in chosen if one[0] == own or one[1:] == (newest[one[0]], KAFKAS[-1])]
    if not chosen:
        raise click.UsageError("No such Spark runs on such a Python.")
    tests, of = Tests(suite, files, order, busy), origin()
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    passed = {
        _combination(result)
        for result in results
        if result["code"] == of["code"] and not result["failed"]
    }
    failed = False
    for python, spark, kafka in chosen:
        click.echo(f"Python {found[python]}, Spark {spark}, Kafka {kafka}")
        if resume and (spark, kafka, found[python], tests.label) in passed:
            click.echo("passed before")
            continue
        result = _run(python, found[python], spark, kafka, processes, tests, of)
        results = [each for each in results if _combination(each) != _combination(result)]
        results = sorted([*results, result], key=_combination)
        RESULTS.write_text(f"{json.dumps(results, indent=1)}\n", encoding="utf-8")
        failed |= result["failed"] > 0 or result["passed"] == 0
        click.echo("{passed} passed, {failed} failed, {skipped} skipped".format_map(result))
    raise SystemExit(int(failed))


def _combination(result: dict[str, Any]) -> tuple[str, ...]:
    """Return the key by which a newer result replaces an older one."""
    return tuple(str(result[name]) for name in ("spark", "kafka", "python", "tests"))


def _run(
    python: str,
    version: str,
    spark: str,
    kafka: str,
    processes: int,
    tests: Tests,
    of: dict[str, str],
) -> dict[str, Any]:
    minor = version.rpartition(".")[0]
    own = "-client" if tests.suite == "client" else ""
    venv = Path(".venv", "matrix", f"spark-{spark}-python{minor}{own}")
    make = ["make", "--silent", "jars", f"VENV={venv}", f"PYTHON={python}"]
    other = [f"SPARK={spark}"] if spark in _OTHERS else []
    kills = {"SPARK_EOS_KILLS": "1"} if tests.suite == "kills" else {}
    subprocess.run([*make, *other], cwd=ROOT, check=True)
    label = tests.label
    if tests.suite == "client":
        label += f", kafka-python {_newest_client(venv)}"
    with tempfile.TemporaryDirectory() as directory, tests.beside():
        report = Path(directory, "report.xml")
        subprocess.run(
            [
                *(str(venv / "bin" / "python"), "-m", "pytest"),
                # The first tests of an environment also create its class data archive.
                *("--timeout=600", "-o", "faulthandler_timeout=630"),
                *("--numprocesses", str(processes), "--dist", "worksteal"),
                *(f"--junitxml={report}", *tests.arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "SPARK_EOS_KAFKA": kafka, **kills},
            check=False,
        )
        suite = ET.parse(report).getroot()[0].attrib  # noqa: S314 - pytest has just written it
    counts = {name: int(suite[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    return {
        "python": version,
        "spark": spark,
        "kafka": kafka,
        "java": str(find_java().major),
        "tests": label,
        "passed": counts["tests"] - failed - counts["skipped"],
        "failed": failed,
        "skipped": counts["skipped"],
        "minutes": round(float(suite["time"]) / 60),
        **of,
    }


def _newest_client(venv: Path) -> str:
    """Install the newest kafka-python, even if it is not allowed, and return its version."""
    install = ["install", "--quiet", "--no-deps", "--upgrade", "--pre", "kafka-python"]
    subprocess.run([str(venv / "bin" / "pip"), *install], cwd=ROOT, check=True)
    ask = "from importlib.metadata import version; print(version('kafka-python'))"
    python = [str(venv / "bin" / "python"), "-c", ask]
    told = subprocess.run(python, cwd=ROOT, capture_output=True, text=True, check=True)
    return told.stdout.strip()


if __name__ == "__main__":
    main()
