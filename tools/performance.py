"""Writes the tables of docs/performance.md and README.md from what `make bench` has measured."""

import json
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = _ROOT / "docs" / "performance" / "results.json"
PAGES: Final = (_ROOT / "docs" / "performance.md", _ROOT / "README.md")

_OURS: Final = "spark-eos"
_ASYNCHRONOUS: Final = f"{_OURS}, asynchronous_progress"
_ARCHIVE: Final = ", class archive"
_EQUAL: Final = "Spark's own sink, equal read settings"
_SHIPPED: Final = "Spark's own sink, as shipped"
_SCHEDULED: Final = "`asynchronous_progress`"
_LARGE: Final = "large batches, {}"
_COLD: Final = "cold start to first commit"
_KILLED: Final = "SIGKILL of the driver to next commit"
_PER_SECOND: Final = "rows/s"

_OUTSIDERS: Final = {
    "Kafka Streams 4.3.1, exactly_once_v2": "Kafka Streams 4.3.1, `exactly_once_v2`, two threads",
    "Flink 2.2.0, exactly-once": "Flink 2.2.0, KafkaSink, two slots, a checkpoint per second",
    "transactional loop": "transactional loop, confluent-kafka",
    "Quix Streams, exactly-once": "Quix Streams",
}


@dataclass(frozen=True)
class Scenario:
    """Figures and details of all contestants of a scenario, as benchmarks/results.py has them."""

    unit: str
    figures: Mapping[str, list[float]]
    details: Mapping[str, Mapping[str, Any]]

    def ratios(self, contestant: str, base: str) -> list[float]:
        """Round by round; none if one of them was left out."""
        both = (self.figures.get(contestant, []), self.figures.get(base, []))
        return [ours / theirs for ours, theirs in zip(*both, strict=False)]

    def median(self, contestant: str) -> float:
        """The median of a contestant's figures."""
        return statistics.median(self.figures[contestant])


@dataclass(frozen=True)
class Line:
    """A row of the first table: what was measured, whose figure it is, and what is aimed at.

    Attributes:
        aim: a share of the base's figure.
        base: the contestant that the aim is about.
        seconds: an aim that is no share.
        told: how README.md begins to tell that it was missed.
    """

    what: str
    scenario: str
    contestant: str = _OURS
    aim: float | None = None
    base: str = _EQUAL
    seconds: float | None = None
    told: str = ""

    def reached(self, scenario: Scenario) -> bool | None:
        """Whether the aim is met; None without one."""
        if self.seconds is not None:
            return scenario.median(self.contestant) <= 1_000 * self.seconds
        if self.aim is None:
            return None
        share = round(statistics.median(scenario.ratios(self.contestant, self.base)), 2)
        return share >= self.aim if scenario.unit == _PER_SECOND else share <= self.aim

    def words(self, scenario: Scenario) -> str:
        """The aim, and whether it is met."""
        of = "of equal" if self.base == _EQUAL else "as shipped"
        aim = f"{self.aim} {of}" if self.seconds is None else f"{self.seconds:g} s"
        reached = self.reached(scenario)
        return "" if reached is None else f"{aim}: {'met' if reached else '**missed**'}"


