"""The demonstration's display: progress bars on a terminal, plain lines elsewhere."""

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
    """Shows progress.

    Args:
        console: The output; it gets bars if it is a terminal, otherwise lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    @contextmanager
    def scene(self, title: str, total: int) -> Iterator[None]:
        """Shows a bar from 0 to ``total`` while the block runs."""
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
        """Updates the scene's progress, with a remark in red."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, remark=remark)

    def retitle(self, title: str) -> None:
        """Changes the scene's title."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=title)
        else:
            self._line(f"{title} …")

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        self._line(f"  {text}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Shows that something without measurable progress runs, such as a start."""
        if not self._console.is_terminal:
            self._line(f"{text} …")
            yield
            return
        with self._console.status(text):
            yield

    def _line(self, text: str) -> None:
        # Files and pipes have no width, so don't wrap lines there.
        self._console.print(text, highlight=False, soft_wrap=not self._console.is_terminal)
