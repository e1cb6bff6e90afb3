"""What a sink made of the orders, counted exactly, and whether that is exactly once."""

from collections.abc import Mapping
from dataclasses import dataclass

from spark_eos.demo.orders import order_id


@dataclass(frozen=True)
class Tally:
    """What a read_committed consumer finds in a target topic at the end.

    Attributes:
        orders_in: Orders produced.
        orders_out: Records in the target.
        duplicates: Records whose order was there already.
        missing: Orders without a record.
        unknown: Distinct orders in the target that nobody has ordered.
        open_transactions: Transactions of the query that are still open.
        group_lag: Orders that the query's consumer group has not committed; None without group.
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
        """Whether each order is there once, and nothing is left undone."""
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
    """Compares what came out with what went in.

    Args:
        orders_in: Number of orders produced, with the ids of 0 to this - 1.
        counts: How often each order id is in the target.
        open_transactions: Transactions of the query that are still open.
        group_lag: Orders that the query's group has not committed.
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