_LINES: Final[Mapping[str, tuple[Line, ...]]] = {
    "rows/s, large batches": (
        Line("100 B", _LARGE.format("100 B, 4 partitions"), aim=1.0, told="speed at 100 B"),
        Line("1 KiB", _LARGE.format("1 KiB, 4 partitions"), aim=1.2, told="speed at 1 KiB"),
        Line("10 KiB", _LARGE.format("10 KiB, 4 partitions"), aim=1.2, told="speed at 10 KiB"),
        Line("100 B, no keys", _LARGE.format("100 B, 4 partitions, no key")),
        Line("100 B, a header", _LARGE.format("100 B, 4 partitions, header")),
        *(
            Line(f"100 B, {count}", _LARGE.format(f"100 B, {count}"))
            for count in ("1 partition", "64 partitions", "500 partitions")
        ),
    ),
    "time of a trigger": (
        *(
            Line(f"{rows} rows", f"{rows} rows, 100 B, 4 partitions")
            for rows in ("100", "10,000", "100,000")
        ),
        Line(
            "50,000 rows, 500 partitions",
            "50,000 rows, 100 B, 500 partitions",
            aim=0.6,
            told="time for 50,000 rows in 500 partitions",
        ),
        *(
            Line(
                f"{rows} rows, {_SCHEDULED}",
                f"{rows} rows, 100 B, 4 partitions",
                _ASYNCHRONOUS,
                aim=0.85,
                base=_SHIPPED,
                told=f"time for {rows} rows with {_SCHEDULED}",
            )
            for rows in ("100", "10,000")
        ),
    ),
    "median latency, 1,000 records/s": (
        Line("default settings", "latency at 1,000 records/s", aim=1.0, told="latency"),
        Line(
            _SCHEDULED,
            "latency at 1,000 records/s",
            _ASYNCHRONOUS,
            aim=1.0,
            told=f"latency with {_SCHEDULED}",
        ),
    ),
    "start to first commit, plain Python": (
        Line("cold", _COLD),
        Line("cold, [class archive](deploying.md#starting-sooner)", _COLD, _OURS + _ARCHIVE),
        Line("after SIGKILL", _KILLED, seconds=5.0, told="from SIGKILL to the next commit"),
        Line(
            "after SIGKILL, class archive",
            _KILLED,
            _OURS + _ARCHIVE,
            seconds=5.0,
            told="from SIGKILL to the next commit with a class archive",
        ),
    ),
}


def _row(*cells: str) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def _head(*heads: str) -> list[str]:
    return [_row(*heads), _row("---", *["---:"] * (len(heads) - 1))]


def _median_and_range(values: list[float]) -> str:
    low, high = min(values, default=0), max(values, default=0)
    return f"{statistics.median(values):.2f} ({low:.2f} to {high:.2f})" if values else ""


def _aims(scenarios: Mapping[str, Scenario]) -> list[str]:
    rows = [_row("", "aim", "equal", "as shipped"), _row(*["---"] * 4)]
    for section, lines in _LINES.items():
        rows.append(_row(f"**{section}**", "", "", ""))
        for line in lines:
            scenario = scenarios[line.scenario]
            took = f": {scenario.median(line.contestant) / 1_000:.1f} s"
            compared = (
                _median_and_range(scenario.ratios(line.contestant, base))
                for base in (_EQUAL, _SHIPPED)
            )
            what = line.what + (took if scenario.unit == "ms" else "")
            rows.append(_row(what, line.words(scenario), *compared))
    return rows


def _conditions(about: Mapping[str, Any], scenarios: Mapping[str, Scenario]) -> list[str]:
    cold, killed = (scenarios[name].median(_EQUAL + _ARCHIVE) / 1_000 for name in (_COLD, _KILLED))
    return [
        f"Medians of {about['rounds']} rounds (lowest to highest) after a warm-up, with four",
        f"partitions unless stated. Large batches have {100 * about['scale']:g} MB, those without",
        f"an aim {50 * about['scale']:g}. Empty: no aim, or not measured.",
        f"`make bench` on {about['date']}, commit {about['commit']}, code {about['code']}:",
        f"Spark {about['spark']}, Kafka {about['kafka']},",
        f"{about['machine']}, shared by broker, Spark and workers.",
        "Spark's sink starts without a class archive here; with one it takes",
        f"{cold:.1f} s cold and {killed:.1f} s after SIGKILL.",
    ]


def _costs(scenarios: Mapping[str, Scenario]) -> list[str]:
    kinds = {"JVM": "jvm", "broker": "broker", "Python workers": "workers"}
    rows = _head("", *kinds, "first batch, s")
    for records in ("100 B, 4", "1 KiB, 4", "10 KiB, 4", "100 B, 64", "100 B, 500"):
        details = scenarios[_LARGE.format(f"{records} partitions")].details
        names = [*(f"{kind}, CPU s/M rows" for kind in kinds.values()), "first batch, s"]
        rows.append(
            _row(
                f"{records} partitions",
                *(f"{details[_EQUAL][name]:.1f} → {details[_OURS][name]:.1f}" for name in names),
            )
        )
    return rows


