"""Changes to a query's consumer group that do not come from the query.

They use kafka-python: librdkafka's requests of this kind abort the process if a connection is lost
at the wrong moment (librdkafka's issue 4605).
"""

from collections.abc import Iterable, Mapping
from contextlib import closing

import kafka
from kafka import KafkaAdminClient, OffsetAndMetadata
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
)
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.topic_partition import TopicPartition


def positions(offsets: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    """A group's offsets without their texts."""
    return {partition: committed.offset for partition, committed in offsets.items()}


# A new broker's first group waits for the topic that holds its offsets.
_when_there_is_a_coordinator = retry(
    retry=retry_if_exception_type((CoordinatorNotAvailableError, CoordinatorLoadInProgressError)),
    wait=wait_fixed(0.2),
    stop=stop_after_delay(60),
    reraise=True,
)


def _check(answer: Mapping[kafka.TopicPartition, type[KafkaError]]) -> None:
    for error in answer.values():
        if error.errno:
            raise error(str(answer))


@_when_there_is_a_coordinator
def set_offsets(
    bootstrap_servers: str,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    texts: Mapping[TopicPartition, str] | None = None,
) -> None:
    """Sets offsets of a group without members, by topic and partition, with optional texts."""
    wanted = {
        kafka.TopicPartition(*p): OffsetAndMetadata(offset, (texts or {}).get(p, ""), -1)
        for p, offset in offsets.items()
    }
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        _check(admin.alter_group_offsets(group_id, wanted))


@_when_there_is_a_coordinator
def delete_offsets(
    bootstrap_servers: str, group_id: str, partitions: Iterable[TopicPartition]
) -> None:
    """Deletes offsets of a group without members, with the same result as if they had expired."""
    wanted = [kafka.TopicPartition(*partition) for partition in partitions]
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        _check(admin.delete_group_offsets(group_id, wanted))


@_when_there_is_a_coordinator
def delete_group(bootstrap_servers: str, group_id: str) -> None:
    """Deletes a group without members, and its offsets."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        answer = admin.delete_groups([group_id])
    assert answer == {group_id: "OK"}, answer
