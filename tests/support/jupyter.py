"""Displays a cell's value like Jupyter and Databricks, according to their documentation.

IPython (formatters): ``_ipython_display_`` if defined, otherwise ``_repr_html_``; a display with an
id can be updated later. Databricks: ``displayHTML`` accepts HTML anywhere in a cell.
"""

import ast
import sys
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eos import ExactlyOnceSink
from spark_eos.observability.live_plot import LivePlot
from support.queries import relay, until
from support.sinks import arguments


@dataclass
class Html:
    """``IPython.display.HTML``."""

    data: str


@dataclass
class _Handle:
    """The handle that ``display`` returns; it updates the display."""

    pages: list[str]
    place: int
    exchanged: list[str]

    def update(self, page: Html) -> None:
        self.pages[self.place] = page.data
        self.exchanged.append(page.data)


@dataclass
class Page:
    """A notebook's page."""

    outputs: list[str] = field(default_factory=list)  # the current HTML below the cells
    # all HTML so far that has replaced other HTML
    exchanged: list[str] = field(default_factory=list)

    def display(self, page: Html, *, display_id: bool = False) -> _Handle | None:
        """``IPython.display.display``."""
        self.outputs.append(page.data)
        return _Handle(self.outputs, len(self.outputs) - 1, self.exchanged) if display_id else None

    def run(self, code: str, names: dict[str, Any]) -> None:
        """Runs a cell and shows the value of its last line, if that is an expression."""
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "a cell", "exec"), names)  # noqa: S102 - it is what a notebook is
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "a cell", "eval"), names)  # noqa: S307
            if hasattr(value, "_ipython_display_"):
                value._ipython_display_()
            else:
                self.outputs.append(value._repr_html_())


def jupyter_page(monkeypatch: pytest.MonkeyPatch) -> Page:
    """A page that ``IPython.display`` writes to."""
    page = Page()
    module = ModuleType("IPython.display")
    vars(module).update(HTML=Html, display=page.display)
    ipython = ModuleType("IPython")
    vars(ipython)["version_info"] = (9, 0, 0, "")  # matplotlib asks for this
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    return page


def plot_query(spark: SparkSession, options: dict[str, Any], source: str) -> list[dict[str, Any]]:
    """Runs a query with its plot until everything is read; returns the batches in the plot."""
    plot = LivePlot()
    sink = ExactlyOnceSink(**arguments(**options, on_batch=plot))
    query = sink.write(relay(sink.read(spark, subscribe=source))).start()
    query.processAllAvailable()
    try:
        until(plot.png, lambda: "a picture")
        assert sink.status().lag == 0
    finally:
        query.stop()
        sink.close()
    return [asdict(batch) for batch in plot._batches.values()]
