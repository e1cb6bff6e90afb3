"""A live plot of a query's rows, lag and times for notebooks; needs the extra ``notebook``."""

import base64
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from spark_eos._batch_report import BatchReport
from spark_eos.errors import SparkEosError, warn
from spark_eos.observability.listener import source_lag

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter
except ImportError as error:
    raise ImportError(
        "spark_eos.observability.live_plot needs matplotlib: pip install matplotlib"
    ) from error

logger = logging.getLogger(__name__)

# Minimum number of seconds between two pictures, and the maximum share of time spent drawing.
# Drawing holds Python's interpreter lock, which the query's batches need too.
_PAUSE: Final = 1.0
_SHARE: Final = 0.1
# Number of batches to show: as many as Spark remembers by default.
_BATCHES: Final = 100
_WIDTH: Final = 8.0
_HEIGHT: Final = 2.0
_DPI: Final = 100


@dataclass
class Batch:
    """The known figures of a batch; None means unknown."""

    rows_written: int | None = None
    rows_read: int | None = None
    lag: int | None = None  # records available and not read when the batch was planned
    sink_ms: float | None = None
    trigger_ms: float | None = None  # including Spark's own work


def picture(batches: Mapping[int, Batch]) -> bytes:
    """Return a PNG of one or more batches; a figure that is unknown for all gets no panel."""
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
        if drawn := {legend: points for legend, points in series.items() if points}:
            panels.append((label, color, drawn))
    # Don't use pyplot: it would keep the figure, and belongs to the notebook's own thread.
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
    # Leave room for the legend above the largest value.
    axis.set_ylim(0, (largest or 1) * (1.3 if len(series) > 1 else 1.1))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.grid(visible=True, axis="y", alpha=0.3)
    if len(series) > 1:
        axis.legend(loc="upper left", frameon=False, ncols=len(series))


class LivePlot:
    """Draws the last hundred batches of a query; pass it to the sink as ``on_batch``.

    The plot shows rows, lag (if Spark reports it) and milliseconds by batch. As the value of a
    cell, it is displayed as a picture. Jupyter updates the picture while the query runs, at most
    once a second; Databricks shows the state when the cell ran. Rows are the rows written, from the
    sink's reports. For a query that has already started, they are the rows read, as reported in
    Spark's progress. The same applies to Spark Connect, which runs batches outside the notebook's
    process. Lag and time also come from Spark's progress. A separate thread draws while the query
    runs.

    Args:
        query: A query that has started. None if the sink sets the query, through ``on_batch``.

    Examples:
        In one cell; any other cell can show ``plot`` again:

            plot = LivePlot()
            sink = ExactlyOnceSink(..., on_batch=plot)
            query = sink.write(orders).start()
            plot

        For a query that is already running:

            LivePlot(query)
    """

    def __init__(self, query: StreamingQuery | None = None) -> None:
        self._query = query
        self._batches: dict[int, Batch] = {}
        self._changed = False
        self._woken = False
        self._shown: list[Callable[[Any], object]] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def __call__(self, report: BatchReport) -> None:
        """Add a batch; the sink calls it as ``on_batch``."""
        with self._lock:
            batch = self._batch(report.batch_id)
            batch.rows_written = report.rows_written
            batch.sink_ms = report.milliseconds.get("total")
            self._changed = True
            self._wake()

    def on_query(self, query: StreamingQuery, group_id: str) -> None:  # noqa: ARG002
        """Follow a query; the sink calls it when the query has started."""
        with self._lock:
            if self._query is not None and self._query.id != query.id:
                # The query has another checkpoint, whose batches are numbered from 0 again.
                self._batches.clear()
            self._query = query
            self._wake()

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark Connect sends on_batch to the process that runs the batches, which shows nothing and
        # may lack matplotlib. Send a function that takes a report and does nothing.
        return attrgetter, ("batch_id",)

    def png(self) -> bytes | None:
        """Draw the current state.

        Returns:
            A PNG of 8 by 2 inches per panel at 100 dots per inch; None if there is no batch yet.

        Examples:
            ::

                Path("batches.png").write_bytes(plot.png() or b"")
        """
        self._read_progress()
        with self._lock:
            self._changed = False
            batches = dict(self._batches)
        return picture(batches) if batches else None

    # Called by notebooks ----------------------------------------------------------------------

    def _repr_html_(self) -> str:
        png = self.png()
        if png is None:
            return "<div>No batch yet.</div>"
        text = base64.b64encode(png).decode()
        return f'<img alt="rows, lag and time by batch" src="data:image/png;base64,{text}">'

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display  # noqa: PLC0415 - only IPython calls this

        page = HTML(self._repr_html_())
        if "DATABRICKS_RUNTIME_VERSION" in os.environ:
            display(page)
            return
        handle = display(page, display_id=True)
        with self._lock:
            self._shown.append(lambda html: handle.update(HTML(html)))
            self._wake()

    # The drawing thread -----------------------------------------------------------------------

    def _wake(self) -> None:
        """Start the thread if it has anything to do; the caller holds the lock."""
        self._woken = True
        if self._shown and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="live-plot", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            while True:
                self._woken = False
                lives = self._read_progress()
                spent = self._exchange() if self._changed else 0.0
                time.sleep(max(_PAUSE, spent / _SHARE))
                with self._lock:
                    if not (lives or self._woken or self._changed):
                        self._thread = None
                        return
        except Exception:  # noqa: BLE001 - a plot must not end the query
            warn(logger, "EOS68", "the live plot has stopped; show it again", trace=True)
            with self._lock:
                self._thread = None
                self._shown.clear()

    def _exchange(self) -> float:
        """Update the pictures on all pages; return the CPU seconds spent."""
        begun = time.thread_time()
        html = self._repr_html_()
        for exchange in list(self._shown):
            exchange(html)
        return time.thread_time() - begun

    def _read_progress(self) -> bool:
        """Read Spark's progress since the last call; return True if the query is running."""
        query = self._query
        if query is None:
            return False
        try:
            lives = query.isActive
            last = query.lastProgress
            if last is None:
                return lives
            with self._lock:
                before = self._batches.get(last.batchId - 1)
            # Read all reports only if a batch was missed: each report costs a call to the JVM.
            missed = before is None or before.trigger_ms is None
            reports = query.recentProgress if missed else [last]
        except Exception:  # noqa: BLE001 - if Spark has ended in any way, so has the query
            return False
        for progress in reports:
            self._note(progress)
        return lives

    def _note(self, progress: StreamingQueryProgress) -> None:
        spent = progress.durationMs
        if "addBatch" not in spent:  # a trigger that found no new records
            return
        lag = _lag(progress)
        with self._lock:
            batch = self._batch(progress.batchId)
            if batch.trigger_ms is None:
                batch.rows_read, batch.lag = progress.numInputRows, lag
                batch.trigger_ms = spent["triggerExecution"]
                batch.sink_ms = spent["addBatch"] if batch.sink_ms is None else batch.sink_ms
                self._changed = True

    def _batch(self, number: int) -> Batch:
        batch = self._batches.setdefault(number, Batch())
        for old in sorted(self._batches)[:-_BATCHES]:
            del self._batches[old]
        return batch


def _lag(progress: StreamingQueryProgress) -> int | None:
    """Return the lag over all partitions; None if Spark doesn't report it, as for files."""
    try:
        lags = source_lag(progress)
    except (SparkEosError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return sum(lags.values()) if lags else None
