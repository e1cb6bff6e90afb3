"""Draws a query's batches: rows, lag and milliseconds; needs the extra ``notebook``."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter
except ImportError as error:
    raise ImportError(
        "spark_eos.observability.live_plot needs matplotlib: pip install matplotlib"
    ) from error

_WIDTH: Final = 8.0
_HEIGHT: Final = 2.0
_DPI: Final = 100


@dataclass
class Batch:
    """What is known of a batch; None is unknown."""

    rows_written: int | None = None
    rows_read: int | None = None
    lag: int | None = None  # records available and not read when the batch was planned
    sink_ms: float | None = None
    trigger_ms: float | None = None  # with Spark's part


def picture(batches: Mapping[int, Batch]) -> bytes:
    """Draws batches by their numbers, at least one; what is known of no batch has no panel.

    Returns a PNG on a white ground, of 8 by 2 inches for each panel at 100 dots per inch.

    Example:
        >>> picture({0: Batch(rows_written=10, sink_ms=80.5)})[1:4]
        b'PNG'
    """
    written = any(batch.rows_written is not None for batch in batches.values())
    rows = ("written", "rows_written") if written else ("read", "rows_read")
    wanted: list[tuple[str, str, list[tuple[str, str]]]] = [
        (f"rows {rows[0]}", "tab:blue", [rows]),
        ("lag (records)", "tab:orange", [("lag", "lag")]),
        ("time (ms)", "tab:green", [("whole trigger", "trigger_ms"), ("in the sink", "sink_ms")]),
    ]
    panels = []
    for label, color, names in wanted:
        series = {legend: _known(batches, name) for legend, name in names}
        if found := {legend: points for legend, points in series.items() if points}:
            panels.append((label, color, found))
    # No pyplot: it would keep the figure, and belongs to the notebook's own thread.
    height = _HEIGHT * len(panels)
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    # Fixed margins, in inches: matplotlib's layouts would draw everything twice.
    figure.subplots_adjust(0.13, 0.5 / height, 0.98, 1 - 0.1 / height, hspace=0.12)
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axis, (label, color, series) in zip(axes, panels, strict=True):
        _draw(axis, label, series, color)
    axes[-1].set_xlabel("batch")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor="white")
    return file.getvalue()


def _known(batches: Mapping[int, Batch], name: str) -> list[tuple[int, float]]:
    points = ((number, getattr(batch, name)) for number, batch in sorted(batches.items()))
    return [(number, value) for number, value in points if value is not None]


def _draw(
    axis: Any, label: str, series: Mapping[str, Sequence[tuple[int, float]]], color: str
) -> None:
    for (legend, points), style in zip(series.items(), ("-", ":"), strict=False):
        numbers, values = zip(*points, strict=True)
        if label.startswith("rows"):
            axis.bar(numbers, values, color=color)
        else:
            axis.plot(numbers, values, color=color, marker=".", linestyle=style, label=legend)
    axis.set_ylabel(label)
    largest = max(value for points in series.values() for _number, value in points)
    # Above the largest, room for the legend.
    axis.set_ylim(0, (largest or 1) * (1.3 if len(series) > 1 else 1.1))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.grid(visible=True, axis="y", alpha=0.3)
    if len(series) > 1:
        axis.legend(loc="upper left", frameon=False, ncols=len(series))
