"""Changes to a consumer group that somebody else than its query makes.

With kafka-python: librdkafka's requests of this kind abort the process if a connection is lost at
the wrong moment (librdkafka's issue 4605).
"""

from collections.abc import Iterable, Mapping
from contextlib import closing

from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition


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


def delete_offsets(
    bootstrap_servers: str, group_id: str, places: Iterable[tuple[str, int]]
) -> None:
    """Deletes offsets of a group without members: what is left then is as if they had expired."""
    wanted = [TopicPartition(*place) for place in places]
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        answer = admin.delete_group_offsets(group_id, wanted)
    assert not any(error.errno for error in answer.values()), answer


def delete_group(bootstrap_servers: str, group_id: str) -> None:
    """Deletes a group without members, and its offsets."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admin:
        answer = admin.delete_groups([group_id])
    assert answer == {group_id: "OK"}, answer
