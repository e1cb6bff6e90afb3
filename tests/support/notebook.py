"""Runs a notebook in Databricks' source format, with stand-ins for what Databricks provides.

``dbutils`` and ``display`` exist only in Databricks. The stand-ins follow Databricks' documentation
as far as the project's notebook needs them.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession

from support.jobs import ROOT

_HEADER = "# Databricks notebook source\n"
_SEPARATOR = "\n# COMMAND ----------\n"
_MAGIC = re.compile(r"^# MAGIC ?", re.MULTILINE)


class _PythonRestarts(BaseException):
    """Raised to restart Python: the rest of the cell is not run, and all names are lost."""


class _Library:
    def restartPython(self) -> None:  # noqa: N802 - Databricks' name
        raise _PythonRestarts


class _Widgets:
    """Widgets survive a restart of Python; a run's parameters take precedence over defaults."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters
        self._values: dict[str, str] = {}

    def text(self, name: str, defaultValue: str, label: str = "") -> None:  # noqa: N803, ARG002
        self._values.setdefault(name, self._parameters.get(name, defaultValue))

    def get(self, name: str) -> str:
        if name not in self._values:
            raise ValueError(f"InputWidgetNotDefined: no input widget named {name} is defined")
        return self._values[name]

    def removeAll(self) -> None:  # noqa: N802 - Databricks' name
        self._values.clear()


class _FileSystem:
    def mkdirs(self, path: str) -> bool:
        Path(path).mkdir(parents=True, exist_ok=True)
        return True

    def rm(self, path: str, recurse: bool = False) -> bool:  # noqa: FBT001, FBT002
        if recurse:
            shutil.rmtree(path)
        else:
            Path(path).unlink()
        return True


class _Utilities:
    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.library = _Library()
        self.widgets = _Widgets(parameters)
        self.fs = _FileSystem()


@dataclass
class Shown:
    """A notebook's visible results.

    Attributes:
        installed: Arguments of each ``%pip install``.
        tables: Rows of each displayed DataFrame.
        bars: Heights of the bars of each figure.
        lines: Ordinates of the lines of each figure.
        left: Names of the session's streams and widgets at the end.
    """

    installed: list[str] = field(default_factory=list)
    tables: list[list[dict[str, Any]]] = field(default_factory=list)
    bars: list[list[float]] = field(default_factory=list)
    lines: list[list[float]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def display(self, thing: DataFrame | Figure) -> None:
        """Databricks' ``display``, for values that it can show."""
        if isinstance(thing, Figure):
            bars: list[Any] = [bar for axes in thing.axes for bar in axes.patches]
            lines: list[Any] = [line for axes in thing.axes for line in axes.lines]
            self.bars.append([bar.get_height() for bar in bars])
            self.lines.append([y for line in lines for y in line.get_ydata()])
        else:
            self.tables.append([row.asDict() for row in thing.collect()])


def run_notebook(spark: SparkSession, name: str, parameters: Mapping[str, str]) -> Shown:
    """Runs the cells of a notebook in their order."""
    mpl.use("Agg")
    shown, utilities = Shown(), _Utilities(parameters)
    names: dict[str, Any] = {}
    for cell in _cells((ROOT / "notebooks" / f"{name}.py").read_text()):
        # Names that always exist; a restart removes all others.
        names |= {"spark": spark, "dbutils": utilities, "display": shown.display}
        if not cell.startswith("# MAGIC"):
            try:
                # As in a notebook, functions are pickled with everything they need.
                exec(compile(cell, name, "exec"), names)  # noqa: S102 - it is what a notebook is
            except _PythonRestarts:
                names = {}
            names["__name__"] = "__main__"
        elif command := re.match(r"%pip install (.+)", _MAGIC.sub("", cell)):
            shown.installed.append(command[1])
        else:
            assert cell.startswith("# MAGIC %md"), cell
    shown.left = [*map(str, spark.streams.active), *utilities.widgets._values]
    return shown


def _cells(text: str) -> list[str]:
    assert text.startswith(_HEADER)
    return [cell.strip("\n") for cell in text.removeprefix(_HEADER).split(_SEPARATOR)]
