"""Which transactions hold back partitions' last stable offsets, for read_committed consumers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos._client.error_codes import Code
from spark_eos._client.kafka_python import DescribeProducersRequest
from spark_eos._kafka.cluster import by_topic
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.list_offsets import EndOffsets, partition_leaders
from spark_eos._kafka.open_transactions import OpenTransaction, described, open_transactions

_ANY: Final = ".*"


@dataclass(frozen=True)
class HeldBack:
    """A partition that read_committed consumers can't read to its end, and what holds them back.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        last_stable: The offset that they can't read past.
        high_watermark: The end of the log.
        producer_id: Producer id of the transaction that begins at ``last_stable``; None if this
            client may not read the topic, or the transaction has ended meanwhile.
        transaction: The transaction; None if its coordinator does not know it, or this client may
            not describe its transactional id.
        may_read: Whether this client may read the topic, which asking for producers needs.
    """

    topic: str
    partition: int
    last_stable: int
    high_watermark: int
    producer_id: int | None
    transaction: OpenTransaction | None
    may_read: bool


def held_back(
    connections: Connections, ends: Mapping[tuple[str, int], EndOffsets | None], deadline: Deadline
) -> tuple[HeldBack, ...]:
    """Finds what holds back the partitions whose last stable offset is below their end."""
    short = {
        place: end for place, end in ends.items() if end and end.last_stable < end.high_watermark
    }
    if not short:
        return ()
    find = deadline.attempts("finding what holds partitions back", pause=0.05)
    answers = find(lambda: dict(_producers(connections, short, deadline)))
    first = {
        place: int(producer.producer_id)
        for place, answer in answers.items()
        for producer in answer.active_producers
        if producer.current_txn_start_offset == short[place].last_stable
    }
    transactions = _transactions(connections, sorted(set(first.values())), deadline)
    return tuple(
        HeldBack(
            *place,
            last_stable=end.last_stable,
            high_watermark=end.high_watermark,
            producer_id=first.get(place),
            transaction=transactions.get(first.get(place, -1)),
            may_read=place not in answers
            or answers[place].error_code != Code.TOPIC_AUTHORIZATION_FAILED,
        )
        for place, end in sorted(short.items())
    )


def _producers(
    connections: Connections, places: Collection[tuple[str, int]], deadline: Deadline
) -> Iterator[tuple[tuple[str, int], Any]]:
    """The leaders' answers about the producers of partitions, by partition."""
    led = partition_leaders(connections, {topic for topic, _ in places}, deadline)
    topic_class = DescribeProducersRequest.TopicRequest
    for node in sorted({led[place] for place in places if led.get(place, -1) >= 0}):
        own = by_topic(place for place in places if led.get(place) == node)
        topics = [topic_class(name=name, partition_indexes=own[name]) for name in own]
        request = DescribeProducersRequest(topics=topics)
        for topic in connections.send(request, deadline, node=node).topics:
            for answer in topic.partitions:
                yield (topic.name, answer.partition_index), answer


def _transactions(
    connections: Connections, producer_ids: Collection[int], deadline: Deadline
) -> dict[int, OpenTransaction]:
    if not producer_ids:
        return {}
    names = open_transactions(connections, _ANY, deadline, producer_ids=producer_ids)
    found = (described(connections, name, deadline) for name in names)
    return {transaction.producer_id: transaction for transaction in found if transaction}
