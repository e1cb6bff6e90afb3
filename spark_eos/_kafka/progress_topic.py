"""The progress topic, whose committed offsets are a query's progress."""

# The topic contains no records. In a staged query, partition 0 has the staged commit, and each
# other partition has the progress of one file of rows. In a mirrored query, each partition stands
# for a source partition. Offsets belong to a group, so one topic serves all queries of a cluster.

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Final

from spark_eos._kafka import cluster
from spark_eos._kafka.cluster import TopicInfo
from spark_eos._kafka.connection import Connections
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.topic_creation import add_partitions, await_topic, create_topic
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos.acls import Operation
from spark_eos.errors import AuthorizationError, ConfigurationError, KafkaResponseError, WriteError
from spark_eos.options import LEAST_PARTITIONS, ProgressTopic


def free_partitions(topic: str, used: Iterable[TopicPartition], number: int) -> list[int]:
    """Return the lowest progress partitions that a group does not use."""
    # Every run gets the same result. So if two runs pair the same source partitions without
    # knowing of each other, they either choose the same pairs or collide in a progress partition.
    taken = {index for name, index in used if name == topic}
    free = (index for index in range(len(taken) + number) if index not in taken)
    return list(islice(free, number))


def ensure_progress_topic(
    connections: Connections, topic: ProgressTopic, deadline: Deadline, *, partitions: int = 1
) -> TopicInfo:
    """Return the progress topic; create or grow it if needed. Other drivers may do the same."""
    existing = cluster.topics(connections, [topic.name], deadline, Operation.READ).get(topic.name)
    wanted = replace(topic, partitions=max(topic.partitions, partitions))
    if existing is None:
        _create(connections, wanted, deadline)
        # The permission to read the topic can only be checked once it exists.
        existing = await_topic(connections, topic.name, deadline, Operation.READ)
    if existing.partitions < partitions:
        wanted = replace(topic, partitions=partitions)
        with _advising(f"add the partitions: {_command(connections, '--alter', wanted)}"):
            add_partitions(connections, wanted.name, wanted.partitions, deadline)
        existing = await_topic(
            connections, topic.name, deadline, Operation.READ, partitions=partitions
        )
    if existing.partitions < LEAST_PARTITIONS:
        raise ConfigurationError(
            f"progress_topic={topic.name!r} has {existing.partitions} partition, but needs at "
            f"least {LEAST_PARTITIONS}: one for the staged batch, and the others for its rows. "
            f"Add partitions: {_command(connections, '--alter', topic)}"
        )
    return existing


@contextmanager
def _advising(what: str) -> Iterator[None]:
    try:
        yield
    except AuthorizationError as error:
        raise AuthorizationError(f"{error.text}. Or {what}", error.code, error.missing) from error


def _create(connections: Connections, topic: ProgressTopic, deadline: Deadline) -> None:
    command = _command(connections, "--create", topic)
    try:
        with _advising(f"create the topic: {command}"):
            create_topic(connections, topic.name, topic.partitions, topic.replicas, deadline)
    except AuthorizationError:
        raise
    except KafkaResponseError as error:
        raise KafkaResponseError(
            f"progress_topic: {error.text}. Change progress_topic.partitions={topic.partitions} or "
            f"progress_topic.replicas={topic.replicas}, or create the topic another way: {command}",
            error.code,
        ) from error


def _command(connections: Connections, action: str, topic: ProgressTopic) -> str:
    """Return a command for an administrator."""
    options = [action, "--topic", topic.name, "--partitions", str(topic.partitions)]
    if action == "--create" and topic.replicas is not None:
        options += ["--replication-factor", str(topic.replicas)]
    return connections.principal.tool("kafka-topics.sh", *options)


COMMIT_PARTITION: Final = 0
"""The progress partition whose committed offset names the staged batch."""

_ROW_BITS: Final = 32
# Kafka's offsets are signed 64-bit numbers.
_MAX_BATCH: Final = (1 << (62 - _ROW_BITS)) - 1


def first_position(batch_id: int) -> int:
    """Return the position of a batch's first row in any file."""
    if batch_id > _MAX_BATCH:
        raise WriteError(
            f"batch {batch_id} does not fit into an offset (at most {_MAX_BATCH}): continue with "
            "another group_id and another checkpoint_location"
        )
    return batch_id << _ROW_BITS
