"""Writes docs/versions.md's table from the results of ``make matrix`` in evidence/matrix.json."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from support.places import filled

_ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = _ROOT / "evidence" / "matrix.json"
PAGE: Final = _ROOT / "docs" / "versions.md"


@dataclass(frozen=True)
class Result:
    """The result of the tests on one combination of versions.

    Attributes:
        python: Version of Python, such as ``3.11.7``.
        spark: Version of PySpark.
        kafka: Version of the embedded brokers.
        java: Version of the Java that runs Spark and the brokers.
        tests: The suite or the files that were run, and how.
        passed: Number of tests that passed.
        failed: Number of tests that failed or could not be set up.
        skipped: Number of tests that were skipped.
        date: Day of the run, such as ``2026-11-21``.
        commit: The tested commit, abbreviated, with a plus if there were uncommitted changes.
        code: The tree of the package in it, likewise.
        minutes: How long it took.
        machine: What it ran on.
    """

    python: str
    spark: str
    kafka: str
    java: str
    tests: str
    passed: int
    failed: int
    skipped: int
    date: str
    commit: str
    code: str = ""
    minutes: int | None = None
    machine: str = ""

    @property
    def combination(self) -> tuple[str, str, str, str]:
        """The key by which a newer result replaces an older one."""
        return self.spark, self.kafka, self.python, self.tests


def read_results() -> list[Result]:
    """Returns all results, in the page's order."""
    if not RESULTS.exists():
        return []
    return [Result(**one) for one in json.loads(RESULTS.read_text(encoding="utf-8"))]


def keep(result: Result) -> None:
    """Adds a result, replaces an older one of the same combination, and writes the page."""
    others = [one for one in read_results() if one.combination != result.combination]
    results = sorted([*others, result], key=lambda one: one.combination)
    text = json.dumps([asdict(one) for one in results], indent=1)
    RESULTS.write_text(f"{text}\n", encoding="utf-8")
    write_page()


def page() -> str:
    """Returns the whole page with the current table."""
    lines = [
        "| Spark | Kafka | Python | Java | tests | passed | failed | skipped | when | commit |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |",
        *(
            f"| {one.spark} | {one.kafka} | {one.python} | {one.java} | {one.tests} | {one.passed} "
            f"| {one.failed} | {one.skipped} | {one.date} | {one.commit} |"
            for one in read_results()
        ),
    ]
    return filled(PAGE.read_text(encoding="utf-8"), "results", "\n".join(lines))


def write_page() -> None:
    """Updates docs/versions.md."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write_page()
