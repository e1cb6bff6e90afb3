"""Plots the results as multiples of the results of Spark's own sink."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")

from contestants import EQUAL, OURS
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator
from results import PICTURES, Measured

# Keep text as text, and make pictures reproducible.
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "spark-eos"}

# Inches; narrow enough to read on a phone.
_WIDTH: Final = 5.0
_BAR: Final = 0.42
_FRAME: Final = 1.25
# On a log scale, half and double are equally far from 1.0.
_TICKS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_UNITS: Final = {"rows/s": "throughput", "ms per trigger": "triggers", "ms, p50": "latency"}


def plot(directory: Path, measured: Sequence[Measured]) -> None:
    """Plot each contestant's median ratio to the fairest base, one panel per scenario.

    Args:
        directory: Where to write `PICTURES`.
        measured: The scenarios.
    """
    for name in PICTURES:
        shown = [
            scenario
            for scenario in measured
            if EQUAL in scenario.figures and _UNITS.get(scenario.unit) == name
        ]
        if shown:
            _picture(directory / f"{name}.svg", shown)


def _picture(file: Path, shown: Sequence[Measured]) -> None:
    heights = [_FRAME + _BAR * (len(scenario.figures) - 1) for scenario in shown]
    figure, panels = plt.subplots(
        len(shown),
        figsize=(_WIDTH, sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for scenario, panel in zip(shown, panels[:, 0], strict=True):
        _draw(panel, scenario)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _draw(panel: Axes, one: Measured) -> None:
    base = one.bases[0]
    names = [name for name in one.figures if name != base][::-1]
    ratios = [one.ratios(name, base) for name in names]
    medians = [statistics.median(found) for found in ratios]
    spread = [
        [median - min(found) for found, median in zip(ratios, medians, strict=True)],
        [max(found) - median for found, median in zip(ratios, medians, strict=True)],
    ]
    colours = ["tab:orange" if name.startswith(OURS) else "tab:blue" for name in names]
    panel.set_xscale("log")
    # Bars start at 1.0 and go left or right.
    panel.barh(names, [m - 1 for m in medians], left=1.0, xerr=spread, color=colours, capsize=2)
    panel.axvline(1.0, color="black", linewidth=1)
    lowest = min(min(found) for found in ratios)
    highest = max(max(found) for found in ratios)
    panel.set_xlim(min(0.5, lowest / 1.3), max(2.0, highest * 1.3))
    panel.set_xticks(
        [tick for tick in _TICKS if panel.get_xlim()[0] <= tick <= panel.get_xlim()[1]]
    )
    panel.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    labels = [
        f"{name}\n{statistics.median(one.figures[name]):,.0f} {one.unit}, {median:.2f}"
        for name, median in zip(names, medians, strict=True)
    ]
    panel.set_yticks(range(len(names)), labels, fontsize=8)
    panel.set_ylim(-1, max(2, len(names)))
    panel.tick_params(axis="x", labelsize=8)
    better = "more is better" if one.unit == "rows/s" else "less is better"
    panel.set_title(one.name, fontsize=10, loc="left")
    of_base = f"{statistics.median(one.figures[base]):,.0f} {one.unit}"
    panel.set_xlabel(f"times {base}\n({of_base}); {better}", fontsize=8)
