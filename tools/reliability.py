"""Writes the tables of docs/reliability.md from what runs have left in evidence.

``python -m chaos --json ../evidence/chaos.jsonl`` adds a line for each trial and each breakage;
``make matrix``, ``make mutants`` and ``make coverage`` have files of their own. Trials stay until
their lines are deleted; of each breakage the newest does.
"""

import json
import shutil
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from packaging.version import Version
from rich.console import Console

from support.places import filled

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "evidence" / "chaos.jsonl"
PAGE: Final = ROOT / "docs" / "reliability.md"
MUTANTS: Final = ROOT / "evidence" / "mutants.jsonl"
COVERAGE: Final = ROOT / "evidence" / "coverage.json"
SUITES: Final = ROOT / "evidence" / "matrix.json"
BREAKAGES: Final = sorted(ROOT.glob("tests/chaos/mutations/*.patch"))

_NAMES: Final = {"sink": ["direct"], "connect": ["direct", "Spark Connect"]}
_BAR: Final = 5.0
_FAULTS: Final = 100
_HOURS: Final = 4
_MUTANTS: Final = 300

Line = dict[str, Any]
_Key = TypeVar("_Key")
# What is aimed at, how much of it, what was seen, whether that is it, and the results.
Aim = tuple[str, str, str, bool, list[Line]]


def read_lines(file: Path = RESULTS) -> list[Line]:
    """All results, the oldest first."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def code_of(line: Line) -> str:
    """What a result is evidence of: the package's tree, for commits may change pages alone."""
    return str(line.get("code") or line["commit"])


def kind_of(line: Line) -> str:
    """A breakage's name, or what kind of query a trial was of."""
    return str(line["breakage"]) if "breakage" in line else ", ".join(properties(line))


def properties(line: Line) -> list[str]:
    """What a trial's query was: how it writes, and with which of the options that change that."""
    options = {
        "schemas": line["load"] == "schemas",
        "asynchronous progress": "asynchronous-kill" in line["faults"],
        "executors of their own": line["cluster"],
        "YARN": line.get("yarn", False),
        "three nodes": line.get("nodes", 1) == 3,
    }
    names = _NAMES.get(line["front"], [str(line["front"])])
    return [*names, *(option for option, is_on in options.items() if is_on)]


def kept(lines: Iterable[Line]) -> list[Line]:
    """All trials, and each breakage's last line."""
    found = list(lines)
    last = {line["breakage"]: line for line in found if "breakage" in line}
    return [line for line in found if "breakage" not in line or last[line["breakage"]] is line]


