"""A step of the demonstration: a progress bar on a terminal, plain lines elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Step:
    """Shows that a block is running and, with a total, its progress."""

    def __init__(self, console: Console, title: str, total: int | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            *(() if total is None else (MofNCompleteColumn(),)),
            TimeElapsedColumn(),
            TextColumn("[red]{task.fields[remark]}"),
            console=console,
            transient=total is None,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, remark="")
        self.rename(title)

    def __enter__(self) -> "Step":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

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
