"""Writes the tables in README.md and pages of docs/ from the measurements of `make bench`."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contestants import BASES, EMPTY, EQUAL, OURS, SHIPPED
from results import Measured, read_json
from turns import median_and_range

from support.places import filled

_ROOT: Final = Path(__file__).parent.parent
_RESULTS: Final = _ROOT / "evidence" / "bench.json"

_ASYNCHRONOUS: Final = f"{OURS}, asynchronous_progress"
_ARCHIVE: Final = ", class archive"
_SCHEDULED: Final = "`asynchronous_progress`"
_LATENCY: Final = "latency at 1,000 records/s"
_LARGE: Final = "large batches, {}"
_COLD: Final = "cold start to first commit"
_KILLED: Final = "SIGKILL of the driver to next commit"
_PER_SECOND: Final = "rows/s"
# The suffix of all variants' names.
_RECORDS: Final = ", 100 B, 4 partitions"

# What an aim refers to, by base.
_OF: Final = {EQUAL: "of equal", SHIPPED: "as shipped", EMPTY: "of an empty function"}

Scenarios = Mapping[str, Measured]

_OUTSIDERS: Final = {
    "Kafka Streams 4.3.1, exactly_once_v2": "Kafka Streams 4.3.1, `exactly_once_v2`, two threads",
    "Flink 2.2.0, exactly-once": "Flink 2.2.0, KafkaSink, two slots, a checkpoint per second",
    "transactional loop": "transactional loop, confluent-kafka",
    "Quix Streams, exactly-once": "Quix Streams",
}


@dataclass(frozen=True)
class Line:
    """A row of the first table, with its aim.

    Attributes:
        what: The row's label.
        scenario: The scenario measured.
        contestant: The contestant whose figure the row shows.
        aim: An aim as a share of the base's figure.
        base: The contestant that the aim refers to.
        seconds: An aim in seconds instead of a share.
    """

    what: str
    scenario: str
    contestant: str = OURS
    aim: float | None = None
    base: str = EQUAL
    seconds: float | None = None

    def reached(self, scenario: Measured) -> bool | None:
        """Return True if the aim is met; None if there is no aim."""
        if self.seconds is not None:
            return _seconds(scenario, self.contestant) <= self.seconds
        if self.aim is None:
            return None
        share = round(_share(scenario, self.contestant, self.base), 2)
        return share >= self.aim if scenario.unit == _PER_SECOND else share <= self.aim

    def words(self, scenario: Measured) -> str:
        """Return the aim, and whether it is met, in words."""
        of = _OF[self.base]
        aim = f"{self.aim} {of}" if self.seconds is None else f"{self.seconds:g} s"
        reached = self.reached(scenario)
        return "" if reached is None else f"{aim}: {'met' if reached else '**missed**'}"


_LINES: Final[Mapping[str, tuple[Line, ...]]] = {
    "rows/s, large batches": (
        Line("100 B", _LARGE.format("100 B, 4 partitions"), aim=1.0),
        Line("1 KiB", _LARGE.format("1 KiB, 4 partitions"), aim=1.2),
        Line("10 KiB", _LARGE.format("10 KiB, 4 partitions"), aim=1.2),
        Line("100 B, no keys", _LARGE.format("100 B, 4 partitions, no key")),
        Line("100 B, a header", _LARGE.format("100 B, 4 partitions, header")),
        Line(
            "relay: a header, timestamps",
            _LARGE.format("100 B, 4 partitions, header, timestamp"),
            aim=0.9,
        ),
        *(
            Line(f"100 B, {count}", _LARGE.format(f"100 B, {count}"))
            for count in ("1 partition", "64 partitions", "500 partitions")
        ),
    ),
    "rows/s, large batches: decode, filter, change a field, encode": (
        *(
            Line(f"Avro, {what}", _LARGE.format(f"avro query, {what}, 4 partitions"), aim=0.8)
            for what in ("100 B", "two schemas, 100 B", "1 KiB")
        ),
        *(
            Line(f"JSON, {what}", _LARGE.format(f"json query, {what}, 4 partitions"), aim=0.9)
            for what in ("100 B", "1 KiB")
        ),
    ),
    "time of a trigger": (
        *(
            Line(f"{rows} rows", f"{rows} rows, 100 B, 4 partitions")
            for rows in ("100", "10,000", "100,000")
        ),
        Line(
            "100 rows, against a `foreachBatch` function that writes nothing",
            "100 rows, 100 B, 4 partitions",
            aim=1.05,
            base=EMPTY,
        ),
        Line(
            "50,000 rows, 500 partitions",
            "50,000 rows, 100 B, 500 partitions",
            aim=0.6,
        ),
        *(
            Line(
                f"{rows} rows, {_SCHEDULED}",
                f"{rows} rows, 100 B, 4 partitions",
                _ASYNCHRONOUS,
                aim=0.85,
                base=SHIPPED,
            )
            for rows in ("100", "10,000")
        ),
    ),
    "median latency, 1,000 records/s": (
        Line("default settings", _LATENCY, aim=1.0),
        Line(_SCHEDULED, _LATENCY, _ASYNCHRONOUS, aim=1.0),
    ),
    "start to first commit, plain Python": (
        Line("cold", _COLD),
        Line("cold, [class archive](deploying.md#starting-sooner)", _COLD, OURS + _ARCHIVE),
        Line("after SIGKILL", _KILLED, seconds=5.0),
        Line(
            "after SIGKILL, class archive",
            _KILLED,
            OURS + _ARCHIVE,
            seconds=5.0,
        ),
    ),
}


def _row(*cells: str) -> str:
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def _head(*heads: str) -> list[str]:
    return [_row(*heads), _row("---", *["---:"] * (len(heads) - 1))]


def _compared(measured: Measured, contestant: str, base: str) -> str:
    """Return the ratio as text for all pages; empty if one of the two was not measured."""
    if not {contestant, base} <= measured.figures.keys():
        return "failed" if contestant in measured.failed else ""
    return median_and_range(measured.ratios(contestant, base))


def _share(measured: Measured, contestant: str, base: str) -> float:
    return statistics.median(measured.ratios(contestant, base))


def _seconds(measured: Measured, contestant: str) -> float:
    return statistics.median(measured.figures[contestant]) / 1_000


def _aims(scenarios: Scenarios) -> list[str]:
    rows = [_row("", "goal", "equal", "as shipped"), _row(*["---"] * 4)]
    for section, lines in _LINES.items():
        rows.append(_row(f"**{section}**", "", "", ""))
        for line in lines:
            scenario = scenarios.get(line.scenario)
            if scenario is None or line.base not in scenario.figures:
                # The scenario or the base was added after the last run.
                rows.append(_row(line.what, "", "not measured", ""))
                continue
            took = f": {_seconds(scenario, line.contestant):.1f} s" if scenario.unit == "ms" else ""
            bases = BASES if line.base in BASES else (line.base,)
            compared = [_compared(scenario, line.contestant, base) for base in bases]
            compared += [""] * (len(BASES) - len(bases))
            rows.append(_row(line.what + took, line.words(scenario), *compared))
    return rows


def _of_schemas(about: Mapping[str, Any], scenarios: Scenarios) -> list[str]:
    """Return the size of batches with schemas, if they were measured."""
    if not any(" query, " in name for name in scenarios):
        return []
    return [
        f"Batches with schemas have {50 * about['scale']:g} MB, or {200 * about['scale']:g} MB",
        "with records of 1 KiB.",
    ]


def _conditions(about: Mapping[str, Any], scenarios: Scenarios) -> list[str]:
    cold, killed = (_seconds(scenarios[name], EQUAL + _ARCHIVE) for name in (_COLD, _KILLED))
    return [
        f"Medians of {about['rounds']} rounds (lowest to highest) after a warm-up, with four",
        f"partitions unless stated. Large batches have {100 * about['scale']:g} MB; those without",
        f"a goal, {50 * about['scale']:g} MB. Empty cells: no goal, or not measured.",
        *_of_schemas(about, scenarios),
        f"`make bench` on {about['date']}, commit {about['commit']}, code {about['code']}:",
        f"Spark {about['spark']}, Kafka {about['kafka']},",
        f"{about['machine']}, shared by broker, Spark and workers.",
        "Spark's own sink starts without a class archive; with one, it takes",
        f"{cold:.1f} s cold and {killed:.1f} s after SIGKILL.",
    ]


def _costs(scenarios: Scenarios) -> list[str]:
    kinds = {"JVM": "jvm", "broker": "broker", "Python workers": "workers"}
    rows = _head("", *kinds, "first batch, s")
    for records in ("100 B, 4", "1 KiB, 4", "10 KiB, 4", "100 B, 64", "100 B, 500"):
        details = scenarios[_LARGE.format(f"{records} partitions")].details
        names = [*(f"{kind}, CPU s/M rows" for kind in kinds.values()), "first batch, s"]
        rows.append(
            _row(
                f"{records} partitions",
                *(f"{details[EQUAL][name]:.1f} → {details[OURS][name]:.1f}" for name in names),
            )
        )
    return rows


def _variants(scenarios: Scenarios) -> list[str]:
    rows = [_row("", "against", "", "ratio"), _row("---", "---", "---", "---:")]
    found = [one for one in scenarios.values() if one.base]
    for one in found:
        unit = "speed" if "/s" in one.unit else "time"
        scenario = one.name.removesuffix(_RECORDS)
        # The first table has our figures for queries with schemas.
        shown = {one.base, OURS} if " query, " in one.name else {one.base}
        for name in one.figures:
            if name not in shown:
                ratio = _compared(one, name, one.base)
                rows.append(_row(f"{scenario}: {name}", one.base, unit, ratio))
    return rows if found else ["Not measured since they were added to the run."]


def _outsiders(scenarios: Scenarios) -> list[str]:
    rows = _head("", "100 B", "1 KiB")
    for name, told in _OUTSIDERS.items():
        rows.append(_row(told, *(_compared(one, name, OURS) for one in _both(scenarios))))
    return rows


def _both(scenarios: Scenarios) -> list[Measured]:
    return [scenarios[_LARGE.format(f"{size}, 4 partitions")] for size in ("100 B", "1 KiB")]


def _steps(scenarios: Scenarios) -> list[str]:
    scenario = scenarios["100 rows, 100 B, 4 partitions"]
    named = {
        OURS: OURS,
        _ASYNCHRONOUS: f"{OURS}, {_SCHEDULED}",
        EQUAL: "Spark's own sink",
        "Spark's own sink, asynchronous": "the same, asynchronous: duplicates rows after a crash",
    }
    rows = _head("", "total", "Spark's logs", "the batch")
    for name, told in named.items():
        steps = scenario.details[name]
        figures = (
            statistics.median(scenario.figures[name]),
            steps["walCommit"] + steps["commitOffsets"],
            steps["addBatch"],
        )
        rows.append(_row(told, *(f"{figure:.0f}" for figure in figures)))
    return rows


def _latency(scenarios: Scenarios) -> list[str]:
    """Return rows for the seconds until a consumer sees a record."""
    scenario = scenarios[_LATENCY]
    rows = _head("", "half of the records", "99 % of them")
    for name, told in {OURS: "by default", _ASYNCHRONOUS: f"with {_SCHEDULED}"}.items():
        times = (statistics.median(scenario.figures[name]), scenario.details[name]["p99 ms"])
        rows.append(_row(told, *(f"{time / 1000:.2f} s" for time in times)))
    return rows


def _comparison(about: Mapping[str, Any], scenarios: Scenarios) -> list[str]:
    others = {
        SHIPPED: ("Spark's own sink, as shipped", "at-least-once"),
        EQUAL: ("Spark's own sink, same read settings", "at-least-once"),
        "Kafka Streams 4.3.1, exactly_once_v2": ("Kafka Streams 4.3.1", "exactly-once"),
        "Flink 2.2.0, exactly-once": ("Flink 2.2.0", "exactly-once"),
        "Quix Streams, exactly-once": ("Quix Streams", "exactly-once"),
    }
    of = f"medians of {about['rounds']} rounds, two cores"
    rows = [
        f"Rows per second in large batches, relative to spark-eos ({of}):",
        "",
        _row("", "guarantee", "100 B", "1 KiB"),
        _row("---", "---", "---:", "---:"),
    ]
    rows.append(_row(OURS, "exactly-once", "1", "1"))
    for name, told in others.items():
        compared = (_compared(one, name, OURS) for one in _both(scenarios))
        # Leave out the range.
        rows.append(_row(*told, *(text.partition(" (")[0] for text in compared)))
    return rows


def pages(results: Path = _RESULTS) -> dict[Path, str]:
    """Return the pages' full texts with the current tables."""
    about, measured = read_json(results)
    scenarios = {one.name: one for one in measured}
    tables = {
        _ROOT / "docs" / "performance.md": {
            "aims": _aims(scenarios),
            "conditions": _conditions(about, scenarios),
            "costs": _costs(scenarios),
            "outsiders": _outsiders(scenarios),
            "variants": _variants(scenarios),
            "steps": _steps(scenarios),
        },
        _ROOT / "docs" / "guide.md": {"latency": _latency(scenarios)},
        _ROOT / "README.md": {"comparison": _comparison(about, scenarios)},
    }
    found = {}
    for page, places in tables.items():
        text = page.read_text(encoding="utf-8")
        for name, lines in places.items():
            text = filled(text, name, "\n".join(lines))
        found[page] = text
    return found


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
