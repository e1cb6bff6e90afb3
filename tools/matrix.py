"""``make matrix``: the tests on other versions of Python, Spark and Kafka.

Each pair of Python and Spark has an environment of its own below .venv/matrix, from the pinned
packages and constraints-spark-*.txt. Results go to docs/matrix.json and docs/versions.md.
"""

import datetime
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import click
from packaging.version import Version
from versions import Result, keep

from spark_eos.java import find_java
from spark_eos.lock import lock_names

ROOT: Final = Path(__file__).parent.parent
_PYTHONS: Final = ("python3.10", "python3.11", "python3.12", "python3.13")


def _pinned(file: Path) -> str:
    (version,) = re.findall(r"^pyspark==(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    return str(version)


PINNED: Final = _pinned(ROOT / "constraints.txt")
SPARKS: Final = sorted(
    {PINNED, *(_pinned(f) for f in ROOT.glob("constraints-spark-*.txt"))}, key=Version
)
KAFKAS: Final = sorted(
    (name.removeprefix("kafka-") for name in lock_names() if name.startswith("kafka-")),
    key=Version,
)


def _version(python: str) -> str | None:
    """The full version of an interpreter; None if there is none of the name."""
    try:
        said = subprocess.run(
            [python, "-c", "import platform; print(platform.python_version())"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):  # pyenv has names for what it does not run
        return None
    return said.stdout.strip()


@click.command(context_settings={"max_content_width": 100})
@click.option("--python", "pythons", multiple=True, metavar="COMMAND", help="Such as python3.12.")
@click.option("--spark", "sparks", multiple=True, type=click.Choice(SPARKS))
@click.option("--kafka", "kafkas", multiple=True, type=click.Choice(KAFKAS))
@click.option("--full", is_flag=True, help="All combinations of what is found.")
@click.option("--processes", default=2, show_default=True, help="So many tests at a time.")
@click.argument("tests", nargs=-1, metavar="[TESTS]...")
def main(
    *,
    pythons: tuple[str, ...],
    sparks: tuple[str, ...],
    kafkas: tuple[str, ...],
    full: bool,
    processes: int,
    tests: tuple[str, ...],
) -> None:
    """Run the tests, or TESTS, on combinations of versions.

    By default all of Spark and Kafka on this Python, and the newest of both on every other one.
    Options choose instead, and are combined with each other. Exit status 1 if a test fails.
    """
    found = [name for name in pythons or _PYTHONS if _version(name) is not None]
    if missing := [name for name in pythons if name not in found]:
        raise click.UsageError(f"{', '.join(missing)} can't be run here.")
    chosen = list(product(found, sparks or SPARKS, kafkas or KAFKAS))
    if not (pythons or sparks or kafkas or full):
        own = "python{}.{}".format(*sys.version_info)
        newest = (SPARKS[-1], KAFKAS[-1])
        chosen = [one for one in chosen if one[0] == own or one[1:] == newest]
    # Before the results change a file.
    commit = _commit()
    failed = False
    for python, spark, kafka in chosen:
        click.echo(f"Python {_version(python)}, Spark {spark}, Kafka {kafka}")
        result = _run(python, spark, kafka, processes, tests, commit)
        keep(result)
        failed |= result.failed > 0 or result.passed == 0
        click.echo(f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped")
    raise SystemExit(int(failed))


def _run(
    python: str, spark: str, kafka: str, processes: int, tests: tuple[str, ...], commit: str
) -> Result:
    version = _version(python) or ""
    minor = version.rpartition(".")[0]
    venv = Path(".venv", "matrix", f"spark-{spark}-python{minor}")
    make = ["make", "--silent", "jars", f"VENV={venv}", f"PYTHON={python}"]
    # Without SPARK the pinned one is installed.
    other = [] if spark == PINNED else [f"SPARK={spark}"]
    subprocess.run([*make, *other], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        subprocess.run(
            [
                *(str(venv / "bin" / "python"), "-m", "pytest", "-m", "not slow"),
                # The first tests of an environment also prepare its archive of classes.
                "--timeout=600",
                *("--numprocesses", str(processes), "--dist", "worksteal"),
                *(f"--junitxml={report}", *tests),
            ],
            cwd=ROOT,
            env={**os.environ, "SPARK_EOS_KAFKA": kafka},
            check=False,
        )
        suite = ET.parse(report).getroot()[0].attrib  # noqa: S314 - pytest has just written it
    counts = {name: int(suite[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    return Result(
        python=version,
        spark=spark,
        kafka=kafka,
        java=str(find_java().major),
        tests=" ".join(tests) or "all",
        passed=counts["tests"] - failed - counts["skipped"],
        failed=failed,
        skipped=counts["skipped"],
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        commit=commit,
    )


def _commit() -> str:
    told = ["git", "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"]
    return subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
