"""Administration of an embedded broker."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_delay,
    wait_fixed,
)

TIMEOUT = 30.0
"""Timeout of one administrative call, in seconds."""
# Seconds before leaders are looked up again: a paused node doesn't answer, and another node may
# have become the leader.
_ATTEMPT: Final = 3.0
Ends = dict[int, int]
"""Offsets by partition number."""
_TIMED_OUT: Final = KafkaError._TIMED_OUT  # noqa: SLF001 - it has no public name
_NOT_YET: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    _TIMED_OUT,
)


def admin_client(address: str) -> AdminClient:
    """Return an admin client that logs nothing when the broker goes away."""
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        # Tests kill and pause brokers on purpose, which librdkafka would report on stderr.
        "log_level": 0,
        "error_cb": lambda _: None,
    }
    return AdminClient(settings)


def answers(admin: AdminClient, node: int) -> bool:
    """Return True if a node serves requests; wait up to a second for its answer."""
    try:
        # The metadata lists a broker only when the broker can host partitions.
        return node in admin.list_topics(timeout=1).brokers
    except KafkaException:
        return False


def create_topic(admin: AdminClient, name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic and wait until it can be used."""
    topic = NewTopic(name, num_partitions=partitions, config=dict(config))
    _once_placed(admin.create_topics, topic)
    await_partitions(admin, name, partitions)


def _once_placed(create: Callable[[list[Any]], Any], new: Any) -> None:
    """Create partitions, as soon as there are brokers for all replicas."""
    # On a busy machine, the controller briefly fences brokers whose heartbeats are late.
    Retrying(
        retry=retry_if_exception(_lacks_brokers),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(TIMEOUT),
        reraise=True,
    )(_created, create, new)


def _created(create: Callable[[list[Any]], Any], new: Any) -> None:
    (future,) = create([new]).values()
    future.result(TIMEOUT)


def _lacks_brokers(error: BaseException) -> bool:
    code = KafkaError.INVALID_REPLICATION_FACTOR
    return isinstance(error, KafkaException) and error.args[0].code() == code


def add_partitions(admin: AdminClient, name: str, total: int) -> None:
    """Increase a topic's number of partitions and wait until they can be used."""
    _once_placed(admin.create_partitions, NewPartitions(name, total))
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
    """Return high watermarks by partition; with read_committed, last stable offsets."""
    return Retrying(
        retry=retry_if_exception(_is_not_yet),
        before_sleep=_refresh,
        wait=wait_fixed(0.1),
        stop=stop_after_delay(TIMEOUT),
        reraise=True,
    )(_end_offsets, admin, topic, partitions, isolation)


def _refresh(state: RetryCallState) -> None:
    """Look up the leaders, which may have changed, before the next attempt."""
    # A closure would keep the client alive until the garbage collector runs.
    admin, topic, *_ = state.args
    with suppress(KafkaException):
        admin.list_topics(topic, _ATTEMPT)


def _end_offsets(
    admin: AdminClient, topic: str, partitions: Collection[int], isolation: IsolationLevel
) -> Ends:
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    offsets = admin.list_offsets(
        {TopicPartition(topic, partition): latest for partition in partitions},
        isolation_level=isolation,
        request_timeout=_ATTEMPT,
    )
    ends = {}
    for at, future in offsets.items():
        # An error raised by `result` would refer to this frame, and the frame, through the future,
        # to the error. The client would then live until the garbage collector runs.
        if (error := future.exception(TIMEOUT)) is not None:
            raise type(error)(*error.args)
        ends[at.partition] = future.result().offset
    # librdkafka returns negative offsets if a node does not answer in time.
    if any(offset < 0 for offset in ends.values()):
        raise KafkaException(KafkaError(_TIMED_OUT, f"ends of {topic}: {ends}"))
    return ends


def _is_not_yet(error: BaseException) -> bool:
    if not isinstance(error, KafkaException):
        return False
    refused = error.args[0]
    return bool(refused.retriable()) or refused.code() in _NOT_YET


def await_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until a topic has `count` usable partitions; 0 waits until the topic is gone."""

    def usable() -> bool:
        # Ask for this topic only: a broker used by many tests has thousands of topics.
        partitions = admin.list_topics(topic, _ATTEMPT).topics[topic].partitions
        if len(partitions) != count or any(p.leader < 0 for p in partitions.values()):
            return False
        # Leaders may start to answer seconds after metadata names them. An idempotent producer
        # must not start earlier: if the first of two batches in flight is refused and the second
        # accepted, the first is out of order forever.
        if partitions:
            _end_offsets(admin, topic, partitions, IsolationLevel.READ_UNCOMMITTED)
        return True

    Retrying(
        retry=retry_if_result(lambda result: not result) | retry_if_exception(_is_not_yet),
        wait=wait_fixed(0.01),
        stop=stop_after_delay(TIMEOUT),
        reraise=True,
    )(usable)
