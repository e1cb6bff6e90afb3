"""Administration of an embedded broker."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from tenacity import (
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

TIMEOUT = 30.0
"""Timeout of one administrative call, in seconds."""
Ends = dict[int, int]
"""Offset by partition number."""
_NOT_YET: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)


def admin_client(address: str) -> AdminClient:
    """Return a client for administration that logs nothing when the broker goes away."""
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        # Brokers are killed and paused on purpose here, which librdkafka would report on stderr.
        "log_level": 0,
        "error_cb": lambda _: None,
    }
    return AdminClient(settings)


def answers(admin: AdminClient, node: int) -> bool:
    """Return whether a node serves requests, within a second."""
    try:
        # The metadata lists a broker only once it can host partitions.
        return node in admin.list_topics(timeout=1).brokers
    except KafkaException:
        return False


def create_topic(admin: AdminClient, name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic and wait until it can be used."""
    topic = NewTopic(name, num_partitions=partitions, config=dict(config))
    admin.create_topics([topic])[name].result(TIMEOUT)
    await_partitions(admin, name, partitions)


def add_partitions(admin: AdminClient, name: str, total: int) -> None:
    """Increase a topic's number of partitions and wait until they can be used."""
    admin.create_partitions([NewPartitions(name, total)])[name].result(TIMEOUT)
    await_partitions(admin, name, total)


def delete_topic(admin: AdminClient, name: str) -> None:
    """Delete a topic and wait until it is gone."""
    admin.delete_topics([name])[name].result(TIMEOUT)
    await_partitions(admin, name, 0)


def end_offsets(
    admin: AdminClient,
    topic: str,
    partitions: Collection[int],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Ends:
    """Return high watermarks by partition, or with read_committed last stable offsets."""
    # Leaders may change meanwhile.
    return Retrying(
        retry=retry_if_exception(_is_not_yet),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(TIMEOUT),
        reraise=True,
    )(_end_offsets, admin, topic, partitions, isolation)


def _end_offsets(
    admin: AdminClient, topic: str, partitions: Collection[int], isolation: IsolationLevel
) -> Ends:
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    found = admin.list_offsets(
        {TopicPartition(topic, partition): latest for partition in partitions},
        isolation_level=isolation,
        request_timeout=TIMEOUT,
    )
    return {at.partition: future.result(TIMEOUT).offset for at, future in found.items()}


def _are_led(admin: AdminClient, topic: str, count: int) -> bool:
    """Whether leaders answer, which they may do seconds after metadata names them."""
    # An idempotent producer must not come earlier: if the first of two batches on their way is
    # refused and the second accepted, the first is out of order for ever.
    if not count:
        return True
    try:
        _end_offsets(admin, topic, range(count), IsolationLevel.READ_UNCOMMITTED)
    except KafkaException as error:
        if _is_not_yet(error):
            return False
        raise
    return True


def _is_not_yet(error: BaseException) -> bool:
    if not isinstance(error, KafkaException):
        return False
    refused = error.args[0]
    return bool(refused.retriable()) or refused.code() in _NOT_YET


def await_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until a topic has `count` usable partitions; 0 waits until the topic is gone."""

    def usable() -> bool:
        # Not of all topics: a broker of many tests has thousands.
        partitions = admin.list_topics(topic, TIMEOUT).topics[topic].partitions.values()
        return (
            len(partitions) == count
            and all(p.leader >= 0 for p in partitions)
            and _are_led(admin, topic, count)
        )

    Retrying(
        retry=retry_if_result(lambda result: not result),
        wait=wait_fixed(0.01),
        stop=stop_after_delay(TIMEOUT),
        reraise=True,
    )(usable)
