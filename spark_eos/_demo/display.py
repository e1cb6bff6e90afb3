"""The display of long work: progress bars on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)


class Step:
    """A step of the demonstration, with a bar if the output is a terminal."""

    def __init__(self, progress: Progress, title: str, total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total, remark="")
        self.rename(title)

    def rename(self, title: str) -> None:
        """Shows another title."""
        self._progress.update(self._task, description=title)
        if self._progress.disable:
            self.print(f"{title} …")

    def reached(self, done: int, remark: str = "") -> None:
        """Moves the bar, with a remark in red."""
        self._progress.update(self._task, completed=done, remark=remark)

    def print(self, text: str) -> None:
        """Prints a line that stays."""
        # Files and pipes have no width, so don't wrap lines there.
        console = self._progress.console
        console.print(text, highlight=False, soft_wrap=self._progress.disable)


class Display:
    """Shows the steps on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str, total: int | None = None) -> Iterator[Step]:
        """Shows a step while the block runs; without a total, only that it runs."""
        count = () if total is None else (MofNCompleteColumn(),)
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            *count,
            TimeElapsedColumn(),
            TextColumn("[red]{task.fields[remark]}"),
            console=self.console,
            transient=total is None,
            disable=not self.console.is_terminal,
        ) as progress:
            yield Step(progress, title, total)
