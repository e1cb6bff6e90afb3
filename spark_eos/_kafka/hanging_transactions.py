"""Advice about hanging transactions, which hold offsets but have no coordinator (KIP-664)."""

from typing import Final

from spark_eos._client.kafka_python import DescribeProducersRequest
from spark_eos._kafka.cluster import metadata_request
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline
from spark_eos.errors import SparkEosError

_OFFSETS: Final = "__consumer_offsets"


def java_hash(text: str) -> int:
    """Returns what Java's ``String.hashCode`` does.

    Example:
        >>> java_hash("spark")
        109638365
    """
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for first, second in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (first << 8 | second)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def offsets_partition(group_id: str, partitions: int) -> int:
    """The partition of ``__consumer_offsets`` that holds a group's offsets."""
    hashed = java_hash(group_id)
    # Kafka's Utils.abs maps the smallest integer to 0.
    return (0 if hashed == -(1 << 31) else abs(hashed)) % partitions


def holder_of_offsets(connections: Connections, group_id: str, deadline: Deadline) -> str:
    """Describes what an operator can do about offsets that stay unstable; changes nothing."""
    place = f"--topic {_OFFSETS} --partition <abs(hashCode of the group id) % partitions>"
    starts: list[tuple[int, int]] = []
    try:
        partition = offsets_partition(group_id, _partitions(connections, deadline))
        place = f"--topic {_OFFSETS} --partition {partition}"
        starts = _open_producers(connections, group_id, partition, deadline)
    except SparkEosError:
        # This client may lack Describe or Read on that topic; the text then says less.
        pass
    found = "".join(
        f" (producer id {producer}, since offset {start})" for producer, start in starts
    )
    start = str(starts[0][1]) if len(starts) == 1 else "<start offset>"
    tool = f"kafka-transactions.sh --bootstrap-server {connections.bootstrap_servers}"
    return (
        f"A transaction that this query may not end holds offsets of group {group_id!r}{found}."
        " If its coordinator has forgotten it (KIP-664), only an administrator can end it: find "
        f"it with `{tool} find-hanging {place}`, end it with `{tool} abort {place} "
        f"--start-offset {start}`, and start again"
    )


def _partitions(connections: Connections, deadline: Deadline) -> int:
    (topic,) = connections.ask(metadata_request([_OFFSETS]), deadline, interpret=lambda r: r.topics)
    if topic.error_code:
        raise SparkEosError(f"{_OFFSETS} can't be described")
    return len(topic.partitions)


def _open_producers(
    connections: Connections, group_id: str, partition: int, deadline: Deadline
) -> list[tuple[int, int]]:
    """Producer id and first offset of each open transaction in the partition."""
    topic_class = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(
        topics=[topic_class(name=_OFFSETS, partition_indexes=[partition])]
    )
    # The group's coordinator leads that partition.
    answer = connections.ask_coordinator(
        CoordinatorType.GROUP,
        group_id,
        request,
        deadline,
        codes=lambda response: [p.error_code for t in response.topics for p in t.partitions],
    )
    return [
        (producer.producer_id, producer.current_txn_start_offset)
        for topic in answer.topics
        for found in topic.partitions
        for producer in found.active_producers
        if producer.current_txn_start_offset >= 0
    ]
