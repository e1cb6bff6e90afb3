"""Lists open transactions from all brokers, and has coordinators describe them."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client.error_codes import Code, code_names
from spark_eos._client.kafka_python import DescribeTransactionsRequest, ListTransactionsRequest
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.silent_brokers import SilentBrokers
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import driver_id, id_pattern, id_prefix_of
from spark_eos.acls import Operation, transactional_ids
from spark_eos.errors import KafkaResponseError

_OVER: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is neither committed nor aborted; ``state`` is the broker's term."""

    transactional_id: str
    state: str
    # Milliseconds since 1970 by the broker's clock; None if unknown.
    started_ms: int | None
    # The age at which the broker aborts the transaction.
    timeout_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]

    def age(self, now: float) -> float | None:
        """Return the seconds since the start, by this machine's clock; None if unknown."""
        if self.started_ms is None:
            return None
        # This machine's clock and the broker's may differ.
        return max(0.0, now - self.started_ms / 1000)

    def same_as(self, other: "OpenTransaction") -> bool:
        """Return True if both are the same transaction; state and partitions may differ."""

        def identity(transaction: OpenTransaction) -> tuple[str, int, int, int | None]:
            return (
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.started_ms,
            )

        return identity(self) == identity(other)


def open_transactions(
    connections: Connections,
    pattern: str,
    deadline: Deadline,
    # Skips brokers that don't answer; without it, all brokers must answer.
    silent: SilentBrokers | None = None,
    *,
    producer_ids: Collection[int] = (),
) -> list[str]:
    """Return all transactional ids with an ongoing transaction, from all answering brokers."""
    request = ListTransactionsRequest(
        state_filters=["Ongoing"],
        producer_id_filters=list(producer_ids),
        duration_filter=-1,
        transactional_id_pattern=pattern,
    )
    nodes = connections.brokers

    def attempt() -> list[str]:
        ids: set[str] = set()
        answers = (
            {node: connections.send(request, deadline, node=node) for node in nodes(deadline)}
            if silent is None
            else silent.ask_all(request, deadline)
        )
        for response in answers.values():
            if response.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS:
                raise RetriableError(f"ListTransactions: {code_names([response.error_code])}")
            if response.error_code:
                raise connections.refusal("listing open transactions", response.error_code, ())
            ids.update(state.transactional_id for state in response.transaction_states)
        # Brokers before Kafka 4.1 ignore the pattern, so filter here too.
        return sorted(name for name in ids if re.fullmatch(pattern, name))

    return deadline.attempts("listing open transactions", pause=0.05)(attempt)


def describe_transaction(
    connections: Connections, transactional_id: str, deadline: Deadline
) -> Any:
    """Return a transactional id's ``TransactionState``, as the protocol names it."""
    response = connections.ask_coordinator(
        CoordinatorType.TRANSACTION,
        transactional_id,
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        deadline,
        codes=lambda r: [state.error_code for state in r.transaction_states],
    )
    state = response.transaction_states[0]
    if state.error_code:
        raise connections.refusal(
            f"describing transactional id {transactional_id!r}",
            state.error_code,
            [transactional_ids(id_prefix_of(transactional_id), Operation.DESCRIBE)],
        )
    return state


def lingering_transactions(
    connections: Connections,
    prefix: str,
    group_id: str,
    deadline: Deadline,
    silent: SilentBrokers | None = None,
) -> tuple[OpenTransaction, ...]:
    """Find all open transactions of a query's workers, oldest first."""
    # Brokers silently omit transactions that this client may not describe; this call raises.
    connections.find_coordinator(CoordinatorType.TRANSACTION, driver_id(prefix, group_id), deadline)
    names = open_transactions(connections, id_pattern(prefix, group_id), deadline, silent)
    transactions = (described(connections, name, deadline) for name in names)
    return tuple(
        sorted(
            (transaction for transaction in transactions if transaction is not None),
            key=lambda t: (t.started_ms is None, t.started_ms, t.transactional_id),
        )
    )


def described(
    connections: Connections, transactional_id: str, deadline: Deadline
) -> OpenTransaction | None:
    """Describe a transactional id's open transaction; None if it has since ended."""
    try:
        state = describe_transaction(connections, transactional_id, deadline)
    except KafkaResponseError as error:
        if error.code == Code.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    if state.transaction_state in _OVER:
        # The transaction has ended since it was listed.
        return None
    start = state.transaction_start_time_ms
    return OpenTransaction(
        transactional_id=transactional_id,
        state=state.transaction_state,
        started_ms=start if start >= 0 else None,
        timeout_ms=state.transaction_timeout_ms,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        partitions=tuple(
            sorted(TopicPartition(t.topic, p) for t in state.topics for p in t.partitions)
        ),
    )