def _outsiders(scenarios: Mapping[str, Scenario]) -> list[str]:
    rows = _head("", "100 B", "1 KiB")
    for name, told in _OUTSIDERS.items():
        rows.append(
            _row(told, *(_median_and_range(x.ratios(name, _OURS)) for x in _both(scenarios)))
        )
    return rows


def _both(scenarios: Mapping[str, Scenario]) -> list[Scenario]:
    return [scenarios[_LARGE.format(f"{size}, 4 partitions")] for size in ("100 B", "1 KiB")]


def _steps(scenarios: Mapping[str, Scenario]) -> list[str]:
    scenario = scenarios["100 rows, 100 B, 4 partitions"]
    named = {
        _OURS: _OURS,
        _ASYNCHRONOUS: f"{_OURS}, {_SCHEDULED}",
        _EQUAL: "Spark's own sink",
        "Spark's own sink, asynchronous": "the same, asynchronous: doubles rows after a crash",
    }
    rows = _head("", "total", "Spark's logs", "the batch")
    for name, told in named.items():
        steps = scenario.details[name]
        figures = (
            scenario.median(name),
            steps["walCommit"] + steps["commitOffsets"],
            steps["addBatch"],
        )
        rows.append(_row(told, *(f"{figure:.0f}" for figure in figures)))
    return rows


def _comparison(scenarios: Mapping[str, Scenario]) -> list[str]:
    others = {
        _SHIPPED: ("Spark's own sink, as shipped", "at-least-once"),
        _EQUAL: ("Spark's own sink, same read settings", "at-least-once"),
        "Kafka Streams 4.3.1, exactly_once_v2": ("Kafka Streams 4.3.1", "exactly-once"),
        "Flink 2.2.0, exactly-once": ("Flink 2.2.0", "exactly-once"),
        "Quix Streams, exactly-once": ("Quix Streams", "exactly-once"),
    }
    rows = [_row("", "guarantee", "100 B", "1 KiB"), _row("---", "---", "---:", "---:")]
    rows.append(_row(_OURS, "exactly-once", "1", "1"))
    for name, told in others.items():
        medians = [statistics.median(one.ratios(name, _OURS)) for one in _both(scenarios)]
        rows.append(_row(*told, *(f"{median:.2f}" for median in medians)))
    return rows


def _missed(scenarios: Mapping[str, Scenario]) -> list[str]:
    return [
        f"- {_seen(line, scenarios[line.scenario])}"
        for lines in _LINES.values()
        for line in lines
        if line.reached(scenarios[line.scenario]) is False
    ]


def _seen(line: Line, scenario: Scenario) -> str:
    if line.seconds is not None:
        took = scenario.median(line.contestant) / 1_000
        return f"{took:.1f} s {line.told} (goal {line.seconds:g} s)"
    share = statistics.median(scenario.ratios(line.contestant, line.base))
    return f"{share:.2f} of its {line.told} (goal {line.aim})"


def pages() -> dict[Path, str]:
    """The whole pages with the current tables."""
    about = json.loads(RESULTS.read_text(encoding="utf-8"))
    scenarios = {
        one["name"]: Scenario(one["unit"], one["figures"], one["details"])
        for one in about["scenarios"]
    }
    tables = {
        "aims": _aims(scenarios),
        "conditions": _conditions(about, scenarios),
        "costs": _costs(scenarios),
        "outsiders": _outsiders(scenarios),
        "steps": _steps(scenarios),
        "comparison": _comparison(scenarios),
        "missed": _missed(scenarios),
    }
    found = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for name, lines in tables.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- end of {name} -->)", re.DOTALL)
        holders = [page for page, text in found.items() if place.search(text)]
        if len(holders) != 1:
            raise ValueError(f"{name} has {len(holders)} places")
        found[holders[0]] = place.sub(_text(lines), found[holders[0]])
    return found


def _text(lines: Iterable[str]) -> str:
    return "\n" + "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
