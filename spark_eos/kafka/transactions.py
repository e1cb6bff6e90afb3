"""Typed calls to transaction coordinators, and offset commits inside a transaction (KIP-1319)."""

import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest

from spark_eos.acls import Operation, transactional_ids
from spark_eos.client.error_codes import (
    RETRIED,
    Code,
    Verdict,
    code_name,
    code_names,
    refusal,
    verdict,
)
from spark_eos.errors import SparkEosError
from spark_eos.kafka.cluster import NO_ID, topics_with_offsets
from spark_eos.kafka.connection import CoordinatorType, Wire
from spark_eos.kafka.deadline import Deadline, RetriableError
from spark_eos.kafka.protocol import TxnOffsetCommitRequest
from spark_eos.kafka.transactional_ids import id_prefix_of

logger = logging.getLogger(__name__)

# Seconds after which a broker that does not answer counts as one that is away.
_PATIENCE: Final = 3.0
TRANSACTIONAL_ID_NOT_FOUND: Final = 105
"""The coordinator's answer about an id that it does not know, or has forgotten."""

# Versions of TxnOffsetCommit, by what they call topics (KIP-1319).
BY_NAME: Final = 5
BY_ID: Final = 6
_UNKNOWN_TOPIC = {Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION}


@dataclass(frozen=True)
class ProducerIdAndEpoch:
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


