"""Writes the tables of docs/reliability.md from docs/chaos.jsonl, to which chaos appends.

``python -m chaos --json ../docs/chaos.jsonl`` adds a line for each trial, and for each breakage.
Trials of an older commit than the newest of their kind are left out, and removed.
"""

import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "docs" / "chaos.jsonl"
PAGE: Final = ROOT / "docs" / "reliability.md"
BREAKAGES: Final = sorted(ROOT.glob("tests/chaos/mutations/*.patch"))

_NAMES: Final = {"sink": "direct", "connect": "direct, Spark Connect"}
_BAR: Final = 5.0

Line = dict[str, Any]


def read_lines() -> list[Line]:
    """All results, the oldest first."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def kind_of(line: Line) -> str:
    """A breakage's name, or what kind of query a trial was of."""
    if "breakage" in line:
        return str(line["breakage"])
    name = _NAMES.get(line["front"], str(line["front"]))
    name += ", schemas" if line["load"] == "schemas" else ""
    return name + (", executors of their own" if line["cluster"] else "")


def newest(lines: Iterable[Line]) -> list[Line]:
    """Those of each kind that are of its newest commit."""
    found = list(lines)
    commits = {kind_of(line): line["commit"] for line in found}
    return [line for line in found if line["commit"] == commits[kind_of(line)]]


def _head(*texts: str, numbers: Sequence[str] = ()) -> list[str]:
    return [_row(*texts, *numbers), _row(*["---"] * len(texts), *["---:"] * len(numbers))]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def trials_table(lines: list[Line]) -> str:
    """What each kind of query went through, and what was wrong after it."""
    rows = _head(
        *("query", "commit", "date"),
        numbers=(
            *("trials", "faults", "input records", "transactions", "violations"),
            "without a verdict",
        ),
    )
    for kind, own in _by_kind(lines):
        violations = sum(len(one["violations"]) for one in own)
        unfinished = sum(one["stuck"] is not None or one["harness"] is not None for one in own)
        rows.append(
            _row(
                kind,
                own[-1]["commit"],
                own[-1]["date"],
                len(own),
                sum(sum(one["faults"].values()) for one in own),
                f"{sum(one['records'] for one in own):,}",
                f"{sum(one['findings'].get('transactions_committed', 0) for one in own):,}",
                f"**{violations}**" if violations else 0,
                f"**{unfinished}**" if unfinished else 0,
            )
        )
    return "\n".join(rows)


def recovery_table(lines: list[Line]) -> str:
    """Seconds to the next committed transaction, and how much of them a new driver's start took."""
    rows = _head(
        *("query", "driver"),
        numbers=(
            *("steps", "median", "longest", "over 5 s"),
            "median from a fault's beginning",
            "of which a new driver's start",
        ),
    )
    for kind, own in _by_kind(lines):
        steps = [step for one in own for step in one["recoveries"]]
        for driver, restarted in (("same", False), ("new", True)):
            chosen = [step for step in steps if step["restarted"] is restarted]
            if not chosen:
                continue
            seconds = [step["seconds"] for step in chosen]
            missed = sum(second > _BAR for second in seconds)
            starts = [step["started"] for step in chosen if step.get("started") is not None]
            rows.append(
                _row(
                    kind,
                    driver,
                    len(chosen),
                    f"{statistics.median(seconds):.1f}",
                    f"{max(seconds):.1f}",
                    f"**{missed}**" if missed else 0,
                    f"{statistics.median(step['since_begin'] for step in chosen):.1f}",
                    f"{statistics.median(starts):.1f}" if starts else "",
                )
            )
    return "\n".join(rows)


def breakages_table(lines: list[Line], expected: Iterable[str]) -> str:
    """Which rule each breakage has violated, of those that faults are to find out."""
    rows = _head("breakage", "commit", "faults", "found out by")
    found = {kind_of(line): line for line in lines}
    for name in sorted(expected):
        line = found.get(name, {"commit": "", "faults": [], "rule": "**not run**"})
        by = line["rule"] or f"**{line['why_not']}**"
        rows.append(_row(name, line["commit"], ", ".join(line["faults"]), " ".join(by.split())))
    return "\n".join(rows)


def _by_kind(lines: list[Line]) -> list[tuple[str, list[Line]]]:
    kinds = sorted({kind_of(line) for line in lines})
    return [(kind, [line for line in lines if kind_of(line) == kind]) for kind in kinds]


def page() -> str:
    """The whole page with the current tables."""
    lines = newest(read_lines())
    trials = [line for line in lines if "breakage" not in line]
    text = PAGE.read_text(encoding="utf-8")
    by_faults = (path.stem for path in BREAKAGES if f"#breakage-{path.stem})" not in text)
    for name, table in (
        ("trials", trials_table(trials)),
        ("recoveries", recovery_table(trials)),
        ("breakages", breakages_table([one for one in lines if "breakage" in one], by_faults)),
    ):
        place = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"{PAGE.name} has no place for {name}")
        # No text that has been put in has backslashes.
        text = place.sub(f"\n{table}\n\n", text)
    return text


def main() -> None:
    """Removes what is outdated, and updates the page."""
    lines = newest(read_lines())
    RESULTS.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    git = shutil.which("git") or "git"
    for commit in sorted({line["commit"] for line in lines}):
        known = subprocess.run(
            [git, "merge-base", "--is-ancestor", commit, "HEAD"],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        if known.returncode:
            Console(stderr=True).print(f"{commit} is not in this branch")


if __name__ == "__main__":
    main()
