"""Typed calls that concern the whole cluster: versions, features and topics."""

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from spark_eos.acls import Acl, Operation, ResourceType
from spark_eos.client.error_codes import Code, code_names, refusal
from spark_eos.errors import KafkaResponseError
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError

NO_ID: Final = uuid.UUID(int=0)
"""What stands for a topic id that is not known (KIP-516)."""

_LEADER_NOT_AVAILABLE = 5
_INVALID_TOPIC = 17
# Bits of authorized operations: numbers of Kafka's AclOperation.
_OPERATIONS: Final = {3: Operation.READ, 4: Operation.WRITE, 8: Operation.DESCRIBE}


@dataclass(frozen=True)
class BrokerFeatures:
    """What a broker speaks (KIP-35) and what its cluster has finalized (KIP-584).

    Attributes:
        versions: Api key to greatest version.
        features: Feature name to finalized level.
    """

    versions: dict[int, int]
    features: dict[str, int]


@dataclass(frozen=True)
class TopicInfo:
    """A topic as its cluster knows it now.

    Attributes:
        name: The topic's name.
        topic_id: Its id; another one if the topic is deleted and created anew.
        partitions: How many partitions it has.
    """

    name: str
    topic_id: uuid.UUID
    partitions: int

    def __str__(self) -> str:
        return f"topic id {self.topic_id} with {self.partitions} partitions"


def broker_features(wire: Wire, deadline: Deadline, *, node: int | None = None) -> BrokerFeatures:
    """Asks a broker, or any, for its versions and the cluster's finalized features."""
    request = ApiVersionsRequest(
        client_software_name="spark-eos", client_software_version="1", min_version=3
    )

    def interpret(response: Any) -> BrokerFeatures:
        if response.error_code:
            raise KafkaResponseError(
                f"ApiVersions: {code_names([response.error_code])}", response.error_code
            )
        return BrokerFeatures(
            versions={api.api_key: api.max_version for api in response.api_keys},
            features={f.name: f.max_version_level for f in response.finalized_features or ()},
        )

    return wire.ask(request, deadline, interpret=interpret, node=node)


def topics(
    wire: Wire,
    names: Collection[str] | None,
    deadline: Deadline,
    operation: Operation = Operation.DESCRIBE,
) -> dict[str, TopicInfo]:
    """Looks topics up, never creating one; topics that do not exist are left out.

    Args:
        wire: The connections.
        names: Topic names, or None for all topics that are not internal and may be described.
        deadline: Over all attempts.
        operation: What they are looked up for.

    Raises:
        AuthorizationError: That is not allowed for a topic of the names.
    """
    request = _metadata_request(names, operations=operation is not Operation.DESCRIBE)
    # A topic can't exist under a name that is not valid.
    missing = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, _INVALID_TOPIC}

    def interpret(response: Any) -> dict[str, TopicInfo]:
        found = {}
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
                raise refusal(f"topic {topic.name!r}", code, [acl], wire.grantee)
            if names is None and topic.is_internal:
                continue
            found[topic.name] = TopicInfo(topic.name, topic.topic_id, len(topic.partitions))
        return found

    return wire.ask(request, deadline, interpret=interpret)


def topics_with_one_replica(wire: Wire, names: Collection[str], deadline: Deadline) -> list[str]:
    """Topics, internal ones too, of which some partition has a single replica; in order.

    Those that do not exist, or that we may not describe, are left out.

    Args:
        wire: The connections.
        names: Topic names.
        deadline: Over all attempts.
    """

    def interpret(response: Any) -> list[str]:
        return sorted(
            topic.name
            for topic in response.topics
            if any(len(partition.replica_nodes) == 1 for partition in topic.partitions)
        )

    return wire.ask(_metadata_request(names), deadline, interpret=interpret)


def missing_acls(wire: Wire, wanted: Collection[Acl], deadline: Deadline) -> list[Acl]:
    """Those of the ACLs on topics that we lack; of topics that do not exist nothing is told.

    Args:
        wire: The connections.
        wanted: ACLs on topics.
        deadline: Over all attempts.
    """
    request = _metadata_request({acl.name for acl in wanted}, operations=True)

    def interpret(response: Any) -> list[Acl]:
        found = {topic.name: topic for topic in response.topics}
        return [
            acl
            for acl in wanted
            if found[acl.name].error_code == Code.TOPIC_AUTHORIZATION_FAILED
            or acl.operation not in _operations(found[acl.name], acl.operation)
        ]

    return wire.ask(request, deadline, interpret=interpret)


def _operations(topic: Any, *otherwise: Operation) -> set[Operation]:
    """What may be done with a topic, as the broker tells it (KIP-430), if it does."""
    if topic.error_code or topic.authorized_operations is None:
        return set(otherwise)
    return {_OPERATIONS[n] for n in topic.authorized_operations if n in _OPERATIONS}


def _metadata_request(names: Collection[str] | None, *, operations: bool = False) -> Any:
    return MetadataRequest(
        topics=None
        if names is None
        else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=operations,
    )


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Partition numbers by topic name, both in order."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped


def topics_with_offsets(
    topic_class: Any,
    partition_class: Any,
    offsets: Mapping[tuple[str, int], int],
    ids: Mapping[str, uuid.UUID],
    metadata: Mapping[tuple[str, int], str],
) -> list[Any]:
    """The topics of a request that commits offsets, made of that request's own classes.

    Args:
        topic_class: Of one topic.
        partition_class: Of one partition of it.
        offsets: Next offset to read, by (topic, partition).
        ids: Each topic's id, or `NO_ID`.
        metadata: A text to store with the offset, by (topic, partition).
    """
    return [
        topic_class(
            name=topic,
            topic_id=ids[topic],
            partitions=[
                partition_class(
                    partition_index=index,
                    committed_offset=offsets[topic, index],
                    committed_leader_epoch=-1,
                    committed_metadata=metadata.get((topic, index), ""),
                )
                for index in indexes
            ],
        )
        for topic, indexes in by_topic(offsets).items()
    ]
