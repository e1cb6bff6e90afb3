"""``make coverage``: writes the lines and branches that tests run to evidence/coverage.json."""

import json
import tempfile
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import coverage

from support.origin import origin

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "evidence" / "coverage.json"
_COUNTS: Final = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def measured() -> dict[str, Any]:
    """Return each package's counts, and the lines that no test runs."""
    found = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"))
    found.load()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "coverage.json")
        found.json_report(outfile=str(report))
        files = json.loads(report.read_text(encoding="utf-8"))["files"]
    packages: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    for name, file in files.items():
        counts = packages[Path(name).relative_to("spark_eos").parts[0].removesuffix(".py")]
        for count in _COUNTS:
            counts[count] += file["summary"][count]
    missing = {name: _ranges(file["missing_lines"]) for name, file in files.items()}
    return {
        "packages": dict(sorted(packages.items())),
        "missing": {name: lines for name, lines in sorted(missing.items()) if lines},
    }


def _ranges(lines: list[int]) -> str:
    """Format line numbers as ranges: ``3-5, 9``."""
    runs = groupby(enumerate(lines), lambda pair: pair[1] - pair[0])
    found = [[line for _, line in run] for _, run in runs]
    return ", ".join(str(run[0]) + (f"-{run[-1]}" if run[1:] else "") for run in found)


if __name__ == "__main__":
    text = json.dumps({**origin(), **measured()}, indent=1)
    RESULTS.write_text(f"{text}\n", encoding="utf-8")
