"""Typed requests that read the first and last offsets of partitions."""

# The admin clients of kafka-python and librdkafka offer this too. But they use connections of their
# own, don't answer for partitions without a leader, and don't name the missing ACL.

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from spark_eos._client.error_codes import Code, code_names
from spark_eos._client.kafka_python import IsolationLevel, ListOffsetsRequest, OffsetSpec
from spark_eos._client.printable import listed
from spark_eos._kafka.cluster import by_topic, metadata_request
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.silent_brokers import SilentBrokers
from spark_eos._kafka.topic_partition import Positions, TopicPartition
from spark_eos.acls import ResourceType, describe

# LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
# OFFSET_NOT_AVAILABLE: the leader has moved or was just elected.
_MOVING: Final = frozenset({5, 6, 74, 75, 78})
_GONE: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID})


class EndOffsets(NamedTuple):
    """The first offset that read_committed consumers can't read yet, and the end of the log."""

    last_stable: int
    high_watermark: int


def end_offsets(
    connections: Connections,
    topics: Collection[str],
    deadline: Deadline,
    *,
    # Partitions whose leaders are asked until they answer.
    needed: Collection[TopicPartition] = (),
    silent: SilentBrokers | None = None,
) -> dict[TopicPartition, EndOffsets | None]:
    """Read the ends of all the topics' partitions; None if the leader is missing or silent."""

    def attempt() -> dict[TopicPartition, EndOffsets | None]:
        led = partition_leaders(connections, topics, deadline)
        # Read the high watermarks second, so that they are never older than the stable offsets.
        committed = IsolationLevel.READ_COMMITTED
        stable = _listed(connections, led, deadline, isolation=committed, silent=silent)
        high = _listed(connections, led, deadline, silent=silent)
        _check_answered(needed, stable.keys() & high.keys())
        return {
            partition: EndOffsets(stable[partition], high[partition])
            if partition in stable and partition in high
            else None
            for partition in sorted(led)
        }

    return deadline.attempts("reading end offsets", pause=0.05)(attempt) if topics else {}


def start_offsets(
    connections: Connections,
    topics: Collection[str],
    deadline: Deadline,
    *,
    silent: SilentBrokers | None = None,
) -> Positions:
    """Read the first offsets of all partitions whose leader is neither missing nor silent."""

    def attempt() -> Positions:
        led = partition_leaders(connections, topics, deadline)
        return _listed(connections, led, deadline, OffsetSpec.EARLIEST, silent=silent)

    return deadline.attempts("reading start offsets", pause=0.05)(attempt) if topics else {}


class FirstOffsets:
    """Reads partitions' first offsets repeatedly, and caches the partitions' leaders."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._leaders: dict[TopicPartition, int] = {}

    def of(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Positions:
        """Return the partitions' first offsets, retrying until every partition answers."""

        def attempt() -> Positions:
            if not self._leaders.keys() >= set(partitions):
                topics = {topic for topic, _ in partitions}
                self._leaders = partition_leaders(self._connections, topics, deadline)
            led = {p: self._leaders[p] for p in partitions if p in self._leaders}
            try:
                earliest = _listed(self._connections, led, deadline, OffsetSpec.EARLIEST)
                _check_answered(partitions, earliest)
            except RetriableError:
                self._leaders = {}
                raise
            return earliest

        return deadline.attempts("reading start offsets", pause=0.05)(attempt)


def _check_answered(
    needed: Collection[TopicPartition], answered: Collection[TopicPartition]
) -> None:
    if missing := sorted(set(needed).difference(answered)):
        raise RetriableError(f"no leader has answered for {listed(missing)}")


def partition_leaders(
    connections: Connections, topics: Collection[str], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Ask once for the leaders of all the topics' partitions; -1 means no leader."""
    leaders = {}
    for topic in connections.send(metadata_request(topics), deadline).topics:
        if topic.error_code in _GONE:
            continue
        if topic.error_code in _MOVING:
            raise RetriableError(f"topic {topic.name!r}: {code_names([topic.error_code])}")
        if topic.error_code:
            needed = [describe(ResourceType.TOPIC, topic.name)]
            raise connections.refusal(f"topic {topic.name!r}", topic.error_code, needed)
        for p in topic.partitions:
            leaders[TopicPartition(topic.name, p.partition_index)] = p.leader_id
    return leaders


def _listed(
    connections: Connections,
    leaders: Mapping[TopicPartition, int],
    deadline: Deadline,
    offset: OffsetSpec = OffsetSpec.LATEST,
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    silent: SilentBrokers | None = None,
) -> Positions:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    partition_class = topic_class.ListOffsetsPartition
    requests = {
        node: ListOffsetsRequest(
            isolation_level=int(isolation),
            topics=[
                topic_class(
                    name=topic,
                    partitions=[
                        partition_class(partition_index=index, timestamp=int(offset))
                        for index in indexes
                    ],
                )
                for topic, indexes in own.items()
            ],
            timeout_ms=int(deadline.remaining() * 1000),
            # Earlier versions have no isolation levels.
            min_version=2,
        )
        for node, own in led_by(leaders).items()
    }
    answers = (
        {node: connections.send(request, deadline, node=node) for node, request in requests.items()}
        if silent is None
        else silent.ask(requests, deadline)
    )
    offsets: Positions = {}
    for topic in (topic for answer in answers.values() for topic in answer.topics):
        for p in topic.partitions:
            partition = TopicPartition(topic.name, p.partition_index)
            if p.error_code in _MOVING or p.error_code in _GONE:
                raise RetriableError(f"{partition}: {code_names([p.error_code])}")
            if p.error_code:
                needed = [describe(ResourceType.TOPIC, topic.name)]
                what = f"offsets of {partition}"
                raise connections.refusal(what, p.error_code, needed)
            offsets[partition] = p.offset
    return offsets


def led_by(leaders: Mapping[TopicPartition, int]) -> dict[int, dict[str, list[int]]]:
    """Group partition numbers by leader and topic, without partitions that have no leader."""
    led: dict[int, list[TopicPartition]] = {}
    for partition, leader in leaders.items():
        if leader >= 0:
            led.setdefault(leader, []).append(partition)
    return {node: by_topic(led[node]) for node in sorted(led)}