def _head(*texts: str, numbers: Sequence[str] = ()) -> list[str]:
    return [_row(*texts, *numbers), _row(*["---"] * len(texts), *["---:"] * len(numbers))]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def trials_table(lines: list[Line]) -> str:
    """What each kind of query went through, by code, and what was wrong after it."""
    rows = _head(
        *("query", "code", "date"),
        numbers=(
            *("trials", "faults", "input records", "transactions", "violations"),
            "without a verdict",
        ),
    )
    for (kind, code), own in _grouped(lines, lambda line: (kind_of(line), code_of(line))):
        violations = sum(len(one["violations"]) for one in own)
        unfinished = sum(one["stuck"] is not None or one["harness"] is not None for one in own)
        rows.append(
            _row(
                kind,
                code,
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
    rows = _head("query", "driver", numbers=_RECOVERY)
    for kind, own in _grouped(lines, kind_of):
        steps = [step for one in own for step in one["recoveries"]]
        for driver, restarted in (("same", False), ("new", True)):
            if chosen := [step for step in steps if step["restarted"] is restarted]:
                rows.append(_row(kind, driver, *_recovery(chosen)))
    return "\n".join(rows)


def faults_table(lines: list[Line]) -> str:
    """The same by kinds of faults, of steps with one fault."""
    rows = _head("fault", numbers=_RECOVERY)
    steps = [step for one in lines for step in one["recoveries"] if "+" not in step["kinds"]]
    for kind in sorted({step["kinds"] for step in steps}):
        rows.append(_row(kind, *_recovery([step for step in steps if step["kinds"] == kind])))
    return "\n".join(rows)


_RECOVERY: Final = (
    *("steps", "median", "longest", "over 5 s"),
    "median from a fault's beginning",
    "of which a new driver's start",
)


def _recovery(steps: list[Line]) -> list[str]:
    seconds = [step["seconds"] for step in steps]
    missed = sum(second > _BAR for second in seconds)
    starts = [step["started"] for step in steps if step.get("started") is not None]
    return [
        str(len(steps)),
        f"{statistics.median(seconds):.1f}",
        f"{max(seconds):.1f}",
        f"**{missed}**" if missed else "0",
        f"{statistics.median(step['since_begin'] for step in steps):.1f}",
        f"{statistics.median(starts):.1f}" if starts else "",
    ]


def breakages_table(lines: list[Line], expected: Iterable[str]) -> str:
    """Which rule each breakage has violated, of those that faults are to find out."""
    rows = _head("breakage", "commit", "faults", "found out by")
    found = {kind_of(line): line for line in lines}
    for name in sorted(expected):
        line = found.get(name, {"commit": "", "faults": [], "rule": "**not run**"})
        by = line["rule"] or f"**{line['why_not']}**"
        rows.append(_row(name, line["commit"], ", ".join(line["faults"]), " ".join(by.split())))
    return "\n".join(rows)


def mutants_table(lines: list[Line]) -> str:
    """What became of mutants, by packages or files."""
    rows = _head(
        *("where", "code", "date"),
        numbers=("mutants", "found out", "without an effect that matters", "open"),
    )
    where = {line["mutant"]: _place(line["mutant"]) for line in lines}
    for place in sorted({*where.values()}):
        own = [line for line in lines if where[line["mutant"]] == place]
        survivors = [line for line in own if line["found_by"] is None]
        judged = sum("said" in line for line in survivors)
        rows.append(
            _row(
                f"`{place}`",
                own[-1]["code"],
                own[-1]["date"],
                len(own),
                len(own) - len(survivors),
                judged,
                len(survivors) - judged,
            )
        )
    return "\n".join(rows)


def _place(mutant: str) -> str:
    file = Path(mutant.partition(":")[0])
    return str(file if file.parent.name in {"_client", "_worker"} else file.parent)


def coverage_table(found: Line) -> str:
    """How much of each package the default tests run, in percent."""
    rows = _head("package", numbers=("lines", "branches", "lines not run"))
    for name, counts in found["packages"].items():
        lines, branches = counts["num_statements"], counts["num_branches"]
        rows.append(
            _row(
                f"`{name}`",
                _percent(counts["covered_lines"], lines),
                _percent(counts["covered_branches"], branches),
                lines - counts["covered_lines"],
            )
        )
    return "\n".join(rows)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else ""


def _faults_aim(name: str, trials: list[Line]) -> Aim:
    """Whether queries with a property have met enough faults."""
    own = [one for one in trials if name in properties(one)]
    faults = sum(sum(one["faults"].values()) for one in own)
    failed = sum(bool(one["violations"] or one["stuck"] or one["harness"]) for one in own)
    return (
        f"faults in running queries: {name}",
        f"{_FAULTS}, no trial that fails",
        f"{faults} faults, {len(own)} trials, {failed} failed",
        faults >= _FAULTS and not failed,
        own,
    )


def summary_table(
    trials: list[Line], breakages: list[Line], expected: Sequence[str], mutants: list[Line]
) -> str:
    """Each aim, what was seen, and of which code."""
    revealed = {kind_of(line) for line in breakages if line["rule"] is not None}
    seen = sum(name in revealed for name in expected)
    red = sum(line["found_by"] is not None for line in mutants)
    left = sum(line["found_by"] is None and "said" not in line for line in mutants)
    suites = [one for one in json.loads(SUITES.read_text(encoding="utf-8")) if one.get("code")]
    newest_versions = max(map(_versions, suites), default=())
    aims: list[Aim] = [
        *(_faults_aim(name, trials) for name in dict.fromkeys(chain(*map(properties, trials)))),
        (
            "hours of faults in running queries",
            str(_HOURS),
            f"{sum(one['seconds'] for one in trials) / 3600:.1f}",
            sum(one["seconds"] for one in trials) >= _HOURS * 3600,
            trials,
        ),
        (
            "known breakages",
            "faults find out all",
            f"{seen} of {len(expected)}",
            seen == len(expected),
            breakages,
        ),
        (
            "random mutants",
            f"{_MUTANTS}, and tests find out all that matter",
            f"{red} of {len(mutants)} found out, {left} open",
            len(mutants) >= _MUTANTS and not left,
            mutants,
        ),
        *(
            (
                f"tests: {suite['tests']}, Python {suite['python']}",
                "none fails",
                f"{suite['passed']} passed, {suite['failed']} failed, {suite['minutes']} minutes",
                not suite["failed"],
                [suite],
            )
            for suite in suites
            if _versions(suite) == newest_versions
        ),
    ]
    rows = (
        _row(what, aim, f"{told}: {'met' if is_met else '**missed**'}", _codes(lines))
        for what, aim, told, is_met, lines in aims
    )
    return "\n".join([*_head("what", "aim", "seen", "code"), *rows])


def _versions(suite: Line) -> tuple[Version, ...]:
    return Version(suite["spark"]), Version(suite["kafka"])


def _codes(lines: list[Line]) -> str:
    dates = sorted({line["date"] for line in lines})
    return ", ".join([*sorted({code_of(line) for line in lines}), *dates])


def _grouped(lines: list[Line], key: Callable[[Line], _Key]) -> Iterable[tuple[_Key, list[Line]]]:
    """By key, those of a kind side by side, the oldest first."""
    groups: dict[_Key, list[Line]] = defaultdict(list)
    for line in sorted(lines, key=kind_of):
        groups[key(line)].append(line)
    return groups.items()


def page() -> str:
    """The whole page with the current tables."""
    lines = kept(read_lines())
    trials = [line for line in lines if "breakage" not in line]
    text = PAGE.read_text(encoding="utf-8")
    breakages = [line for line in lines if "breakage" in line]
    mutants = read_lines(MUTANTS)
    by_faults = [path.stem for path in BREAKAGES if f"#breakage-{path.stem})" not in text]
    for name, table in (
        ("summary", summary_table(trials, breakages, by_faults, mutants)),
        ("trials", trials_table(trials)),
        ("recoveries", recovery_table(trials)),
        ("recoveries by fault", faults_table(trials)),
        ("breakages", breakages_table(breakages, by_faults)),
        ("mutants", mutants_table(mutants)),
        ("coverage", coverage_table(json.loads(COVERAGE.read_text(encoding="utf-8")))),
    ):
        text = filled(text, name, table)
    return text


def write_page() -> None:
    """Updates docs/reliability.md."""
    PAGE.write_text(page(), encoding="utf-8")


def main() -> None:
    """Removes what is outdated, and updates the page."""
    lines = kept(read_lines())
    RESULTS.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    write_page()
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
