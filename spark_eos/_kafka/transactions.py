"""Fencing of transactional producers, and offset commits inside a transaction (KIP-1319)."""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from spark_eos._client.error_codes import RETRIED, Code, Verdict, code_name, verdict
from spark_eos._client.kafka_python import InitProducerIdRequest
from spark_eos._kafka.cluster import NO_ID, topics_with_offsets
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.open_transactions import describe_transaction
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactional_ids import id_prefix_of
from spark_eos.acls import Operation, transactional_ids
from spark_eos.errors import SparkEosError

# Versions of TxnOffsetCommit, with topic names and with topic ids (KIP-1319).
BY_NAME: Final = 5
BY_ID: Final = 6
# Kafka calls 134 GROUP_DELETION_FAILED, which is never an answer to this request. The proposal in
# KAFKA-20191 uses the number for partitions that are not assigned to the member.
_UNASSIGNED_PARTITION: Final = 134
# An error names at most this many partitions; a request may have thousands.
_LISTED: Final = 20
_UNKNOWN_TOPIC = {Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION}


@dataclass(frozen=True)
class ProducerIdAndEpoch:
    """How brokers identify a transactional producer; each fencing raises its epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True)
class MemberIdentity:
    """A group member that commits offsets, with its member epoch."""

    member_id: str
    epoch: int
    instance_id: str


class Assignment(NamedTuple):
    """A group member, and the partitions that it may commit at its current epoch."""

    member: MemberIdentity
    partitions: frozenset[TopicPartition]


def fence_producer(
    connections: Connections, transactional_id: str, transaction_timeout_ms: int, deadline: Deadline
) -> ProducerIdAndEpoch:
    """Fence an id's producer with InitProducerId, and wait until its open transaction has ended.

    Returns the identity that fencing created: every later producer has a higher epoch.
    """
    # The open transaction is aborted, or committed if its commit had already begun.
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=transaction_timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )
    response = connections.ask_coordinator(
        CoordinatorType.TRANSACTION,
        transactional_id,
        request,
        deadline,
        codes=lambda r: [r.error_code],
        operation=Operation.WRITE,
        retry=[Code.CONCURRENT_TRANSACTIONS],
    )
    if response.error_code:
        raise connections.refusal(
            f"InitProducerId for transactional id {transactional_id!r}",
            response.error_code,
            [transactional_ids(id_prefix_of(transactional_id), Operation.WRITE)],
        )
    return ProducerIdAndEpoch(transactional_id, response.producer_id, response.producer_epoch)


def producer_id_and_epoch(
    connections: Connections, transactional_id: str, deadline: Deadline
) -> ProducerIdAndEpoch:
    """Ask the coordinator for an id's producer; just after ``init_transactions``, it is our own."""
    state = describe_transaction(connections, transactional_id, deadline)
    return ProducerIdAndEpoch(transactional_id, state.producer_id, state.producer_epoch)


@dataclass(frozen=True)
class OffsetCommitAnswer:
    """A group coordinator's answer to TxnOffsetCommit."""

    # 6 with topic ids, 5 with topic names.
    version: int
    codes: Mapping[TopicPartition, int]

    @property
    def verdict(self) -> Verdict:
        """The verdict on all partitions together; the transaction may commit only if ACCEPTED."""
        return verdict(
            Code.STALE_MEMBER_EPOCH if code == _UNASSIGNED_PARTITION else code
            for code in self.codes.values()
        )

    def __str__(self) -> str:
        refused = [
            f"{partition}: {_name(code)}" for partition, code in sorted(self.codes.items()) if code
        ]
        more = [f"and {len(refused) - _LISTED} more"] if len(refused) > _LISTED else []
        return ", ".join([*refused[:_LISTED], *more])


def _name(code: int) -> str:
    return f"{code} UNASSIGNED_PARTITION" if code == _UNASSIGNED_PARTITION else code_name(code)


def txn_offset_commit(
    connections: Connections,
    group_id: str,
    producer: ProducerIdAndEpoch,
    member: MemberIdentity,
    offsets: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, uuid.UUID | None],
    deadline: Deadline,
    on_lost: Callable[[], None],
    on_unknown_topic: Callable[[Collection[str]], None] | None = None,
    metadata: Mapping[TopicPartition, str] | None = None,
) -> OffsetCommitAnswer:
    """Commit source offsets inside the producer's open transaction, as one group member."""
    # No AddOffsetsToTxn is needed: from version 5 on, the coordinator adds the group itself.
    # Version 6 uses topic ids. Version 5, with topic names, is for coordinators without version 6
    # and for unknown ids. Within the transaction, the request may be repeated until the answer is
    # definite. But after a lost answer (`on_lost`), no other transaction may start with the same
    # producer epoch: a delayed request would become part of it.
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
        # One request can't mix topic names and topic ids.
        max_version=BY_NAME if NO_ID in ids.values() else BY_ID,
    )

    def read(response: Any) -> OffsetCommitAnswer:
        answers = [
            (
                TopicPartition(
                    topic.name
                    if response.version < BY_ID
                    else names.get(topic.topic_id, str(topic.topic_id)),
                    p.partition_index,
                ),
                p.error_code,
            )
            for topic in response.topics
            for p in topic.partitions
        ]
        answered = sorted(partition for partition, _code in answers)
        if answered != sorted(offsets):
            # An answer about other partitions doesn't count as success, whatever its codes say.
            raise SparkEosError(
                f"TxnOffsetCommit v{response.version} for group {group_id!r}: asked about "
                f"{_listed(offsets)}, but the coordinator answered about {_listed(answered)}"
            )
        return OffsetCommitAnswer(response.version, dict(answers))

    def retriable(response: Any) -> Iterable[int]:
        answer = read(response)
        if answer.verdict not in (Verdict.RETRY, Verdict.REDISCOVER):
            return ()
        unknown = {topic for (topic, _), code in answer.codes.items() if code in _UNKNOWN_TOPIC}
        if unknown and on_unknown_topic is not None:
            on_unknown_topic(unknown)
        return answer.codes.values()

    response = connections.ask_coordinator(
        CoordinatorType.GROUP,
        group_id,
        request,
        deadline,
        codes=retriable,
        operation=Operation.READ,
        retry=RETRIED,
        in_words=lambda response: str(read(response)),
        on_lost=on_lost,
    )
    return read(response)


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing"
