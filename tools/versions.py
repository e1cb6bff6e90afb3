"""Writes the table of docs/versions.md from the results that ``make matrix`` keeps beside it."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).parent.parent / "docs"
RESULTS: Final = _DOCS / "matrix.json"
PAGE: Final = _DOCS / "versions.md"

_TABLE: Final = re.compile(r"(?<=<!-- results -->\n).*(?=<!-- end of results -->)", re.DOTALL)


@dataclass(frozen=True)
class Result:
    """What became of the tests on one combination of versions.

    Attributes:
        python: The version of Python, as ``3.11.7``.
        spark: Of PySpark.
        kafka: Of the embedded brokers.
        java: Of the Java that runs Spark and the brokers.
        tests: ``all``, or the files that were run.
        passed: Number of tests.
        failed: Number of tests that failed or could not be set up.
        skipped: Number of tests.
        date: The day, as ``2026-11-21``.
        commit: The commit that was tested, abbreviated; with a plus if there were changes.
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

    @property
    def combination(self) -> tuple[str, str, str, str]:
        """What a newer result replaces."""
        return self.spark, self.kafka, self.python, self.tests


def read_results() -> list[Result]:
    """All results there are, in the page's order."""
    if not RESULTS.exists():
        return []
    return [Result(**one) for one in json.loads(RESULTS.read_text(encoding="utf-8"))]


def keep(result: Result) -> None:
    """Adds a result, in the place of an older one of the same combination; writes the page."""
    others = [one for one in read_results() if one.combination != result.combination]
    results = sorted([*others, result], key=lambda one: one.combination)
    text = json.dumps([asdict(one) for one in results], indent=1)
    RESULTS.write_text(f"{text}\n", encoding="utf-8")
    write_page()


def page() -> str:
    """The whole page, with the table as it should be."""
    lines = [
        "| Spark | Kafka | Python | Java | tests | passed | failed | skipped | when | commit |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |",
        *(
            f"| {one.spark} | {one.kafka} | {one.python} | {one.java} | {one.tests} | {one.passed} "
            f"| {one.failed} | {one.skipped} | {one.date} | {one.commit} |"
            for one in read_results()
        ),
    ]
    table = "\n".join(lines)
    return _TABLE.sub(lambda _: f"\n{table}\n\n", PAGE.read_text(encoding="utf-8"))


def write_page() -> None:
    """Brings docs/versions.md up to date."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write_page()
