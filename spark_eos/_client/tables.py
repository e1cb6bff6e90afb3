"""Tables for terminals and notebooks; numbers are never truncated, and long names wrap."""

import io
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.jupyter import JUPYTER_HTML_FORMAT
from rich.table import Table
from rich.terminal_theme import MONOKAI
from rich.text import Text

from spark_eos._client.printable import printable

# Width between two columns: a space on each side, plus the box's separator.
_GAP: Final = 3
# Lines of wrapped names have at least this many characters.
_SHORTEST: Final = 24
# The usual width of a notebook's cell; tables don't get wider, even in a wider cell.
_NOTEBOOK: Final = 115

Value: TypeAlias = str | int | None


class FittingTable:
    """A table, or a list per row if it doesn't fit; columns named ``name>`` hold numbers."""

    def __init__(self, *columns: str, rows: Iterable[Sequence[Value]] = ()) -> None:
        self._names = [name.removesuffix(">") for name in columns]
        self._numeric = [name.endswith(">") for name in columns]
        self._rows: list[Sequence[str]] = []
        for row in rows:
            self.add(*row)

    def add(self, *values: Value) -> None:
        """Add a row: a value for each column, None if it is not known."""
        self._rows.append([*map(_text, values)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = zip(self._names, *self._rows, strict=True)
        whole = [max(map(len, column)) for column in columns]
        least = [
            width if numeric else min(width, _SHORTEST)
            for width, numeric in zip(whole, self._numeric, strict=True)
        ]
        has_room = sum(least) + _GAP * (len(least) - 1) <= options.max_width
        yield self._table(least) if has_room or not self._rows else self._lists()

    def _table(self, least: Sequence[int]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
        for name, numeric, width in zip(self._names, self._numeric, least, strict=True):
            # Wrap names instead of truncating them, so that they can be copied into commands.
            justify: JustifyMethod = "right" if numeric else "left"
            table.add_column(
                name, justify=justify, overflow="fold", no_wrap=numeric, min_width=width
            )
        for row in self._rows:
            # Use Text, because rich would interpret brackets in a str as markup.
            table.add_row(*map(Text, row))
        return table

    def _lists(self) -> Group:
        lists: list[RenderableType] = []
        for row in self._rows:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(no_wrap=True, width=max(map(len, self._names)))
            grid.add_column(overflow="fold")
            for name, value in zip(self._names, row, strict=True):
                grid.add_row(Text(name, style="bold"), Text(value))
            if lists:
                lists.append(Text())
            lists.append(grid)
        return Group(*lists)


def _text(value: Value) -> str:
    if value is None:
        return "-"
    # Clients choose their own ids, which may contain control characters.
    return f"{value:,}" if isinstance(value, int) else printable(value)


def as_html(shown: RenderableType) -> str:
    r"""Render a table for notebooks as a terminal would show it; texts can't become markup."""
    console = Console(file=io.StringIO(), record=True, width=_NOTEBOOK, force_jupyter=False)
    console.print(shown)
    # The colors of this theme are readable in both light and dark notebooks.
    return console.export_html(theme=MONOKAI, code_format=JUPYTER_HTML_FORMAT, inline_styles=True)
