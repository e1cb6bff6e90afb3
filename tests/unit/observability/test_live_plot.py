"""The live plot: what it draws, when, and where."""

import base64
import io
import json
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from spark_eos.observability import live_plot
from spark_eos.observability.live_plot import Batch, LivePlot, picture
from support.jupyter import Page, jupyter_page
from support.queries import until
from support.reports import REPORT, progress


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Each drawn figure."""
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        drawn.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def _panels(figure: Figure) -> dict[str, list[list[float]]]:
    """The values of each panel's series, by label."""
    panels = {}
    for axes in figure.axes:
        lines: list[Any] = list(axes.lines)
        bars: list[Any] = list(axes.patches)
        series = [list(line.get_ydata()) for line in lines]
        panels[axes.get_ylabel()] = series or [[bar.get_height() for bar in bars]]
    return panels


class _Query:
    """A query as Spark presents it, with progress that tests can set."""

    def __init__(self) -> None:
        self.id = uuid.UUID(REPORT.query_id)
        self.isActive = True
        self.recentProgress: list[Any] = []

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self.recentProgress[-1] if self.recentProgress else None

    def add(self, number: int, rows: int, lag: int | None, trigger_ms: int = 100) -> None:
        end = {"a": {"0": 7}}
        spark_progress = progress(end, None if lag is None else {"a": {"0": 7 + lag}})
        document = json.loads(spark_progress.json) | {
            "batchId": number,
            "numInputRows": rows,
            "durationMs": {"triggerExecution": trigger_ms, "addBatch": trigger_ms - 20},
        }
        self.recentProgress.append(type(spark_progress).fromJson(document))


def _report(number: int) -> Any:
    return replace(REPORT, batch_id=number, rows_written=10 * number, milliseconds={"total": 50.5})


# What is drawn ------------------------------------------------------------------------------------


def test_reports_alone_have_no_lag(figures: list[Figure]) -> None:
    plot = LivePlot()
    for number in (1, 2, 3):
        plot(_report(number))
    png = plot.png()
    assert png is not None
    assert _panels(figures[-1]) == {
        "rows written": [[10, 20, 30]],
        "time (ms)": [[50.5, 50.5, 50.5]],
    }
    assert image.imread(io.BytesIO(png)).shape[:2] == (400, 800)


@pytest.mark.parametrize("largest", [0, 1, 2, 7, 1_000])
def test_each_tick_is_another_number(figures: list[Figure], largest: int) -> None:
    picture({0: Batch(rows_written=0, lag=0), 1: Batch(rows_written=largest, lag=largest)})
    for axes in figures[-1].axes:
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert len(labels) > 1
        assert len(set(labels)) == len(labels)


def test_progress_alone(figures: list[Figure]) -> None:
    query = _Query()
    query.add(0, rows=5, lag=12)
    query.add(1, rows=7, lag=0, trigger_ms=200)
    plot = LivePlot(query)  # type: ignore[arg-type]
    plot.png()
    assert _panels(figures[-1]) == {
        "rows read": [[5, 7]],
        "lag (records)": [[12, 0]],
        "time (ms)": [[100, 200], [80, 180]],
    }
    # One more costs one call, several that were missed cost all.
    query.add(2, rows=1, lag=None)
    query.add(3, rows=2, lag=3)
    plot.png()
    panels = _panels(figures[-1])
    assert panels["rows read"] == [[5, 7, 1, 2]]
    assert panels["lag (records)"] == [[12, 0, 3]]


def test_the_sinks_numbers_go_before_sparks(figures: list[Figure]) -> None:
    query, plot = _Query(), LivePlot()
    plot.on_query(query, "g")  # type: ignore[arg-type]
    query.add(1, rows=5, lag=None)
    plot.png()
    plot(_report(1))
    plot.png()
    assert _panels(figures[-1]) == {"rows written": [[10]], "time (ms)": [[100], [50.5]]}


