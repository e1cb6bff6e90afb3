"""How large a task's transactions are while brokers are slow, or after an outage; pure."""

from dataclasses import dataclass, replace
from typing import Any, Final

from spark_eos.options import Transactions

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

    def after(self, seconds: float, most: Transactions) -> "TransactionSize":
        """Return the size after a transaction that committed within so many seconds."""
        # The next transaction may take as many times longer as it is larger, and must be far from
        # its timeout even then.
        if seconds * 1000 * _GROW * _GROW > most.timeout_ms:
            return self
        return self.grown()

    def grown(self) -> "TransactionSize":
        """Return the next larger size."""
        return replace(self, divisor=max(self.least, self.divisor // _GROW))


FULL: Final = TransactionSize()
"""The limits that the user has set."""
