"""Open transactions of a query, as their coordinators describe them."""

import time
from dataclasses import dataclass
from typing import Final

from spark_eos.errors import KafkaResponseError
from spark_eos.kafka.connection import CoordinatorType, Wire
from spark_eos.kafka.deadline import Deadline
from spark_eos.kafka.transactional_ids import driver_id, id_pattern
from spark_eos.kafka.transactions import (
    TRANSACTIONAL_ID_NOT_FOUND,
    describe_transaction,
    open_transactions,
)

_OVER: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is neither committed nor aborted.

    Attributes:
        transactional_id: the id of its producer.
        state: the broker's word, such as ``Ongoing``.
        started_ms: when it began by the broker's clock, in milliseconds since 1970; None if the
            broker does not tell.
        timeout_ms: the age at which the broker aborts it by itself, in milliseconds.
        producer_id: the producer's number.
        producer_epoch: the producer's epoch.
        partitions: (topic, partition) pairs that it has written to, ``__consumer_offsets`` too.
    """

    transactional_id: str
    state: str
    started_ms: int | None
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[tuple[str, int], ...]

    def age(self, now: float | None = None) -> float | None:
        """Seconds since it began, by this machine's clock; None if the broker does not tell.

        Args:
            now: seconds since 1970; None for this moment.
        """
        if self.started_ms is None:
            return None
        # The clocks of this machine and of the broker may differ.
        return max(0.0, (time.time() if now is None else now) - self.started_ms / 1000)

    def same_as(self, other: "OpenTransaction") -> bool:
        """Whether both are one transaction, perhaps in another state or with more partitions."""

        def identity(one: OpenTransaction) -> tuple[str, int, int, int | None]:
            return one.transactional_id, one.producer_id, one.producer_epoch, one.started_ms

        return identity(self) == identity(other)


def lingering(
    wire: Wire, prefix: str, group_id: str, deadline: Deadline
) -> tuple[OpenTransaction, ...]:
    """All open transactions of a query's workers, the oldest first. Changes nothing.

    Args:
        wire: the connections.
        prefix: the query's ``transactional_id_prefix``.
        group_id: the query's group.
        deadline: over all calls.

    Raises:
        KafkaResponseError: transactions can't be listed or described.
        AuthorizationError: the right to is missing.
    """
    # Brokers leave out of the list, without a word, what may not be described.
    wire.find_coordinator(CoordinatorType.TRANSACTION, driver_id(prefix, group_id), deadline)
    names = open_transactions(wire, id_pattern(prefix, group_id), deadline)
    found = (_described(wire, name, deadline) for name in names)
    return tuple(
        sorted(
            (transaction for transaction in found if transaction is not None),
            key=lambda t: (t.started_ms is None, t.started_ms, t.transactional_id),
        )
    )


def _described(wire: Wire, transactional_id: str, deadline: Deadline) -> OpenTransaction | None:
    try:
        state = describe_transaction(wire, transactional_id, deadline)
    except KafkaResponseError as error:
        if error.code == TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    if state.transaction_state in _OVER:
        # It ended since it was listed.
        return None
    start = state.transaction_start_time_ms
    return OpenTransaction(
        transactional_id=transactional_id,
        state=state.transaction_state,
        started_ms=start if start >= 0 else None,
        timeout_ms=state.transaction_timeout_ms,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        partitions=tuple(sorted((t.topic, p) for t in state.topics for p in t.partitions)),
    )