def test_a_look_for_records_that_found_none_is_no_batch() -> None:
    query = _Query()
    query.recentProgress.append(progress(None, None))
    assert LivePlot(query)._repr_html_() == "<div>No batch yet.</div>"  # type: ignore[arg-type]


def test_the_last_hundred_batches(figures: list[Figure]) -> None:
    query, plot = _Query(), LivePlot()
    query.add(0, rows=1, lag=0)
    plot.on_query(query, "g")  # type: ignore[arg-type]
    for number in range(1, 151):
        plot(_report(number))
    plot.png()
    (rows,) = _panels(figures[-1])["rows written"]
    assert rows == [10 * number for number in range(51, 151)]


def test_the_picture_is_legible_in_every_theme() -> None:
    pixels = image.imread(io.BytesIO(picture({0: Batch(rows_written=3)})))
    # Opaque, and white at the edge: the words are never dark on dark.
    assert np.all(pixels[0] == 1)
    assert pixels.min() < 0.2


# When ---------------------------------------------------------------------------------------------


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    """A page of Jupyter."""
    return jupyter_page(monkeypatch)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No test leaves a drawing thread."""
    yield
    until(lambda: not _drawing(), lambda: "the thread's end")


def _drawing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "live-plot"]


def test_jupyter_exchanges_the_picture(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_plot, "_PAUSE", 0.1)
    query, plot = _Query(), LivePlot()
    plot._ipython_display_()
    assert page.outputs == ["<div>No batch yet.</div>"]
    plot.on_query(query, "g")  # type: ignore[arg-type]
    query.add(0, rows=5, lag=1)
    until(lambda: page.exchanged, lambda: "a picture")
    encoded = page.outputs[0].partition("base64,")[2].rpartition('"')[0]
    assert base64.b64decode(encoded).startswith(b"\x89PNG")
    # What has not changed is not drawn again; the query's end is the thread's.
    time.sleep(0.5)
    assert len(page.exchanged) == 1
    query.isActive = False
    until(lambda: not _drawing(), lambda: "the thread's end")
    # A further run of the query.
    plot(_report(1))
    until(lambda: len(page.exchanged) > 1, lambda: "another picture")
    assert len(page.outputs) == 1


@pytest.mark.usefixtures("page")
def test_batches_do_not_wait_for_pictures(
    figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawers: set[str] = set()
    drawing, drawn = threading.Event(), threading.Event()

    def held(batches: Any) -> bytes:
        drawers.add(threading.current_thread().name)
        drawing.set()
        drawn.wait(200)
        return picture(batches)

    plot = LivePlot()
    plot._ipython_display_()
    monkeypatch.setattr(live_plot, "picture", held)
    begun = time.monotonic()
    plot(_report(1))
    assert drawing.wait(60)
    for number in range(2, 60):
        plot(_report(number))
    assert figures == []
    drawn.set()
    until(
        lambda: figures and _panels(figures[-1])["rows written"][0][-1] == 10 * 59,
        lambda: "the last picture",
    )
    assert drawers == {"live-plot"}
    # At most once a second.
    assert len(figures) <= 1 + time.monotonic() - begun


def test_databricks_shows_the_picture_of_the_moment(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    plot = LivePlot()
    plot(_report(1))
    plot._ipython_display_()
    plot(_report(2))
    assert not _drawing()
    (shown,) = page.outputs
    assert shown.startswith("<img ")
    assert not page.exchanged
    # Asked again, it has both.
    assert plot._repr_html_() != shown


# Where --------------------------------------------------------------------------------------------


def test_the_process_of_connects_batches_needs_no_matplotlib(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = pickle.dumps(LivePlot())
    monkeypatch.delitem(sys.modules, "spark_eos.observability.live_plot")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    pickle.loads(text)(REPORT)  # noqa: S301 - made here
    assert "spark_eos.observability.live_plot" not in sys.modules


def test_without_matplotlib_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spark_eos.observability.live_plot")
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        import spark_eos.observability.live_plot  # noqa: F401
