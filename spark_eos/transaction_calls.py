"""Typed calls to transaction coordinators, and offset commits inside a transaction (KIP-1319)."""

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest

from spark_eos.calls import by_topic
from spark_eos.deadline import Again, Deadline
from spark_eos.errors import Code, KafkaResponseError, Verdict, code_names, verdict
from spark_eos.protocol import TxnOffsetCommitRequest
from spark_eos.wire import CoordinatorType, Wire

_BY_NAME = 5
_NO_ID = uuid.UUID(int=0)
_UNKNOWN_TOPIC = {Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION}


@dataclass(frozen=True)
class ProducerIdentity:
    """What a broker knows a transactional producer by."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True)
class MemberIdentity:
    """Who commits offsets: a group member at one of its epochs."""

    member_id: str
    epoch: int
    instance_id: str


def end_transaction(
    wire: Wire, transactional_id: str, transaction_timeout_ms: int, deadline: Deadline
) -> None:
    """Fences the id's producer, whoever it is, and ends what it left open, by InitProducerId.

    Returns once an open transaction is aborted, or one that was being committed is committed.

    Raises:
        KafkaResponseError: the broker refuses the id or the timeout.
    """
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    response = wire.ask_coordinator(
        CoordinatorType.TRANSACTION,
        transactional_id,
        request,
        deadline,
        codes=lambda r: [r.error_code],
        retry=[Code.CONCURRENT_TRANSACTIONS],
    )
    if response.error_code:
        raise KafkaResponseError(
            f"InitProducerId for transactional id {transactional_id!r}: "
            f"{code_names([response.error_code])}",
            response.error_code,
        )


def open_transactions(wire: Wire, pattern: str, deadline: Deadline) -> list[str]:
    """Transactional ids, of all brokers, that have an ongoing transaction.

    Args:
        wire: the connections.
        pattern: a regular expression (RE2) that the whole id matches (KIP-1152).
        deadline: over all brokers.

    Raises:
        KafkaResponseError: a broker can't list its transactions.
    """
    request = ListTransactionsRequest(
        state_filters=["Ongoing"],
        producer_id_filters=[],
        duration_filter=-1,
        transactional_id_pattern=pattern,
    )

    def attempt() -> list[str]:
        found: set[str] = set()
        # Asked for anew each time: a broker that has died does not stay in the list.
        for node in wire.brokers(deadline):
            response = wire.send(request, deadline, node=node)
            if response.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS:
                raise Again(f"ListTransactions: {code_names([response.error_code])}")
            if response.error_code:
                raise KafkaResponseError(
                    f"listing open transactions: {code_names([response.error_code])}",
                    response.error_code,
                )
            found.update(state.transactional_id for state in response.transaction_states)
        # Filtered here as well: brokers before Kafka 4.1 know no patterns.
        return sorted(name for name in found if re.fullmatch(pattern, name))

    return deadline.attempts("listing open transactions", pause=0.05)(attempt)


def producer_identity(wire: Wire, transactional_id: str, deadline: Deadline) -> ProducerIdentity:
    """The producer id and epoch that the coordinator holds for the id.

    Right after a producer's ``init_transactions`` they are that producer's own.
    """
    response = wire.ask_coordinator(
        CoordinatorType.TRANSACTION,
        transactional_id,
        DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        deadline,
        codes=lambda r: [state.error_code for state in r.transaction_states],
    )
    state = response.transaction_states[0]
    if state.error_code:
        raise KafkaResponseError(
            f"describing transactional id {transactional_id!r}: {code_names([state.error_code])}",
            state.error_code,
        )
    return ProducerIdentity(transactional_id, state.producer_id, state.producer_epoch)


def txn_offset_commit(
    wire: Wire,
    group_id: str,
    producer: ProducerIdentity,
    member: MemberIdentity,
    offsets: Mapping[tuple[str, int], int],
    topic_ids: Mapping[str, uuid.UUID | None],
    version: int,
    deadline: Deadline,
    on_lost: Callable[[], None],
    on_unknown_topic: Callable[[Collection[str]], None] | None = None,
) -> dict[tuple[str, int], int]:
    """Commits source offsets inside the producer's open transaction, as one member.

    Repeated within the transaction until there is a definite answer, which is harmless; after
    a lost answer (``on_lost``) the producer's epoch must not be used for another transaction,
    since a late request would join that one.

    Args:
        wire: the connections.
        group_id: the consumer group.
        producer: the producer that has the transaction open.
        member: the member that the partitions are assigned to.
        offsets: next offset to read, by (topic, partition).
        topic_ids: ids of their topics, as far as they are known.
        version: 6 sends topic ids, or names if the id of any topic is not known; 5 sends names.
        deadline: over all attempts.
        on_lost: called for each request whose answer was lost.
        on_unknown_topic: called, before each repetition, with the names of topics that the broker
            does not know (100, or 3 by name); what it raises ends the call.

    Returns:
        Kafka's error code by (topic, partition); only if all are 0 may the transaction commit.

    Raises:
        DeadlineExceededError: no definite answer in time.
    """
    topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition_class = topic_class.TxnOffsetCommitRequestPartition
    grouped = by_topic(offsets)
    ids = {topic: topic_ids.get(topic) or _NO_ID for topic in grouped}
    # All or nothing: one request can't name some topics and give the ids of others.
    sent_version = _BY_NAME if _NO_ID in ids.values() else version
    names = {topic_id: topic for topic, topic_id in ids.items()}
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id_or_member_epoch=member.epoch,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=[
            topic_class(
                name=topic,
                topic_id=ids[topic],
                partitions=[
                    partition_class(
                        partition_index=index,
                        committed_offset=offsets[topic, index],
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in grouped.items()
        ],
        min_version=sent_version,
        max_version=sent_version,
    )

    def by_partition(response: Any) -> dict[tuple[str, int], int]:
        return {
            (topic.name or names[topic.topic_id], p.partition_index): p.error_code
            for topic in response.topics
            for p in topic.partitions
        }

    def retriable(response: Any) -> Iterable[int]:
        found = by_partition(response)
        if verdict(found.values()) not in (Verdict.RETRY, Verdict.REDISCOVER):
            return ()
        unknown = {topic for (topic, _), code in found.items() if code in _UNKNOWN_TOPIC}
        if unknown and on_unknown_topic is not None:
            on_unknown_topic(unknown)
        return found.values()

    response = wire.ask_coordinator(
        CoordinatorType.GROUP,
        group_id,
        request,
        deadline,
        codes=retriable,
        retry=[
            Code.UNKNOWN_TOPIC_ID,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.CONCURRENT_TRANSACTIONS,
            Code.INVALID_TXN_STATE,
        ],
        on_lost=on_lost,
    )
    codes = by_partition(response)
    # An answer that leaves a partition out is no acceptance of it.
    return {partition: codes.get(partition, -1) for partition in offsets}
