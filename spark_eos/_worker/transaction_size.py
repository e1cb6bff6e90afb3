"""How large a task's transactions are while brokers are slow, or after an outage; no I/O."""

from dataclasses import dataclass, replace
from typing import Any, Final

from spark_eos.options import Transactions

# Three divisions bring the default of 100,000 records down to a single row.
_SHRINK: Final = 64
_GROW: Final = 4
_LIMITS: Final = ("max_records", "max_bytes", "max_ms")


@dataclass(frozen=True)
class TransactionSize:
    """The limits of transactions, as fractions of the limits that the user has set."""

    # The limits are divided by this number.
    divisor: int = 1
    # A task's transactions may grow until the limits are divided by this number.
    least: int = 1

    def limits(self, most: Transactions) -> Transactions:
        """Return the limits of the next transaction."""
        if self.divisor == 1:
            return most
        limits: dict[str, Any] = {
            name: max(1, getattr(most, name) // self.divisor) for name in _LIMITS
        }
        return replace(most, **limits)

    # In a task ----------------------------------------------------------------------------------

    def after(self, seconds: float, most: Transactions) -> "TransactionSize":
        """Return the size after a transaction that took this long to commit."""
        # A transaction that is _GROW times larger may take _GROW times longer. Grow only if such a
        # transaction would still end well before its timeout.
        if self.divisor == self.least or seconds * 1000 * _GROW * _GROW > most.timeout_ms:
            return self
        return self.grown()

    def grown(self) -> "TransactionSize":
        """Return the next larger size, if transactions may grow."""
        return replace(self, divisor=max(self.least, self.divisor // _GROW))

    # Between attempts and batches ---------------------------------------------------------------

    def shrunk(self, most: Transactions, *, outgrown: bool) -> "TransactionSize":
        """Return the size after an attempt that was too slow, perhaps only where it had grown."""
        if outgrown:
            # Transactions of this size succeeded.
            return replace(self, least=self.divisor)
        # Brokers may have been unavailable: if transactions succeed again, they may grow.
        return replace(self, divisor=min(self.divisor * _SHRINK, most.max_records))

    def after_batch(self) -> "TransactionSize":
        """Return the size after a batch that finished in time."""
        divisor = max(1, self.divisor // _GROW)
        return TransactionSize(divisor, min(self.least, divisor))


FULL: Final = TransactionSize()
"""The limits that the user has set."""
