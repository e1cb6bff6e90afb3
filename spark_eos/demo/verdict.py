"""Counts what a sink wrote, and decides whether that is exactly once."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_eos.demo.orders import order_id


@dataclass(frozen=True)
class Tally:
    """The content of a target topic at the end, as a read_committed consumer sees it.

    Attributes:
        orders_in: Number of orders produced.
        orders_out: Number of records in the target.
        duplicates: Number of records after the first of the same order.
        missing: Number of orders without a record.
        unknown: Number of distinct order ids in the target that were never produced.
        open_transactions: Number of the query's transactions that are still open.
        group_lag: Number of orders that the query's consumer group has not committed; None
            without a group.
    """

    orders_in: int
    orders_out: int
    duplicates: int
    missing: int
    unknown: int
    open_transactions: int
    group_lag: int | None

    @property
    def exactly_once(self) -> bool:
        """Whether each order was written once, and no transaction or lag is left."""
        return self.orders_out == self.orders_in and not any(
            (
                self.duplicates,
                self.missing,
                self.unknown,
                self.open_transactions,
                self.group_lag,
            )
        )


def tally(
    orders_in: int,
    counts: Mapping[str, int],
    *,
    open_transactions: int = 0,
    group_lag: int | None = None,
) -> Tally:
    """Compares the output with the input.

    Args:
        orders_in: Number of orders produced, with the ids of 0 to ``orders_in`` - 1.
        counts: Number of records in the target, by order id.
        open_transactions: Number of the query's transactions that are still open.
        group_lag: Number of orders that the query's group has not committed.
    """
    ordered = {order_id(number) for number in range(orders_in)}
    orders_out = sum(counts.values())
    found = {identity for identity, count in counts.items() if count > 0}
    return Tally(
        orders_in=orders_in,
        orders_out=orders_out,
        duplicates=orders_out - len(found),
        missing=len(ordered - found),
        unknown=len(found - ordered),
        open_transactions=open_transactions,
        group_lag=group_lag,
    )
