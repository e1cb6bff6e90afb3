"""A query's output and final state, compared with what is expected."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from spark_eos.verify import Comparison, Difference, Verdict


@dataclass(frozen=True)
class Report:
    """A query's final state, and its target compared with the expected rows."""

    comparison: Comparison
    duplicates_before_loss: int | None = None  # of the checkpoint; None if it was not lost
    open_transactions: int = 0
    group_lag: int | None = None  # orders not committed by its group; None without a group

    @property
    def exactly_once(self) -> bool:
        """True if each expected row is there once, no other row is, and no work is left."""
        unfinished = self.open_transactions or self.group_lag
        return self.comparison.verdict is Verdict.SOUND and not unfinished


def table(title: str, rows: str, expected: str, reports: Sequence[Report]) -> Table:
    """The reports of spark-eos and of Spark's own sink, side by side.

    ``rows`` names what is counted; ``expected`` names what should be there.
    """
    found = side_by_side(title)
    add_numbers(found, f"{rows} {expected}", *(one.comparison.rows_expected for one in reports))
    add_numbers(found, f"{rows} out", *(one.comparison.records_out for one in reports))
    for kind in (Difference.DUPLICATE, Difference.MISSING, Difference.UNEXPECTED):
        add_numbers(found, kind.value, *(one.comparison.count(kind) for one in reports))
        before = [one.duplicates_before_loss for one in reports]
        if kind is Difference.DUPLICATE and any(one is not None for one in before):
            add_numbers(found, "  of them before the checkpoint's loss", *before)
    add_numbers(found, "open transactions", *(one.open_transactions for one in reports))
    lags = [one.group_lag for one in reports]
    if any(lag is not None for lag in lags):
        add_numbers(found, "group lag", *lags)
    return found


def side_by_side(title: str) -> Table:
    """An empty table with a column for each sink.

    Example:
        >>> table = side_by_side("One run")
        >>> add_numbers(table, "duplicates", 0, 131_206)
        >>> table.row_count
        1
    """
    table = Table(title=title)
    table.add_column("")
    table.add_column("spark-eos", justify="right")
    table.add_column("Spark's own sink", justify="right")
    return table


def add_numbers(table: Table, name: str, *numbers: int | None) -> None:
    """Adds a row; numbers that should be 0 are colored accordingly."""
    neutral = name.startswith(("orders", "counts"))
    table.add_row(
        name,
        *(
            "no group"
            if number is None
            else f"{number:,}"
            if neutral
            else f"[{'red' if number else 'green'}]{number:,}[/]"
            for number in numbers
        ),
    )