def fence_producer(
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
        raise refusal(
            f"InitProducerId for transactional id {transactional_id!r}",
            response.error_code,
            [transactional_ids(id_prefix_of(transactional_id), Operation.WRITE)],
            wire.grantee,
        )


def open_transactions(
    wire: Wire,
    pattern: str,
    deadline: Deadline,
    on_silent: Callable[[str], None] = logger.warning,
) -> list[str]:
    """Transactional ids that have an ongoing transaction, of all brokers that answer.

    A broker that can't be reached for some seconds is passed over: metadata may name it for long
    after it has died, by when others coordinate its transactions.

    Args:
        wire: the connections.
        pattern: a regular expression (RE2) that the whole id matches (KIP-1152).
        deadline: over all brokers.
        on_silent: called if brokers are passed over, with a text that names them.

    Raises:
        KafkaResponseError: a broker can't list its transactions.
        DeadlineExceededError: no broker answers.
    """
    request = ListTransactionsRequest(
        state_filters=["Ongoing"],
        producer_id_filters=[],
        duration_filter=-1,
        transactional_id_pattern=pattern,
    )
    patience = Deadline(min(_PATIENCE, deadline.remaining()), deadline.setting)

    def attempt() -> list[str]:
        found: set[str] = set()
        silent = []
        # Asked for anew each time: a broker that has died does not stay in the list.
        nodes = wire.brokers(deadline)
        within = deadline if patience.expired else patience
        for node, response in zip(nodes, wire.send_to_each(request, nodes, within), strict=True):
            if response is None:
                silent.append(wire.address(node))
                continue
            if response.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS:
                raise RetriableError(f"ListTransactions: {code_names([response.error_code])}")
            if response.error_code:
                raise refusal("listing open transactions", response.error_code, (), wire.grantee)
            found.update(state.transactional_id for state in response.transaction_states)
        if silent:
            what = f"ListTransactions: broker {', '.join(silent)} does not answer"
            if len(silent) == len(nodes) or not patience.expired:
                raise RetriableError(what)
            on_silent(what)
        # Filtered here as well: brokers before Kafka 4.1 know no patterns.
        return sorted(name for name in found if re.fullmatch(pattern, name))

    return deadline.attempts("listing open transactions", pause=0.05)(attempt)


def describe_transaction(wire: Wire, transactional_id: str, deadline: Deadline) -> Any:
    """What the coordinator knows of the id, as the protocol has it (a ``TransactionState``).

    Raises:
        KafkaResponseError: it can't be described; 105 if the coordinator does not know the id.
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
        raise refusal(
            f"describing transactional id {transactional_id!r}",
            state.error_code,
            [transactional_ids(id_prefix_of(transactional_id), Operation.DESCRIBE)],
            wire.grantee,
        )
    return state


def producer_id_and_epoch(
    wire: Wire, transactional_id: str, deadline: Deadline
) -> ProducerIdAndEpoch:
    """The producer id and epoch that the coordinator holds for the id.

    Right after a producer's ``init_transactions`` they are that producer's own.
    """
    state = describe_transaction(wire, transactional_id, deadline)
    return ProducerIdAndEpoch(transactional_id, state.producer_id, state.producer_epoch)


@dataclass(frozen=True)
class OffsetCommitAnswer:
    """A group coordinator's answer to TxnOffsetCommit.

    Attributes:
        version: of the request that it answers: 6 with topic ids, 5 with names.
        codes: Kafka's error code by (topic, partition), for each that was asked about.
    """

    version: int
    codes: Mapping[tuple[str, int], int]

    @property
    def verdict(self) -> Verdict:
        """Of all partitions together; only if it is ACCEPTED may the transaction commit."""
        return verdict(self.codes.values())

    def __str__(self) -> str:
        return ", ".join(
            f"{topic}-{partition}: {code_name(code)}"
            for (topic, partition), code in sorted(self.codes.items())
            if code
        )


def txn_offset_commit(
    wire: Wire,
    group_id: str,
    producer: ProducerIdAndEpoch,
    member: MemberIdentity,
    offsets: Mapping[tuple[str, int], int],
    topic_ids: Mapping[str, uuid.UUID | None],
    deadline: Deadline,
    on_lost: Callable[[], None],
    on_unknown_topic: Callable[[Collection[str]], None] | None = None,
    metadata: Mapping[tuple[str, int], str] | None = None,
) -> OffsetCommitAnswer:
    """Commits source offsets inside the producer's open transaction, as one member.

    Sent as version 6, with topic ids; as version 5, with names, to a coordinator that speaks no
    newer one, or if the id of any topic is not known.

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
        deadline: over all attempts.
        on_lost: called for each request whose answer was lost.
        on_unknown_topic: called, before each repetition, with the names of topics that the broker
            does not know (100, or 3 by name); what it raises ends the call.
        metadata: a text to store with the offset, by (topic, partition).

    Raises:
        DeadlineExceededError: no definite answer in time.
        SparkEosError: the answer is about other partitions than those asked about.
    """
    topic_class = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition_class = topic_class.TxnOffsetCommitRequestPartition
    ids = {topic: topic_ids.get(topic) or NO_ID for topic, _ in offsets}
    names = {topic_id: topic for topic, topic_id in ids.items()}
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id_or_member_epoch=member.epoch,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=topics_with_offsets(topic_class, partition_class, offsets, ids, metadata or {}),
        min_version=BY_NAME,
        # All or nothing: one request can't name some topics and give the ids of others.
        max_version=BY_NAME if NO_ID in ids.values() else BY_ID,
    )

    def read(response: Any) -> OffsetCommitAnswer:
        found = [
            (
                topic.name
                if response.version < BY_ID
                else names.get(topic.topic_id, str(topic.topic_id)),
                p.partition_index,
                p.error_code,
            )
            for topic in response.topics
            for p in topic.partitions
        ]
        answered = sorted((topic, index) for topic, index, _code in found)
        if answered != sorted(offsets):
            # Whatever its codes say, it is no acceptance of what was asked.
            raise SparkEosError(
                f"TxnOffsetCommit v{response.version} for group {group_id!r}: asked about "
                f"{_listed(offsets)}, the coordinator answers about {_listed(answered)}"
            )
        codes = {(topic, index): code for topic, index, code in found}
        return OffsetCommitAnswer(response.version, codes)

    def retriable(response: Any) -> Iterable[int]:
        answer = read(response)
        if answer.verdict not in (Verdict.RETRY, Verdict.REDISCOVER):
            return ()
        unknown = {topic for (topic, _), code in answer.codes.items() if code in _UNKNOWN_TOPIC}
        if unknown and on_unknown_topic is not None:
            on_unknown_topic(unknown)
        return answer.codes.values()

    response = wire.ask_coordinator(
        CoordinatorType.GROUP,
        group_id,
        request,
        deadline,
        codes=retriable,
        retry=RETRIED,
        in_words=lambda response: str(read(response)),
        on_lost=on_lost,
    )
    return read(response)


def _listed(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{index}" for topic, index in sorted(partitions)) or "nothing"
