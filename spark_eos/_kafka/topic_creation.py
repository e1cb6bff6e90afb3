"""Typed requests that create or grow a topic and wait until it can be used."""

from typing import Any, Final

from spark_eos import acls
from spark_eos._client.error_codes import is_final
from spark_eos._client.kafka_python import CreatePartitionsRequest, CreateTopicsRequest
from spark_eos._client.printable import printable
from spark_eos._kafka.cluster import TopicInfo, topics
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline, RetriableError
from spark_eos.acls import Acl, Operation, ResourceType
from spark_eos.errors import AuthorizationError, KafkaResponseError

_TOPIC_ALREADY_EXISTS: Final = 36
_INVALID_PARTITIONS: Final = 37
# The first version in which -1 stands for the brokers' default replication factor (KIP-464).
_DEFAULT_REPLICAS: Final = 4


def create_topic(
    connections: Connections, name: str, partitions: int, replicas: int | None, deadline: Deadline
) -> bool:
    """Create a topic; return False if it exists. Any broker accepts the request (KIP-590)."""
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=-1 if replicas is None else replicas,
                assignments=[],
                configs=[],
            )
        ],
        timeout_ms=int(deadline.remaining() * 1000),
        min_version=_DEFAULT_REPLICAS,
    )

    def interpret(response: Any) -> bool:
        (topic,) = response.topics
        if topic.error_code == _TOPIC_ALREADY_EXISTS:
            return False
        if topic.error_code:
            acl = acls.create_topic(topic.name)
            raise _refused(connections, f"creating topic {topic.name!r}", topic, acl)
        return True

    return connections.ask(request, deadline, interpret=interpret)


def add_partitions(connections: Connections, name: str, total: int, deadline: Deadline) -> None:
    """Add partitions to a topic; do nothing if the topic already has them."""
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=total, assignments=None)
        ],
        timeout_ms=int(deadline.remaining() * 1000),
        validate_only=False,
    )

    def interpret(response: Any) -> None:
        (topic,) = response.results
        # Another client has added the partitions, or the controller did before its answer was lost.
        if topic.error_code not in (0, _INVALID_PARTITIONS):
            acl = Acl(ResourceType.TOPIC, name, Operation.ALTER)
            raise _refused(connections, f"adding partitions to topic {name!r}", topic, acl)

    connections.ask(request, deadline, interpret=interpret)


def _refused(connections: Connections, what: str, topic: Any, acl: Acl) -> Exception:
    error = connections.refusal(what, topic.error_code, [acl])
    if not is_final(error):
        return RetriableError(error.text)
    if isinstance(error, AuthorizationError) or not topic.error_message:
        return error
    return KafkaResponseError(f"{error.text}: {printable(topic.error_message)}", error.code)


def await_topic(
    connections: Connections,
    name: str,
    deadline: Deadline,
    operation: Operation,
    *,
    partitions: int = 1,
) -> TopicInfo:
    """Wait until the metadata has a topic, and a leader for each of its partitions."""

    def attempt() -> TopicInfo:
        topic = topics(connections, [name], deadline, operation, leaders=True).get(name)
        if topic is None:
            raise RetriableError(f"topic {name!r} is not in the metadata")
        if topic.partitions < partitions:
            there = topic.partitions
            raise RetriableError(f"topic {name!r} has {there} of {partitions} partitions")
        return topic

    return deadline.attempts(f"waiting for topic {name!r}")(attempt)
