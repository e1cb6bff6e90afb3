"""Changes to a consumer group that somebody else than its query makes.

With kafka-python: librdkafka's requests of this kind abort the process if a connection is lost at
the wrong moment (librdkafka's issue 4605).
"""

from collections.abc import Iterable, Mapping
from contextlib import closing

from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

# A new broker's first group waits for the topic that holds its offsets.
_when_there_is_a_coordinator = retry(
    retry=retry_if_exception_type((CoordinatorNotAvailableError, CoordinatorLoadInProgressError)),
    wait=wait_fixed(0.2),
    stop=stop_after_delay(60),
    reraise=True,
)


@_when_there_is_a_coordinator
def set_offsets(
    bootstrap_servers: str,
    group_id: str,
    offsets: Mapping[tuple[str, int], int],
    texts: Mapping[tuple[str, int], str] | None = None,
) -> None:
    """Sets offsets of a group without members, by topic and partition; with a text, if given."""
    wanted = {
        TopicPartition(*place): OffsetAndMetadata(offset, (texts or {}).get(place, ""), -1)
        for place, offset in offsets.items()
    }
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        answer = admin.alter_group_offsets(group_id, wanted)
    assert not any(error.errno for error in answer.values()), answer


@_when_there_is_a_coordinator
def delete_offsets(
    bootstrap_servers: str, group_id: str, places: Iterable[tuple[str, int]]
) -> None:
    """Deletes offsets of a group without members: what is left then is as if they had expired."""
    wanted = [TopicPartition(*place) for place in places]
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        answer = admin.delete_group_offsets(group_id, wanted)
    assert not any(error.errno for error in answer.values()), answer


@_when_there_is_a_coordinator
def delete_group(bootstrap_servers: str, group_id: str) -> None:
    """Deletes a group without members, and its offsets."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        answer = admin.delete_groups([group_id])
    assert answer == {group_id: "OK"}, answer
