"""Finds transactions that hold back the last stable offset, for read_committed consumers."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client.error_codes import Code
from spark_eos._client.kafka_python import DescribeProducersRequest
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import EndOffsets, led_by, partition_leaders
from spark_eos._kafka.open_transactions import OpenTransaction, described, open_transactions
from spark_eos._kafka.silent_brokers import SilentBrokers
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.errors import UnsupportedBrokerError

_ANY: Final = ".*"


@dataclass(frozen=True)
class BlockedPartition:
    """A partition that read_committed consumers can't read to its end, and why."""

    topic: str
    partition: int
    last_stable: int
    high_watermark: int
    # The producer of the transaction that begins at `last_stable`. None if this client may not
    # read the topic, or if the leader does not answer.
    producer_id: int | None
    # None if the coordinator does not know the transaction or does not answer, or if this client
    # may not describe the transaction.
    transaction: OpenTransaction | None
    may_read: bool


def held_back(
    connections: Connections,
    ends: Mapping[TopicPartition, EndOffsets | None],
    deadline: Deadline,
    silent: SilentBrokers,
) -> tuple[BlockedPartition, ...]:
    """Find the transactions that keep partitions' last stable offsets below their ends."""
    short = {
        partition: end
        for partition, end in ends.items()
        if end and end.last_stable < end.high_watermark
    }
    if not short:
        return ()
    find = deadline.attempts("finding transactions that hold partitions back", pause=0.05)
    answers: dict[TopicPartition, Any] = {}
    with contextlib.suppress(UnsupportedBrokerError):  # brokers before Kafka 2.8
        answers = find(lambda: dict(_producers(connections, short, deadline, silent)))
    answered = {p: answer for p, answer in answers.items() if not answer.error_code}
    holders = {partition: _first_open(answer) for partition, answer in answered.items()}
    ids = {producer_id for _, producer_id in filter(None, holders.values())}
    transactions = _transactions(connections, sorted(ids), deadline, silent)
    blocked = []
    for partition, end in sorted(short.items()):
        holder = holders.get(partition)
        if holder is None and partition in answered:
            # The transaction has ended since the offsets were read, which is normal while a query
            # runs.
            continue
        stable, producer_id = holder or (end.last_stable, None)
        code = answers[partition].error_code if partition in answers else Code.NONE
        blocked.append(
            BlockedPartition(
                *partition,
                last_stable=stable,
                high_watermark=max(stable + 1, end.high_watermark),
                producer_id=producer_id,
                transaction=None if producer_id is None else transactions.get(producer_id),
                may_read=code != Code.TOPIC_AUTHORIZATION_FAILED,
            )
        )
    return tuple(blocked)


def _first_open(answer: Any) -> tuple[int, int] | None:
    """Return the start and producer id of a partition's first open transaction, if any."""
    begun = (
        (int(producer.current_txn_start_offset), int(producer.producer_id))
        for producer in answer.active_producers
        if producer.current_txn_start_offset >= 0
    )
    return min(begun, default=None)


def _producers(
    connections: Connections,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    silent: SilentBrokers,
) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield each partition with its leader's answer about its producers."""
    led = partition_leaders(connections, {topic for topic, _ in partitions}, deadline)
    topic_class = DescribeProducersRequest.TopicRequest
    requests = {
        node: DescribeProducersRequest(
            topics=[topic_class(name=name, partition_indexes=own[name]) for name in own]
        )
        for node, own in led_by({p: led[p] for p in partitions if p in led}).items()
    }
    for response in silent.ask(requests, deadline).values():
        for topic in response.topics:
            for answer in topic.partitions:
                yield TopicPartition(topic.name, answer.partition_index), answer


def _transactions(
    connections: Connections,
    producer_ids: Collection[int],
    deadline: Deadline,
    silent: SilentBrokers,
) -> dict[int, OpenTransaction]:
    if not producer_ids:
        return {}
    try:
        names = open_transactions(connections, _ANY, deadline, silent, producer_ids=producer_ids)
    except UnsupportedBrokerError:  # brokers before Kafka 3.0
        return {}
    transactions = (described(connections, name, deadline) for name in names)
    return {transaction.producer_id: transaction for transaction in transactions if transaction}
