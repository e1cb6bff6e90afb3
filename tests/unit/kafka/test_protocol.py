"""Messages that kafka-python lacks: all versions, and bytes derived manually."""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from spark_eos._kafka import protocol
from support.pages import page

_MESSAGES = [
    protocol.TxnOffsetCommitRequest,
    protocol.TxnOffsetCommitResponse,
    protocol.ConsumerGroupHeartbeatRequest,
    protocol.ConsumerGroupHeartbeatResponse,
    protocol.ConsumerGroupDescribeRequest,
    protocol.ConsumerGroupDescribeResponse,
]
_NEWEST = {"TxnOffsetCommit": 6, "ConsumerGroupHeartbeat": 1, "ConsumerGroupDescribe": 1}


def _pair(message: Any) -> str:
    return str(message.name).removesuffix("Request").removesuffix("Response")


_VERSIONED = [
    pytest.param(message, version, id=f"{message.name} v{version}")
    for message in _MESSAGES
    for version in range(_NEWEST[_pair(message)] + 1)
]


# Bytes ---------------------------------------------------------------------------------------

_TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
_NO_TAGS = b"\x00"
_NULL = b"\x00"  # the length of a compact string is sent plus one, so that 0 is null

_HEAD = (
    b"\x0etx-orders-001"  # TransactionalId: 13 + 1
    b"\x11order-processors"  # GroupId: 16 + 1
    b"\x00\x00\x00\x00\x00\x00\x00\x00"  # ProducerId: int64 0
    b"\x00\x0c"  # ProducerEpoch: int16 12
    b"\x00\x00\x00\x05"  # GenerationIdOrMemberEpoch: int32 5
    b"\x12consumer-1-abc123"  # MemberId: 17 + 1
    + _NULL  # GroupInstanceId
    + b"\x02"  # Topics: a compact array, 1 + 1
)
_PARTITIONS = (
    b"\x02"  # Partitions: 1 + 1
    b"\x00\x00\x00\x03"  # PartitionIndex: int32 3
    b"\x00\x00\x00\x00\x00\x02\x4b\x6e"  # CommittedOffset: int64 150382
    b"\x00\x00\x00\x0c" + _NULL  # CommittedLeaderEpoch: int32 12  # CommittedMetadata
)
_TAIL = _NO_TAGS * 3  # of the partition, the topic, the request
_BY_NAME = _HEAD + b"\x07orders" + _PARTITIONS + _TAIL  # Name: 6 + 1
_BY_ID = (
    _HEAD
    + b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"  # TopicId: 16 bytes
    + _PARTITIONS
    + _TAIL
)


def _published_example() -> Any:
    message = protocol.TxnOffsetCommitRequest
    topic = message.TxnOffsetCommitRequestTopic
    return message(
        transactional_id="tx-orders-001",
        group_id="order-processors",
        producer_id=0,
        producer_epoch=12,
        generation_id_or_member_epoch=5,
        member_id="consumer-1-abc123",
        group_instance_id=None,
        topics=[
            topic(
                name="orders",
                topic_id=_TOPIC_ID,
                partitions=[
                    topic.TxnOffsetCommitRequestPartition(
                        partition_index=3,
                        committed_offset=150382,
                        committed_leader_epoch=12,
                        committed_metadata=None,
                    )
                ],
            )
        ],
    )


@pytest.mark.parametrize(
    ("version", "expected"),
    [(5, _BY_NAME), (6, _BY_ID)],
    ids=["v5", "v6"],
)
def test_the_published_request_byte_by_byte(version: int, expected: bytes) -> None:
    assert _published_example().encode(version=version) == expected


def test_the_requests_header() -> None:
    request = _published_example()
    request.API_VERSION = 6
    request.with_header(correlation_id=9, client_id="me")
    assert request.encode(header=True) == (
        b"\x00\x1c"  # api key 28
        b"\x00\x06"  # version
        b"\x00\x00\x00\x09"  # correlation id
        b"\x00\x02me" + _NO_TAGS + _BY_ID  # client id: never compact
    )


@pytest.mark.parametrize(
    ("version", "topic", "expected"),
    [(5, b"\x07orders", ("orders", None)), (6, _TOPIC_ID.bytes, ("", _TOPIC_ID))],
    ids=["by name", "by id"],
)
def test_an_answer_byte_by_byte(
    version: int, topic: bytes, expected: tuple[str, uuid.UUID | None]
) -> None:
    content = (
        b"\x00\x00\x00\x07"  # ThrottleTimeMs: int32 7
        b"\x02"  # Topics: 1 + 1
        + topic
        + b"\x03"  # Partitions: 2 + 1
        + (b"\x00\x00\x00\x03" + b"\x00\x00" + _NO_TAGS)  # PartitionIndex 3, ErrorCode 0
        + (b"\x00\x00\x00\x04" + b"\x00\x71" + _NO_TAGS)  # PartitionIndex 4, ErrorCode 113
        + _NO_TAGS * 2  # of the topic, the answer
    )
    answer = protocol.TxnOffsetCommitResponse.decode(content, version=version)
    assert answer.throttle_time_ms == 7
    (found,) = answer.topics
    assert (found.name, found.topic_id) == expected
    assert [(p.partition_index, p.error_code) for p in found.partitions] == [(3, 0), (4, 113)]


