"""What is shown while the demonstration plays: bars on a terminal, elsewhere plain lines."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


class Stage:
    """Shows how far things are.

    Args:
        console: Where to; whether it is a terminal decides between bars and lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @contextmanager
    def scene(self, title: str, total: int) -> Iterator[None]:
        """A bar from 0 to ``total`` for what happens inside."""
        if not self._console.is_terminal:
            self._line(f"{title} …")
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[red]{task.fields[remark]}"),
        )
        with Progress(*columns, console=self._console) as progress:
            self._progress, self._task = progress, progress.add_task(title, total=total, remark="")
            try:
                yield
            finally:
                self._progress = self._task = None

    def reached(self, done: int, remark: str = "") -> None:
        """How far the scene is, and what is not as it should be."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, remark=remark)

    def retitle(self, title: str) -> None:
        """What the scene is about now."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=title)
        else:
            self._line(f"{title} …")

    def note(self, text: str) -> None:
        """A line that stays."""
        self._line(f"  {text}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Something without a measure, such as a start."""
        if not self._console.is_terminal:
            self._line(f"{text} …")
            yield
            return
        with self._console.status(text):
            yield

    def _line(self, text: str) -> None:
        # Files and pipes have no width to wrap at.
        self._console.print(text, highlight=False, soft_wrap=not self._console.is_terminal)
