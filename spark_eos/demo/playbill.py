"""The tables at the end, and the texts below them."""

from typing import Final

from rich.table import Table

from spark_eos.demo.counts import CountsOutcome
from spark_eos.demo.play import Outcome
from spark_eos.verify import Difference

RELAYED: Final = "Two kills in the middle of a batch, then a deleted checkpoint"
COUNTED: Final = "Orders by customer and window: two kills in the middle of a batch"
WHY_TWICE = (
    "Without its checkpoint, Spark's own sink does not know what it has written: it starts again "
    "at startingOffsets. With earliest, as here, it writes orders twice; with latest it loses "
    "some. spark-eos continues from the offsets in its transactions."
)
WHY_COUNTED_TWICE = (
    "Started again with its checkpoint, Spark's own sink writes the killed batch's counts from the "
    "first to the last, those too that are there. spark-eos has staged them in files, and "
    "continues where its transactions have ended."
)


def results(ours: Outcome, sparks: Outcome) -> Table:
    """Returns a table of both outcomes of the first act side by side."""
    table = side_by_side(RELAYED)
    for name, attribute in (
        ("orders in", "orders_in"),
        ("orders out", "orders_out"),
        ("duplicates", "duplicates"),
    ):
        add_numbers(table, name, getattr(ours.tally, attribute), getattr(sparks.tally, attribute))
    add_numbers(
        table, "  of them before the checkpoint's loss", ours.before_loss, sparks.before_loss
    )
    for name, attribute in (
        ("missing", "missing"),
        ("open transactions", "open_transactions"),
        ("group lag", "group_lag"),
    ):
        add_numbers(table, name, getattr(ours.tally, attribute), getattr(sparks.tally, attribute))
    return table


def counts_results(ours: CountsOutcome, sparks: CountsOutcome) -> Table:
    """Returns a table of both outcomes of the second act side by side."""
    table = side_by_side(COUNTED)
    both = (ours.comparison, sparks.comparison)
    add_numbers(table, "counts expected", *(found.rows_expected for found in both))
    add_numbers(table, "counts out", *(found.records_out for found in both))
    for name, kind in (
        ("duplicates", Difference.DUPLICATE),
        ("missing", Difference.MISSING),
        ("unexpected", Difference.UNEXPECTED),
    ):
        add_numbers(table, name, *(found.count(kind) for found in both))
    add_numbers(table, "open transactions", ours.open_transactions, sparks.open_transactions)
    return table


def side_by_side(title: str) -> Table:
    """Returns an empty table with a column for each contender.

    Args:
        title: What stands above it.

    Example:
        >>> table = side_by_side(RELAYED)
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
    """Adds a row; where a number should be 0, its color says whether it is.

    Args:
        table: As `side_by_side` returns it.
        name: What is counted; "orders ..." and "counts ..." are neither good nor bad.
        numbers: One for each contender; None without a consumer group.
    """
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
