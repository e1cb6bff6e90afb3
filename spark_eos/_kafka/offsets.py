"""Typed requests that fetch and commit a group's offsets outside transactions."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from spark_eos._client.error_codes import Code
from spark_eos._client.kafka_python import OffsetCommitRequest, OffsetFetchRequest
from spark_eos._kafka.cluster import NO_ID, by_topic, topics_with_offsets
from spark_eos._kafka.connection import Connections, CoordinatorType
from spark_eos._kafka.deadline import Deadline
from spark_eos._kafka.offset_metadata import CommittedOffset, is_position
from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._kafka.transactions import MemberIdentity
from spark_eos.acls import Operation, ResourceType, describe

_BY_NAME: Final = 9
# The broker writes a request's offsets as one record batch, limited to message.max.bytes of
# __consumer_offsets (1 MiB by default). One offset takes about _RECORD_BYTES plus its texts.
_REQUEST_BYTES: Final = 256 << 10
_RECORD_BYTES: Final = 100

_Group: Any = OffsetFetchRequest.OffsetFetchRequestGroup
TopicIds = Mapping[str, uuid.UUID | None]


def _versions(ids: TopicIds) -> dict[str, int]:
    """Return the versions of OffsetFetch and OffsetCommit: only 9, by name, if an id is unknown."""
    if NO_ID in ids.values():
        return {"min_version": _BY_NAME, "max_version": _BY_NAME}
    return {"min_version": _BY_NAME}


def group_offsets(
    connections: Connections,
    group_id: str,
    partitions: Iterable[TopicPartition],
    topic_ids: TopicIds,
    deadline: Deadline,
    *,
    member: MemberIdentity | None = None,
    stable: bool = True,
    wait: bool = True,
) -> dict[TopicPartition, CommittedOffset]:
    """Fetch the group's committed offsets once no pending transaction affects them (KIP-447)."""
    grouped = by_topic(partitions)
    ids = {topic: topic_ids.get(topic) or NO_ID for topic in grouped}
    asked = _Group(
        group_id=group_id,
        member_id=None if member is None else member.member_id,
        member_epoch=-1 if member is None else member.epoch,
        topics=[
            _Group.OffsetFetchRequestTopics(
                name=topic, topic_id=ids[topic], partition_indexes=indexes
            )
            for topic, indexes in grouped.items()
        ],
    )
    request = OffsetFetchRequest(groups=[asked], require_stable=stable, **_versions(ids))
    retry = [Code.UNSTABLE_OFFSET_COMMIT] if wait else []
    return _fetched(connections, request, ids, deadline, retry=retry)


def all_group_offsets(
    connections: Connections, group_id: str, deadline: Deadline, *, positions: bool = False
) -> dict[TopicPartition, CommittedOffset]:
    """Fetch all committed offsets of a group, if it exists, ignoring pending transactions."""
    asked = _Group(group_id=group_id, member_id=None, member_epoch=-1, topics=None)
    # Use the last version that answers with topic names. Names need no lookup, and are known even
    # after the topic was deleted.
    request = OffsetFetchRequest(
        groups=[asked], require_stable=False, min_version=8, max_version=_BY_NAME
    )
    return _fetched(connections, request, {}, deadline, positions=positions)


def _fetched(
    connections: Connections,
    request: Any,
    ids: Mapping[str, uuid.UUID],
    deadline: Deadline,
    *,
    retry: Iterable[int] = (),
    positions: bool = False,
) -> dict[TopicPartition, CommittedOffset]:
    group_id, every = request.groups[0].group_id, request.groups[0].topics is None
    response = connections.ask_coordinator(
        CoordinatorType.GROUP, group_id, request, deadline, codes=_codes, retry=retry
    )
    accepted = {Code.NONE, Code.GROUP_ID_NOT_FOUND} if every else {Code.NONE}
    if bad := [code for code in _codes(response) if code not in accepted]:
        needed = [describe(ResourceType.TOPIC, topic) for topic in ids]
        needed.append(describe(ResourceType.GROUP, group_id))
        raise connections.refusal(f"offsets of group {group_id!r}", bad[0], needed)
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        TopicPartition(topic.name or names[topic.topic_id], p.partition_index): CommittedOffset(
            p.committed_offset, p.metadata or ""
        )
        for topic in response.groups[0].topics
        for p in topic.partitions
        # A staged query's published positions are for monitoring only.
        if p.committed_offset >= 0 and (positions or not is_position(p.metadata or ""))
    }


def _codes(response: Any) -> list[int]:
    group = response.groups[0]
    return [group.error_code, *(p.error_code for t in group.topics for p in t.partitions)]


def in_requests(
    offsets: Mapping[TopicPartition, int], metadata: Mapping[TopicPartition, str]
) -> Iterator[dict[TopicPartition, int]]:
    """Divide offsets among requests, each of which the broker can write as one record batch."""
    part: dict[TopicPartition, int] = {}
    size = 0
    for partition, offset in offsets.items():
        record_size = _RECORD_BYTES + len(partition.topic) + len(metadata.get(partition, ""))
        if part and size + record_size > _REQUEST_BYTES:
            yield part
            part, size = {}, 0
        part[partition] = offset
        size += record_size
    if part:
        yield part


def commit_offsets(
    connections: Connections,
    group_id: str,
    member: MemberIdentity | None,
    offsets: Mapping[TopicPartition, int],
    topic_ids: TopicIds,
    deadline: Deadline,
    *,
    metadata: Mapping[TopicPartition, str] | None = None,
    on_lost: Callable[[], None] | None = None,
) -> dict[TopicPartition, int]:
    """Commit offsets outside a transaction; ``member`` is None if the group has no members."""
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    partition_class = topic_class.OffsetCommitRequestPartition
    ids = {topic: topic_ids.get(topic) or NO_ID for topic, _ in offsets}
    names = {topic_id: name for name, topic_id in ids.items()}
    texts = metadata or {}
    codes: dict[TopicPartition, int] = {}
    for part in in_requests(offsets, texts):
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=-1 if member is None else member.epoch,
            member_id="" if member is None else member.member_id,
            group_instance_id=None if member is None else member.instance_id,
            topics=topics_with_offsets(topic_class, partition_class, part, ids, texts),
            **_versions(ids),
        )
        response = connections.ask_coordinator(
            CoordinatorType.GROUP,
            group_id,
            request,
            deadline,
            codes=lambda r: [p.error_code for t in r.topics for p in t.partitions],
            operation=Operation.READ,
            on_lost=on_lost,
        )
        codes |= {
            TopicPartition(topic.name or names[topic.topic_id], p.partition_index): p.error_code
            for topic in response.topics
            for p in topic.partitions
        }
    return codes
