"""What was measured, as values, as JSON and as Markdown."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contestants import BASE


@dataclass
class Measured:
    """One scenario, all contestants in turn, several rounds.

    Attributes:
        name: The scenario's.
        unit: Of the figures.
        figures: By contestant, one for each round.
        details: Whatever else was measured, by contestant.
    """

    name: str
    unit: str
    figures: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, contestant: str, figure: float) -> None:
        """Notes one round."""
        self.figures.setdefault(contestant, []).append(figure)

    def ratios(self, contestant: str, base: str = BASE) -> list[float]:
        """Each round's figure over the base's of the same round."""
        pairs = zip(self.figures[contestant], self.figures[base], strict=True)
        return [figure / of_base for figure, of_base in pairs]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def markdown(measured: Measured) -> str:
    """A table with medians, ratios and their spread."""
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
    """All tables, after a line on how they came about."""
    how = (
        f"`make bench` on {about['measured'][:10]}, {about['cores']} cores for broker, Spark and "
        f"workers together, {about['scale']:g} of the rows, medians of {about['rounds']} rounds. "
        "Ratios are of figures of the same round; the spread is from the lowest to the highest. "
        "Quix Streams gets a tenth of the rows that the others get. "
        "Of what is not a ratio (CPU, steps, peaks) the tables have the last round."
    )
    head = ["# Measurements", "", how, "", "![All medians](results.png)", ""]
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
    """All figures, with what they were measured on."""
    content = {**about, "scenarios": [asdict(one) for one in measured]}
    file.write_text(json.dumps(content, indent=1) + "\n")


def read_json(file: Path) -> tuple[int, float, list[Measured]]:
    """The rounds, the scale and the figures of an earlier run."""
    content = json.loads(file.read_text())
    scenarios = [Measured(**one) for one in content["scenarios"]]
    return content["rounds"], content["scale"], scenarios
