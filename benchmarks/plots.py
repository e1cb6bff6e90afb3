"""The results as one picture."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from results import Measured


def plot(file: Path, measured: Sequence[Measured]) -> None:
    """Plots the medians of all contestants, one panel per scenario.

    Args:
        file: The picture to write, in PNG.
        measured: The scenarios.
    """
    columns = 3
    lines = -(-len(measured) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(5 * columns, 2.6 * lines), layout="constrained", squeeze=False
    )
    panels = axes.flatten()
    for panel, one in zip(panels, measured, strict=False):
        names = list(one.figures)[::-1]
        medians = [statistics.median(one.figures[name]) for name in names]
        errors = [
            [median - min(one.figures[name]) for name, median in zip(names, medians, strict=True)],
            [max(one.figures[name]) - median for name, median in zip(names, medians, strict=True)],
        ]
        colours = ["tab:orange" if name == "spark-eos" else "tab:blue" for name in names]
        panel.barh(names, medians, xerr=errors, color=colours)
        panel.set_title(f"{one.name}: {one.unit}", fontsize=9, loc="right")
        panel.tick_params(labelsize=8)
    for panel in panels[len(measured) :]:
        panel.axis("off")
    figure.savefig(file, dpi=110)
    plt.close(figure)
