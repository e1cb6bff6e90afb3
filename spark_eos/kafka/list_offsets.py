"""Typed calls that ask where partitions begin and end; they change nothing."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from spark_eos.acls import ResourceType, describe
from spark_eos.client.error_codes import Code, code_names, refusal
from spark_eos.kafka.cluster import by_topic
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError

_LATEST: Final = -1
_EARLIEST: Final = -2
# LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
# OFFSET_NOT_AVAILABLE: a leader has moved, or was elected just now.
_MOVING: Final = frozenset({5, 6, 74, 75, 78})
_GONE: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID})


@dataclass(frozen=True)
class EndOffsets:
    """Where a partition ends.

    Attributes:
        last_stable: The first offset that a read_committed consumer can't reach yet.
        high_watermark: The next offset to be written, transactions still open included.
    """

    last_stable: int
    high_watermark: int


def end_offsets(
    wire: Wire, topics: Collection[str], deadline: Deadline
) -> dict[tuple[str, int], EndOffsets | None]:
    """The ends of all partitions of the topics; None for a partition that has no leader now.

    Topics that do not exist are left out, and none is created.

    Raises:
        DeadlineExceededError: A leader gave no answer in time.
        KafkaResponseError: A topic can't be described, or its offsets can't be read.
    """

    def attempt() -> dict[tuple[str, int], EndOffsets | None]:
        leaders = _leaders(wire, topics, deadline)
        stable: dict[tuple[str, int], int] = {}
        high: dict[tuple[str, int], int] = {}
        for node in sorted({leader for leader in leaders.values() if leader >= 0}):
            led = [partition for partition, leader in leaders.items() if leader == node]
            # In this order the high watermark is never the older of the two.
            stable.update(_listed(wire, node, led, IsolationLevel.READ_COMMITTED, deadline))
            high.update(_listed(wire, node, led, IsolationLevel.READ_UNCOMMITTED, deadline))
        return {
            partition: EndOffsets(stable[partition], high[partition])
            if partition in stable and partition in high
            else None
            for partition in sorted(leaders)
        }

    return deadline.attempts("reading end offsets", pause=0.05)(attempt) if topics else {}


def start_offsets(
    wire: Wire,
    topics: Collection[str],
    deadline: Deadline,
    leaders: dict[tuple[str, int], int] | None = None,
) -> dict[tuple[str, int], int]:
    """The first offsets of all partitions of the topics; without those that have no leader now.

    Args:
        wire: The connections.
        topics: Their names.
        deadline: Over all attempts.
        leaders: Node ids that were found before, for whoever asks again and again; brought up to
            date here.

    Raises:
        As `end_offsets`.
    """
    known = {} if leaders is None else leaders

    def attempt() -> dict[tuple[str, int], int]:
        if not set(topics) <= {topic for topic, _ in known}:
            known.update(_leaders(wire, topics, deadline))
        try:
            return listed()
        except RetriableError:
            known.clear()
            raise

    def listed() -> dict[tuple[str, int], int]:
        leaders = {place: node for place, node in known.items() if place[0] in topics}
        found: dict[tuple[str, int], int] = {}
        for node in sorted({leader for leader in leaders.values() if leader >= 0}):
            led = [partition for partition, leader in leaders.items() if leader == node]
            found.update(
                _listed(wire, node, led, IsolationLevel.READ_UNCOMMITTED, deadline, _EARLIEST)
            )
        return found

    return deadline.attempts("reading start offsets", pause=0.05)(attempt) if topics else {}


def _leaders(wire: Wire, topics: Collection[str], deadline: Deadline) -> dict[tuple[str, int], int]:
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    found = {}
    for topic in wire.send(request, deadline).topics:
        if topic.error_code in _GONE:
            continue
        if topic.error_code in _MOVING:
            raise RetriableError(f"topic {topic.name!r}: {code_names([topic.error_code])}")
        if topic.error_code:
            needed = [describe(ResourceType.TOPIC, topic.name)]
            raise refusal(f"topic {topic.name!r}", topic.error_code, needed, wire.grantee)
        for p in topic.partitions:
            found[topic.name, p.partition_index] = p.leader_id
    return found


def _listed(
    wire: Wire,
    node: int,
    partitions: Collection[tuple[str, int]],
    isolation: IsolationLevel,
    deadline: Deadline,
    timestamp: int = _LATEST,
) -> dict[tuple[str, int], int]:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(isolation),
        topics=[
            topic_class(
                name=topic,
                partitions=[
                    topic_class.ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=-1, timestamp=timestamp
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(partitions).items()
        ],
        timeout_ms=int(deadline.remaining() * 1000),
        # Before it there are no isolation levels.
        min_version=2,
    )
    found = {}
    for topic in wire.send(request, deadline, node=node).topics:
        for p in topic.partitions:
            if p.error_code in _MOVING or p.error_code in _GONE:
                raise RetriableError(
                    f"{topic.name}-{p.partition_index}: {code_names([p.error_code])}"
                )
            if p.error_code:
                raise refusal(
                    f"offsets of {topic.name}-{p.partition_index}",
                    p.error_code,
                    [describe(ResourceType.TOPIC, topic.name)],
                    wire.grantee,
                )
            found[topic.name, p.partition_index] = p.offset
    return found
