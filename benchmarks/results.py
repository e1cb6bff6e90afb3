"""Results as values, JSON and Markdown."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contestants import BASE


@dataclass
class Measured:
    """The results of one scenario: all contestants, several rounds.

    Attributes:
        name: The scenario's name.
        unit: Unit of the figures.
        figures: Figures by contestant, one per round.
        details: Further measurements, by contestant.
    """

    name: str
    unit: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, contestant: str, figure: float) -> None:
        """Adds the figure of one round."""
        self.figures.setdefault(contestant, []).append(figure)

    def ratios(self, contestant: str, base: str = BASE) -> list[float]:
        """Returns each round's figure divided by the base's figure of the same round."""
        pairs = zip(self.figures[contestant], self.figures[base], strict=True)
        return [figure / of_base for figure, of_base in pairs]


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def markdown(measured: Measured) -> str:
    """Returns a table with medians, ratios and their spread."""
    rows = [
        f"### {measured.name}",
        "",
        f"| contestant | {measured.unit} | of {BASE} | spread |",
        "| --- | ---: | ---: | ---: |",
    ]
    for contestant, figures in measured.figures.items():
        ratios = measured.ratios(contestant) if BASE in measured.figures else []
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
        ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
        rows.append(f"| {contestant} | {statistics.median(figures):,.0f} | {ratio} | {spread} |")
    return "\n".join([*rows, "", *_details(measured.details)])


def page(about: Mapping[str, Any], measured: Sequence[Measured]) -> str:
    """Returns all tables, after a paragraph on how they were measured."""
    how = (
        f"`make bench` on {about['measured'][:10]}, {about['cores']} cores for broker, Spark and "
        f"workers together, {about['scale']:g} of the rows, medians of {about['rounds']} rounds. "
        "Ratios compare figures of the same round; the spread is from the lowest to the highest. "
        "Quix Streams gets a tenth of the others' rows. "
        "All other figures (CPU, steps, peaks) are of the last round."
    )
    head = [
        "# Measurements",
        "",
        how,
        "",
        "![Ratios to Spark's own sink, by scenario](results.png)",
        "",
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
    """Writes all figures and the conditions of the measurement."""
    content = {**about, "scenarios": [asdict(one) for one in measured]}
    file.write_text(json.dumps(content, indent=1) + "\n")


def read_json(file: Path) -> tuple[int, float, list[Measured]]:
    """Returns the rounds, scale and figures of an earlier run."""
    content = json.loads(file.read_text())
    scenarios = [Measured(**one) for one in content["scenarios"]]
    return content["rounds"], content["scale"], scenarios
