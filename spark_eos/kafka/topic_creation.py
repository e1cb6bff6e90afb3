"""Typed requests that create a topic and wait until it can be used."""

from typing import Any, Final

from kafka.protocol.admin import CreateTopicsRequest

from spark_eos import acls
from spark_eos.acls import Operation
from spark_eos.client.error_codes import is_final, refusal
from spark_eos.client.printable import printable
from spark_eos.errors import AuthorizationError, KafkaResponseError
from spark_eos.kafka.cluster import TopicInfo, topics
from spark_eos.kafka.connection import Wire
from spark_eos.kafka.deadline import Deadline, RetriableError

_TOPIC_ALREADY_EXISTS: Final = 36
# The first version in which -1 stands for the brokers' default replication factor (KIP-464).
_DEFAULT_REPLICAS: Final = 4


def create_topic(
    wire: Wire, name: str, partitions: int, replicas: int | None, deadline: Deadline
) -> bool:
    """Creates a topic; any broker forwards the request to the controller (KIP-590).

    Args:
        wire: The connections.
        name: Name of the topic.
        partitions: Number of partitions.
        replicas: Number of replicas; None for the brokers' ``default.replication.factor``.
        deadline: Limits all attempts together.

    Returns:
        Whether this request created it. False if the topic exists: somebody else was quicker, or
        the answer to an earlier attempt was lost.

    Raises:
        AuthorizationError: The topic may not be created.
        KafkaResponseError: The controller refuses; the text has its reason.
        DeadlineExceededError: No final answer came in time.

    Example::

        create_topic(wire, "spark-eos-progress", 33, None, Deadline(30, "connect_timeout_ms"))
    """
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
            raise _refused(wire, topic)
        return True

    return wire.ask(request, deadline, interpret=interpret)


def _refused(wire: Wire, topic: Any) -> Exception:
    error = refusal(
        f"creating topic {topic.name!r}",
        topic.error_code,
        [acls.create_topic(topic.name)],
        wire.grantee,
    )
    if not is_final(error):
        return RetriableError(str(error))
    if isinstance(error, AuthorizationError) or not topic.error_message:
        return error
    return KafkaResponseError(f"{error}: {printable(topic.error_message)}", error.code)


def await_topic(wire: Wire, name: str, deadline: Deadline, operation: Operation) -> TopicInfo:
    """Waits until the metadata has a topic, and a leader for each of its partitions.

    Args:
        wire: The connections.
        name: Name of the topic.
        deadline: Limits the wait.
        operation: The operation that must be allowed on the topic.

    Raises:
        AuthorizationError: The operation is not allowed.
        DeadlineExceededError: The topic could not be used in time.

    Example::

        await_topic(wire, "spark-eos-progress", Deadline(30, "connect_timeout_ms"), Operation.READ)
    """

    def attempt() -> TopicInfo:
        found = topics(wire, [name], deadline, operation, leaders=True).get(name)
        if found is None:
            raise RetriableError(f"topic {name!r} is not in the metadata")
        return found

    return deadline.attempts(f"waiting for topic {name!r}")(attempt)