def test_a_plain_heartbeat_byte_by_byte() -> None:
    heartbeat = protocol.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=3, subscribed_topic_names=None
    )
    assert heartbeat.encode(version=1) == (
        b"\x02g"  # GroupId
        b"\x02m"  # MemberId
        b"\x00\x00\x00\x03"  # MemberEpoch
        + _NULL * 2  # InstanceId, RackId
        + b"\xff\xff\xff\xff"  # RebalanceTimeoutMs: int32 -1
        + _NULL * 4  # SubscribedTopicNames, -Regex, ServerAssignor, TopicPartitions
        + _NO_TAGS
    )


_ASSIGNED = (
    b"\x01"  # a structure that may be null: 1 is present, -1 is null
    b"\x02"  # TopicPartitions: 1 + 1
    + _TOPIC_ID.bytes
    + b"\x03\x00\x00\x00\x00\x00\x00\x00\x07"  # Partitions: 2 + 1; int32 0 and 7
    + _NO_TAGS * 2  # of the topic's partitions, of the assignment
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\xff", None), (_ASSIGNED, [(_TOPIC_ID, [0, 7])])],
    ids=["no change", "an assignment"],
)
def test_an_answer_to_a_heartbeat_byte_by_byte(
    content: bytes, expected: list[tuple[uuid.UUID, list[int]]] | None
) -> None:
    answer = protocol.ConsumerGroupHeartbeatResponse.decode(
        b"\x00\x00\x00\x00"  # ThrottleTimeMs
        b"\x00\x6e"  # ErrorCode: int16 110
        b"\x05late"  # ErrorMessage
        b"\x02m"  # MemberId
        b"\x00\x00\x00\x04"  # MemberEpoch
        b"\x00\x00\x13\x88" + content + _NO_TAGS,  # HeartbeatIntervalMs: int32 5000
        version=1,
    )
    assert (answer.error_code, answer.error_message, answer.member_id) == (110, "late", "m")
    assert (answer.member_epoch, answer.heartbeat_interval_ms) == (4, 5000)
    found = answer.assignment
    assert expected == (
        None if found is None else [(t.topic_id, t.partitions) for t in found.topic_partitions]
    )


# Fields --------------------------------------------------------------------------------------

# Kafka's own definitions have the same: test_definitions.py.
_SAMPLES: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 77),
    "bool": True,
    "string": "sample",
    "uuid": _TOPIC_ID,
}


def _content(schema: dict[str, Any], version: int | None = None) -> dict[str, Any]:
    """Content for every field, or for those of a version; arrays have one element."""
    content = {}
    for field in schema["fields"]:
        if version is None or _has(field["versions"], version):
            kind = field["type"].removeprefix("[]")
            value = _content(field, version) if "fields" in field else _SAMPLES[kind]
            name = re.sub("(?<!^)(?=[A-Z])", "_", field["name"]).lower()
            content[name] = [value] if field["type"].startswith("[]") else value
    return content


def _has(versions: str, version: int) -> bool:
    first, _, last = versions.partition("-")
    return int(first.removesuffix("+")) <= version <= int(last or 99)


def _object(owner: Any, schema: dict[str, Any], content: dict[str, Any]) -> Any:
    """A message, or a structure that is a class of ``owner``, with the given content."""
    arguments = dict(content)
    for field, (name, value) in zip(schema["fields"], content.items(), strict=True):
        if "fields" in field:
            inner = getattr(owner, field["type"].removeprefix("[]"))
            many = value if isinstance(value, list) else [value]
            found = [_object(inner, field, one) for one in many]
            arguments[name] = found if many is value else found[0]
    return owner(**arguments)


@pytest.mark.parametrize(("message", "version"), _VERSIONED)
def test_each_version_has_its_fields_and_no_other(message: Any, version: int) -> None:
    encoded = _object(message, message.json, _content(message.json)).encode(version=version)
    decoded = message.decode(encoded, version=version)
    assert decoded.to_dict(json=False) == _content(message.json, version)


@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: str(message.name))
def test_no_message_is_of_a_later_version(message: Any) -> None:
    assert message.max_version == _NEWEST[_pair(message)]
    full = _object(message, message.json, _content(message.json))
    with pytest.raises(ValueError, match="Invalid version"):
        full.encode(version=message.max_version + 1)


def test_the_field_table_is_the_schema() -> None:
    table = page("docs/protocol.md").table("TxnOffsetCommit")
    documented = {row["field"]: (row["type"], row["versions"]) for row in table.rows}
    assert documented == dict(_fields(protocol.TxnOffsetCommitRequest.json["fields"]))


def _fields(fields: list[dict[str, Any]], within: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields:
        name = within + field["name"]
        if "fields" in field:
            yield from _fields(field["fields"], f"{name}[].")
        else:
            nullable = "nullable " if "nullableVersions" in field else ""
            yield name, (nullable + field["type"], field["versions"])
