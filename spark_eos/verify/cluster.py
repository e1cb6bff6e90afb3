"""Questions to the cluster: partitions, offsets and open transactions."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from spark_eos.acls import Operation, transactional_ids
from spark_eos.client.error_codes import Code, code_names
from spark_eos.client.settings import ClientSettings
from spark_eos.errors import DeadlineExceededError, TopicNotFoundError, VerificationError
from spark_eos.verify.connections import Connections
from spark_eos.verify.places import Places, Position
from spark_eos.verify.reading import refused

_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_PAUSE: Final = 0.02

COMMITTED: Final = IsolationLevel.READ_COMMITTED
UNCOMMITTED: Final = IsolationLevel.READ_UNCOMMITTED


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that has not ended; two are equal if they are the same transaction.

    Attributes:
        transactional_id: The producer's transactional id.
        producer_id: The producer's id.
        started_ms: Start of the transaction, in milliseconds since 1970.
    """

    transactional_id: str
    producer_id: int
    started_ms: int


class Cluster:
    """Read-only requests to one cluster.

    Args:
        settings: The client settings.
        timeout: Seconds to wait for each answer.

    Attributes:
        settings: The client settings.
    """

    def __init__(self, settings: ClientSettings, timeout: float) -> None:
        self.settings = settings
        self._timeout = timeout
        self._admin = AdminClient(dict(settings.for_consumer()))

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Returns the number of partitions of each topic.

        Raises:
            TopicNotFoundError: A topic does not exist.
            DeadlineExceededError: No broker answers in time.
        """
        return {topic: len(found.partitions) for topic, found in self._described(topics).items()}

    def all_topics(self) -> dict[str, int]:
        """Returns the number of partitions of each topic that the client may describe.

        Raises:
            DeadlineExceededError: No broker answers in time.
        """
        try:
            listed = self._admin.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise self._failed("all topics", error) from error
        return {name: len(topic.partitions) for name, topic in listed.topics.items()}

    def leaders(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """Returns the id of the leading broker of each partition of the topics."""
        return {
            (topic, partition.id): partition.leader.id
            for topic, found in self._described(topics).items()
            for partition in found.partitions
            if partition.leader is not None
        }

    def _described(self, topics: Sequence[str]) -> dict[str, Any]:
        found = {}
        asked = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout
        )
        for topic, future in asked.items():
            found[topic] = self._result(f"topic {topic!r}", future)
        return found

    def lows(self, places: Places, numbers: Iterable[int]) -> dict[int, int]:
        """Returns the first existing offset, by place."""
        return self._offsets(
            places,
            numbers,
            OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
            UNCOMMITTED,
        )

    def ends(
        self, places: Places, numbers: Iterable[int], isolation: IsolationLevel
    ) -> dict[int, int]:
        """Returns the end, by place: the last stable offset if committed, or the high watermark."""
        return self._offsets(
            places,
            numbers,
            OffsetSpec.latest(),  # type: ignore[no-untyped-call]
            isolation,
        )

    def _offsets(
        self, places: Places, numbers: Iterable[int], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[int, int]:
        at_places = places.numbers(numbers)
        asked = self._admin.list_offsets(
            {TopicPartition(*partition): spec for partition in at_places},
            isolation_level=isolation,
            request_timeout=self._timeout,
        )
        return {
            at_places[at.topic, at.partition]: self._result(
                f"offsets of {at.topic}:{at.partition}", future
            ).offset
            for at, future in asked.items()
        }

    def _result(self, what: str, future: "Future[Any]") -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: KafkaException) -> Exception:
        code = error.args[0].code()
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicNotFoundError(f"{what} does not exist")
        if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            return DeadlineExceededError(
                f"{what}: no answer of bootstrap.servers={self.settings.bootstrap_servers!r} "
                f"within {self._timeout:g} s (--timeout)"
            )
        return VerificationError(f"{what}: {refused(error)}")


def open_transactions(connections: Connections, prefix: str) -> set[OpenTransaction]:
    """Finds the open transactions of transactional ids that begin with a prefix.

    Raises:
        VerificationError: The client may not describe these ids; a broker would silently leave
            them out of its list.
    """
    found: set[OpenTransaction] = set()
    _check_may_describe(connections, prefix)
    for broker in connections.brokers():
        listed = connections.send(ListTransactionsRequest(state_filters=list(_OPEN_STATES)), broker)
        ids = [
            one.transactional_id
            for one in listed.transaction_states
            if one.transactional_id.startswith(prefix)
        ]
        if not ids:
            continue
        # The broker that lists a transaction coordinates it.
        answer = connections.send(DescribeTransactionsRequest(transactional_ids=ids), broker)
        found.update(
            OpenTransaction(one.transactional_id, one.producer_id, one.transaction_start_time_ms)
            for one in answer.transaction_states
            if not one.error_code and one.transaction_state in _OPEN_STATES
        )
    return found


def _check_may_describe(connections: Connections, prefix: str) -> None:
    # FindCoordinator needs the same permission, and answers with an error if it is missing.
    find = FindCoordinatorRequest(
        key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=[prefix], min_version=4
    )
    answer = connections.send(find, connections.brokers()[0]).coordinators[0]
    if answer.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        raise VerificationError(
            f"open transactions: {code_names([answer.error_code])}: finding them needs "
            f"{transactional_ids(prefix, Operation.DESCRIBE)}; spark-eos acls --for verify prints "
            "the command that grants it. A longer prefix, <prefix>/<group>/, needs less"
        )


@dataclass(frozen=True)
class Settled:
    """How far partitions are settled, that is, committed or aborted.

    Attributes:
        ends: The ends waited for, by place.
        short: Last stable offset of each place where it stayed below the end.
        hanging: Transactions of the prefix that were open at the beginning and still are.
    """

    ends: Mapping[int, int]
    short: Mapping[int, int]
    hanging: tuple[OpenTransaction, ...]

    def still_open(
        self, places: Places, group_id: str | None, unstable: Iterable[str]
    ) -> list[tuple[tuple[Position, ...], str]]:
        """What transactions that did not end hold up: output positions, and a text.

        Args:
            places: The partitions.
            group_id: The group, if one was given.
            unstable: ``topic:partition`` whose offset of the group is about to change.
        """
        found: list[tuple[tuple[Position, ...], str]] = [
            (
                (Position(*places.partition(place), stable),),
                f"last stable offset {stable}, end {self.ends[place]}",
            )
            for place, stable in sorted(self.short.items())
        ]
        found += [
            ((), f"{one.transactional_id}, producer id {one.producer_id}") for one in self.hanging
        ]
        found += [
            ((), f"offset of group {group_id} in {name} is about to change") for name in unstable
        ]
        return found


def settle(
    cluster: Cluster,
    places: Places,
    numbers: Collection[int],
    transactions: Callable[[], set[OpenTransaction]],
    timeout: float,
) -> Settled:
    """Waits until everything below the current ends of partitions is committed or aborted.

    Args:
        cluster: The cluster.
        places: All partitions.
        numbers: The places to wait for.
        transactions: Function that finds the open transactions of the prefix.
        timeout: Maximum wait in seconds.
    """
    ends = cluster.ends(places, numbers, UNCOMMITTED)
    hanging = transactions()
    until = time.monotonic() + timeout
    while True:
        stable = cluster.ends(places, numbers, COMMITTED)
        short = {place: stable[place] for place, end in ends.items() if stable[place] < end}
        if hanging:
            hanging &= transactions()
        if not (short or hanging) or time.monotonic() > until:
            ordered = sorted(hanging, key=lambda one: (one.transactional_id, one.started_ms))
            return Settled(ends, short, tuple(ordered))
        time.sleep(5 * _PAUSE)
