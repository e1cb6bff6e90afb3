"""Results as values, and their output as JSON and Markdown."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contestants import BASES
from turns import median_and_range, ratios


@dataclass
class Measured:
    """The results of one scenario, for all contestants and rounds.

    Attributes:
        name: The scenario's name.
        unit: Unit of the figures.
        figures: Figures by contestant, one per round.
        details: Further measurements, by contestant.
        failed: Contestants that are left out because they have failed.
        base: The contestant that others are compared with, if it isn't Spark's own sink.
    """

    name: str
    unit: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    base: str = ""

    def leave_out(self, contestant: str) -> None:
        """Drop the results of a contestant that has failed; keep only its name."""
        self.failed.append(contestant)
        self.figures.pop(contestant, None)
        self.details.pop(contestant, None)

    def add(self, contestant: str, figure: float) -> None:
        """Add the figure of one round."""
        self.figures.setdefault(contestant, []).append(figure)

    def ratios(self, contestant: str, base: str) -> list[float]:
        """Return each round's figure divided by the base's figure of the same round."""
        return ratios(self.figures[contestant], self.figures[base])

    @property
    def bases(self) -> list[str]:
        """The contestants that others are compared with, the fairest one first."""
        bases = dict.fromkeys((*BASES, self.base))
        return [base for base in bases if base in self.figures]


PICTURES = {
    "throughput": "Rows per second against Spark's own sink, by kind of records",
    "triggers": "Time of a trigger against Spark's own sink, by rows",
    "latency": "Latency against Spark's own sink",
}
"""Descriptions of a run's pictures, by file name."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile at a share such as 0.99: that share of values is not larger."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def markdown(measured: Measured) -> str:
    """Return a table with medians, ratios and ranges."""
    bases = measured.bases
    heads = [measured.unit, *(f"of {base}" for base in bases)]
    rows = [
        f"### {measured.name}",
        "",
        f"| contestant | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for contestant, figures in measured.figures.items():
        compared = [median_and_range(measured.ratios(contestant, base)) for base in bases]
        cells = [f"{statistics.median(figures):,.0f}", *compared]
        rows.append(f"| {contestant} | {' | '.join(cells)} |")
    rows += [f"| {contestant} | failed |{' |' * len(bases)}" for contestant in measured.failed]
    return "\n".join([*rows, "", *_details(measured.details)])


def page(about: Mapping[str, Any], measured: Sequence[Measured], pictures: str) -> str:
    """Return all tables, after the pictures and a paragraph on how the figures were measured."""
    how = (
        f"`make bench` on {about['date']}, commit {about['commit']}, code {about['code']}: "
        f"Spark {about['spark']}, Kafka {about['kafka']}, {about['machine']}, for broker, Spark "
        f"and workers together; {about['scale']:g} of the rows. Figures are medians of "
        f"{about['rounds']} rounds, after a warm-up round that does not count. Contestants take "
        "turns in each round, not always in the same order. Ratios compare figures of the same "
        "round and are followed by the lowest and highest ratio. Equal read settings are those of "
        "`sink.read`. The JVMs of Kafka Streams and Flink keep running from round to round, as "
        "Spark's does; Quix Streams gets a tenth of the rows. CPU, steps and peaks are from the "
        "last round. Workers are the processes that run the contestant's Python or, without Spark, "
        "the whole contestant."
    )
    head = [
        "# Measurements",
        "",
        how,
        "",
        *(
            line
            for name, words in PICTURES.items()
            for line in (f"![{words}]({pictures}/{name}.svg)", "")
        ),
    ]
    return "\n".join([*head, *map(markdown, measured)])


def _details(details: Mapping[str, Mapping[str, Any]]) -> list[str]:
    if not details:
        return []
    names = list(dict.fromkeys(name for found in details.values() for name in found))
    return [
        f"| contestant | {' | '.join(names)} |",
        f"| --- |{' ---: |' * len(names)}",
        *(
            f"| {contestant} | {' | '.join(_text(found.get(name)) for name in names)} |"
            for contestant, found in details.items()
        ),
        "",
    ]


def _text(value: object) -> str:
    return "" if value is None else f"{value:,.1f}" if isinstance(value, float) else str(value)


def write_json(file: Path, about: Mapping[str, Any], measured: Sequence[Measured]) -> None:
    """Write all figures and the conditions of the measurement."""
    content = {**about, "scenarios": [asdict(one) for one in measured]}
    file.write_text(json.dumps(content, indent=1) + "\n")


def read_json(file: Path) -> tuple[dict[str, Any], list[Measured]]:
    """Return the conditions and figures of an earlier run."""
    content = json.loads(file.read_text())
    return content, [Measured(**one) for one in content.pop("scenarios")]
