"""The table at the end, and the text below it."""

from rich.table import Table

from spark_eos.demo.play import Outcome

WHY_TWICE = (
    "Without its checkpoint, Spark's own sink does not know what it has written: it starts again "
    "at startingOffsets. With earliest, as here, it writes orders twice; with latest it loses "
    "some. spark-eos continues from the offsets in its transactions."
)


def results(ours: Outcome, sparks: Outcome) -> Table:
    """Returns a table of both outcomes side by side."""
    table = Table(title="Two kills in the middle of a batch, then a deleted checkpoint")
    table.add_column("")
    table.add_column("spark-eos", justify="right")
    table.add_column("Spark's own sink", justify="right")
    for name, attribute in (
        ("orders in", "orders_in"),
        ("orders out", "orders_out"),
        ("duplicates", "duplicates"),
    ):
        _add(table, name, getattr(ours.tally, attribute), getattr(sparks.tally, attribute))
    _add(table, "  of them before the checkpoint's loss", ours.before_loss, sparks.before_loss)
    for name, attribute in (
        ("missing", "missing"),
        ("open transactions", "open_transactions"),
        ("group lag", "group_lag"),
    ):
        _add(table, name, getattr(ours.tally, attribute), getattr(sparks.tally, attribute))
    return table


def _add(table: Table, name: str, *numbers: int | None) -> None:
    neutral = name.startswith("orders")
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
