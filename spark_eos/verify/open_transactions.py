"""Finds open transactions, waits for them to end, and describes those that don't."""

import functools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import CoordinatorType

from spark_eos.acls import Operation, transactional_ids
from spark_eos.errors import VerificationError
from spark_eos.verify.cluster import Cluster, check, error_name
from spark_eos.verify.findings import Position
from spark_eos.verify.partitions import position_in

_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_PAUSE: Final = 0.1
# A key of ``unjudged`` in the JSON document, and therefore part of the public interface.
_SILENT: Final = "brokers that do not answer, whose open transactions are unknown"
_DENIED: Final = kafka_errors.TransactionalIdAuthorizationFailedError.errno
_ENDED: Final = kafka_errors.TransactionalIdNotFoundError.errno


@dataclass(frozen=True, order=True)
class OpenTransaction:
    """A transaction that has not ended; two are equal if they are the same transaction."""

    transactional_id: str
    started_ms: int
    producer_id: int


@dataclass(frozen=True)
class Settled:
    """How far partitions are settled, that is, committed or aborted."""

    ends: Mapping[TopicPartition, int]  # the ends that were waited for
    short: Mapping[TopicPartition, int]  # last stable offsets that stayed below the end
    still_open: Collection[OpenTransaction]  # with the prefix, and open since the wait began
    silent: Collection[str] = ()  # names of brokers that don't answer

    def unjudged(self) -> dict[str, int]:
        """Return the number of brokers whose open transactions are unknown, by reason."""
        return {_SILENT: len(self.silent)} if self.silent else {}

    def notes(self) -> Iterator[str]:
        """Yield a note for the user on brokers that don't answer."""
        if self.silent:
            yield (
                f"broker {', '.join(self.silent)} does not answer: the open transactions that it "
                "coordinates are unknown"
            )

    def held_up(
        self, group_id: str | None, unstable: Iterable[str]
    ) -> list[tuple[tuple[Position, ...], str]]:
        """Return output positions and a text for everything that open transactions hold up."""
        return [
            *(
                (
                    (position_in(partition, stable),),
                    f"last stable offset {stable}, end {self.ends[partition]}",
                )
                for partition, stable in self.short.items()
            ),
            *(
                ((), f"{transaction.transactional_id}, producer id {transaction.producer_id}")
                for transaction in sorted(self.still_open)
            ),
            *(
                ((), f"offset of group {group_id} in {partition} is about to change")
                for partition in unstable
            ),
        ]


def settle(cluster: Cluster, partitions: Collection[TopicPartition], prefix: str | None) -> Settled:
    """Wait for open transactions with the prefix, and for all open ones below the current ends."""
    ends = cluster.ends(partitions)
    still_open = _open_transactions(cluster, prefix)
    until = time.monotonic() + cluster.timeout
    while True:
        stable = cluster.stable_ends(partitions)
        short = {
            partition: stable[partition]
            for partition in partitions
            if stable[partition] < ends[partition]
        }
        if still_open:
            still_open &= _open_transactions(cluster, prefix)
        if not (short or still_open) or time.monotonic() > until:
            return Settled(ends, short, still_open, cluster.silent)
        time.sleep(_PAUSE)


def _open_transactions(cluster: Cluster, prefix: str | None) -> set[OpenTransaction]:
    if prefix is None:
        return set()
    _check_may_describe(cluster, prefix)
    return cluster.ask("open transactions", functools.partial(_listed, cluster, prefix))


def _listed(cluster: Cluster, prefix: str, seconds: float) -> set[OpenTransaction]:
    transactions: set[OpenTransaction] = set()
    listing = ListTransactionsRequest(state_filters=list(_OPEN_STATES))
    for broker, listed in cluster.ask_each(listing).items():
        check(listed.error_code)
        ids = [
            state.transactional_id
            for state in listed.transaction_states
            if state.transactional_id.startswith(prefix)
        ]
        if ids:
            # Ask the same broker, since it coordinates the transactions that it lists.
            describe = DescribeTransactionsRequest(transactional_ids=ids)
            for state in cluster.send(describe, broker, seconds).transaction_states:
                if state.error_code == _ENDED:
                    continue
                check(state.error_code)
                if state.transaction_state in _OPEN_STATES:
                    began = state.transaction_start_time_ms
                    transactions.add(
                        OpenTransaction(state.transactional_id, began, state.producer_id)
                    )
    return transactions


def _check_may_describe(cluster: Cluster, prefix: str) -> None:
    # FindCoordinator needs the same permission, and reports an error if it is missing.
    find = functools.partial(cluster.coordinator, CoordinatorType.TRANSACTION, prefix)
    code = cluster.ask("open transactions", find).error_code
    if code == _DENIED:
        raise VerificationError(
            f"open transactions: {error_name(code)}: finding them needs "
            f"{transactional_ids(prefix, Operation.DESCRIBE)}; spark-eos acls --for verify prints "
            "the command that grants it. A longer prefix, <prefix>/<group>/, needs fewer rights"
        )
