"""Typed requests about the whole cluster: versions, features and topics."""

import socket
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

from spark_eos._client.error_codes import Code, code_names
from spark_eos._client.kafka_python import ApiVersionsRequest, MetadataRequest
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos._kafka.silent_brokers import SilentBrokers
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import Acl, Operation, ResourceType
from spark_eos.errors import KafkaResponseError

_Address = tuple[str, str]
NO_ID: Final = uuid.UUID(int=0)
"""Placeholder for an unknown topic id (KIP-516)."""

_LEADER_NOT_AVAILABLE = 5
_INVALID_TOPIC = 17
# Bits of authorized operations, numbered as in Kafka's AclOperation.
_OPERATIONS: Final = {
    3: Operation.READ,
    4: Operation.WRITE,
    5: Operation.CREATE,
    7: Operation.ALTER,
    8: Operation.DESCRIBE,
    10: Operation.DESCRIBE_CONFIGS,
}


@dataclass(frozen=True)
class BrokerFeatures:
    """A broker's highest versions by API key (KIP-35), and finalized features (KIP-584)."""

    versions: dict[int, int]
    features: dict[str, int]


@dataclass(frozen=True)
class TopicInfo:
    """The current state of a topic; a topic that is deleted and recreated gets another id."""

    name: str
    topic_id: uuid.UUID
    partitions: int

    def __str__(self) -> str:
        return f"topic id {self.topic_id} with {self.partitions} partitions"


def broker_features(connections: Connections, deadline: Deadline) -> BrokerFeatures:
    """Ask a broker for its API versions and the cluster's finalized features."""
    return connections.ask(_versions_request(), deadline, interpret=_features)


def features_of_brokers(silent: SilentBrokers, deadline: Deadline) -> dict[int, BrokerFeatures]:
    """Ask each broker for its API versions; leave out brokers that don't answer."""
    ask = deadline.attempts("asking each broker for its versions", pause=0.05)
    answers = ask(lambda: silent.ask_all(_versions_request(), deadline))
    return {node: _features(answer) for node, answer in answers.items()}


def _versions_request() -> Any:
    return ApiVersionsRequest(
        client_software_name="spark-eos", client_software_version="1", min_version=3
    )


def _features(response: Any) -> BrokerFeatures:
    if response.error_code:
        raise KafkaResponseError(
            f"ApiVersions: {code_names([response.error_code])}", response.error_code
        )
    return BrokerFeatures(
        versions={api.api_key: api.max_version for api in response.api_keys},
        features={f.name: f.max_version_level for f in response.finalized_features or ()},
    )


def cluster_id(connections: Connections, deadline: Deadline) -> str:
    return connections.ask(
        metadata_request([]), deadline, interpret=lambda r: str(r.cluster_id or "")
    )


def topics(
    connections: Connections,
    names: Collection[str] | None,
    deadline: Deadline,
    operation: Operation = Operation.DESCRIBE,
    *,
    leaders: bool = False,
) -> dict[str, TopicInfo]:
    """Look up topics without creating them; leave out topics that don't exist."""
    request = metadata_request(names, operations=operation is not Operation.DESCRIBE)
    # A topic with an invalid name can't exist.
    missing = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, _INVALID_TOPIC}

    def interpret(response: Any) -> dict[str, TopicInfo]:
        topics = {}
        for topic in response.topics:
            if topic.error_code in missing:
                continue
            if topic.error_code == _LEADER_NOT_AVAILABLE:
                raise RetriableError(f"topic {topic.name!r}: {code_names([topic.error_code])}")
            code = topic.error_code
            if not code and operation not in _operations(topic, operation):
                code = Code.TOPIC_AUTHORIZATION_FAILED
            if code:
                acl = Acl(ResourceType.TOPIC, topic.name, operation)
                raise connections.refusal(f"topic {topic.name!r}", code, [acl])
            if names is None and topic.is_internal:
                continue
            without = sum(partition.leader_id < 0 for partition in topic.partitions)
            if leaders and without:
                raise RetriableError(
                    f"topic {topic.name!r}: partitions without a leader: {without}"
                )
            topics[topic.name] = TopicInfo(topic.name, topic.topic_id, len(topic.partitions))
        return topics

    return connections.ask(request, deadline, interpret=interpret)


def granted_acls(
    connections: Connections, wanted: Collection[Acl], deadline: Deadline
) -> dict[Acl, bool]:
    """Return, for each ACL on a topic that exists, whether this client has it."""
    request = metadata_request({acl.name for acl in wanted}, operations=True)
    definite = {Code.NONE, Code.TOPIC_AUTHORIZATION_FAILED}

    def interpret(response: Any) -> dict[Acl, bool]:
        topics = {topic.name: topic for topic in response.topics if topic.error_code in definite}
        return {
            acl: not topic.error_code and acl.operation in _operations(topic, acl.operation)
            for acl in wanted
            if (topic := topics.get(acl.name)) is not None
        }

    return connections.ask(request, deadline, interpret=interpret)


def _operations(topic: Any, *default: Operation) -> set[Operation]:
    """Return the operations that the broker allows on a topic (KIP-430), or the default."""
    if topic.error_code or topic.authorized_operations is None:
        return set(default)
    return {_OPERATIONS[n] for n in topic.authorized_operations if n in _OPERATIONS}


def metadata_request(names: Collection[str] | None, *, operations: bool = False) -> Any:
    return MetadataRequest(
        topics=None
        if names is None
        else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=operations,
    )


Topic = TypeVar("Topic", str, uuid.UUID)


def by_topic(partitions: Iterable[tuple[Topic, int]]) -> dict[Topic, list[int]]:
    """Group partition numbers by topic name or id, both sorted."""
    grouped: dict[Topic, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return {topic: sorted(grouped[topic]) for topic in sorted(grouped)}


def topics_with_offsets(
    topic_class: Any,
    partition_class: Any,
    offsets: Mapping[TopicPartition, int],
    ids: Mapping[str, uuid.UUID],
    metadata: Mapping[TopicPartition, str],
) -> list[Any]:
    """Build the topics of an offset commit request, using that request's own classes."""
    return [
        topic_class(
            name=topic,
            topic_id=ids[topic],
            partitions=[
                partition_class(
                    partition_index=partition.partition,
                    committed_offset=offsets[partition],
                    committed_leader_epoch=-1,
                    committed_metadata=metadata.get(partition, ""),
                )
                for partition in own
            ],
        )
        for topic, own in groupby(sorted(offsets), key=lambda partition: partition.topic)
    ]


def same_cluster(connections: Connections, servers: str, deadline: Deadline) -> bool:
    """Return True if one of ``bootstrap.servers`` is a broker of the connected cluster."""
    theirs = _split(servers)
    ours = _split(connections.bootstrap_servers) | set(
        map(_address, connections.addresses(deadline))
    )
    # Resolve names only if the texts differ, as in "localhost:9092" and "127.0.0.1:9092".
    return not theirs.isdisjoint(ours) or not _resolved(theirs).isdisjoint(_resolved(ours))


def _split(servers: str) -> set[_Address]:
    return {_address(server) for server in servers.split(",") if server.strip()}


def _address(text: str) -> _Address:
    """Parse ``PLAINTEXT://Host:9092`` into host and port, as Kafka's clients do."""
    host, _, port = text.strip().rpartition("://")[2].lower().rpartition(":")
    return host.strip("[]"), port


def _resolved(addresses: Iterable[_Address]) -> set[_Address]:
    known: set[_Address] = set()
    for host, port in addresses:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            continue
        known.update((str(answer[4][0]), port) for answer in answers)
    return known
