"""The messages that kafka-python lacks: bytes worked out by hand, and all versions of each."""

import functools
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_eos._kafka import protocol

_MESSAGES = [
    protocol.TxnOffsetCommitRequest,
    protocol.TxnOffsetCommitResponse,
    protocol.ConsumerGroupHeartbeatRequest,
    protocol.ConsumerGroupHeartbeatResponse,
    protocol.ConsumerGroupDescribeRequest,
    protocol.ConsumerGroupDescribeResponse,
]
_NEWEST = {"TxnOffsetCommit": 6, "ConsumerGroupHeartbeat": 1, "ConsumerGroupDescribe": 1}
_API_KEYS = {"TxnOffsetCommit": 28, "ConsumerGroupHeartbeat": 68, "ConsumerGroupDescribe": 69}


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
# Version 2: no member, nothing compact, nothing tagged.
_CLASSIC = (
    b"\x00\x0dtx-orders-001"
    b"\x00\x10order-processors"
    b"\x00\x00\x00\x00\x00\x00\x00\x00"  # ProducerId
    b"\x00\x0c"  # ProducerEpoch
    b"\x00\x00\x00\x01"  # Topics
    b"\x00\x06orders"
    b"\x00\x00\x00\x01"  # Partitions
    b"\x00\x00\x00\x03"
    b"\x00\x00\x00\x00\x00\x02\x4b\x6e"
    b"\x00\x00\x00\x0c"  # CommittedLeaderEpoch
    b"\xff\xff"  # CommittedMetadata: length -1 is null
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


@pytest.mark.proves(
    "request-transactionalid",
    "request-groupid",
    "request-producerid",
    "request-producerepoch",
    "request-generationidormemberepoch",
    "request-memberid",
    "request-groupinstanceid",
    "request-partitionindex",
    "request-committedoffset",
    "request-committedleaderepoch",
    "request-committedmetadata",
)
@pytest.mark.proves("request-topics-name", case="v5]")
@pytest.mark.proves("request-topics-topicid", case="v6]")
@pytest.mark.parametrize(
    ("version", "expected"),
    [(2, _CLASSIC), (3, _BY_NAME), (4, _BY_NAME), (5, _BY_NAME), (6, _BY_ID)],
    ids=["v2", "v3", "v4", "v5", "v6"],
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


@pytest.mark.proves("request-answer")
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


@pytest.mark.proves("group-heartbeat-bytes")
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


@pytest.mark.proves("group-heartbeat-bytes")
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

# Fields that some version lacks, with the first and the last version that has them.
_PARTIAL: dict[str, dict[str, tuple[int, int]]] = {
    "TxnOffsetCommitRequest": {
        "GenerationIdOrMemberEpoch": (3, 6),
        "MemberId": (3, 6),
        "GroupInstanceId": (3, 6),
        "Topics.Name": (0, 5),
        "Topics.TopicId": (6, 6),
        "Topics.Partitions.CommittedLeaderEpoch": (2, 6),
    },
    "TxnOffsetCommitResponse": {"Topics.Name": (0, 5), "Topics.TopicId": (6, 6)},
    "ConsumerGroupHeartbeatRequest": {"SubscribedTopicRegex": (1, 1)},
    "ConsumerGroupDescribeResponse": {"Groups.Members.MemberType": (1, 1)},
}
_SAMPLES: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 77),
    "bool": True,
    "string": "sample",
    "uuid": _TOPIC_ID,
}
_LIMITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _build(owner: Any, schema: dict[str, Any], value: Any) -> Any:
    """A message of every field in the schema, or a structure in it; ``value`` gives the leaves.

    Args:
        owner: the class that has the classes of the schema's structures.
        schema: the message's JSON schema, or a field's.
        value: called with each field that holds no structure.
    """
    arguments = {}
    for field in schema["fields"]:
        kind = field["type"].removeprefix("[]")
        if "fields" in field:
            found = _build(getattr(owner, kind), field, value)
            found = [found] if field["type"].startswith("[]") else found
        else:
            found = value(field)
        arguments[_snake(field["name"])] = found
    return owner(**arguments)


def _leaves(found: Any, schema: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Fields that hold no structure, by their path; of arrays the first element's."""
    leaves = {}
    for field in schema["fields"]:
        value = getattr(found, _snake(field["name"]))
        name = f"{path}{field['name']}"
        if "fields" in field:
            value = value[0] if field["type"].startswith("[]") else value
            leaves.update(_leaves(value, field, f"{name}."))
        else:
            leaves[name] = value
    return leaves


def _sample(field: dict[str, Any]) -> Any:
    value = _SAMPLES[field["type"].removeprefix("[]")]
    return [value] if field["type"].startswith("[]") else value


@pytest.mark.proves("request-field-versions")
@pytest.mark.parametrize(("message", "version"), _VERSIONED)
def test_each_version_has_its_fields_and_no_other(message: Any, version: int) -> None:
    full = _build(message, message.json, _sample)
    decoded = message.decode(full.encode(version=version), version=version)
    sent = _leaves(full, message.json)
    arrived = _leaves(decoded, message.json)
    lacking = {path for path in sent if arrived[path] != sent[path]}
    partial = _PARTIAL.get(message.name, {})
    assert partial.keys() <= sent.keys()
    assert lacking == {
        path for path, (first, last) in partial.items() if not first <= version <= last
    }


@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: str(message.name))
def test_keys_and_versions(message: Any) -> None:
    assert _API_KEYS[_pair(message)] == message.API_KEY
    assert message.max_version == _NEWEST[_pair(message)]
    with pytest.raises(ValueError, match="Invalid version"):
        _build(message, message.json, _sample).encode(version=message.max_version + 1)
    # The first version whose strings are compact and whose structures end with tagged fields.
    flexible = [v for v in range(message.max_version + 1) if message.flexible_version_q(v)]
    assert flexible[0] == (3 if _pair(message) == "TxnOffsetCommit" else 0)


# Round trips ---------------------------------------------------------------------------------


def _values(field: dict[str, Any], version: int) -> st.SearchStrategy[Any]:
    kind = field["type"].removeprefix("[]")
    each: st.SearchStrategy[Any]
    if "fields" in field:
        each = _structures(field, version)
    elif kind in _LIMITS:
        each = st.integers(-(2 ** _LIMITS[kind]), 2 ** _LIMITS[kind] - 1)
    elif kind == "uuid":
        each = st.uuids()
    elif kind == "bool":
        each = st.booleans()
    else:
        # Long enough for a compact length of two bytes.
        each = st.text(max_size=20) | st.just("x" * 200)
    found = st.lists(each, max_size=3) if field["type"].startswith("[]") else each
    nullable = field.get("nullableVersions")
    if nullable is not None and version >= int(nullable.removesuffix("+")):
        return st.none() | found
    return found


def _structures(schema: dict[str, Any], version: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            _snake(field["name"]): _values(field, version)
            for field in schema["fields"]
            if _has(field["versions"], version)
        }
    )


def _has(versions: str, version: int) -> bool:
    first, _, last = versions.partition("-")
    return int(first.removesuffix("+")) <= version <= int(last or 99)


def _object(owner: Any, schema: dict[str, Any], content: dict[str, Any]) -> Any:
    """The message, or structure, with the given content."""
    kinds = {_snake(field["name"]): field for field in schema["fields"]}
    arguments = {}
    for name, value in content.items():
        field = kinds[name]
        if "fields" in field and value is not None:
            inner = getattr(owner, field["type"].removeprefix("[]"))
            arguments[name] = (
                [_object(inner, field, each) for each in value]
                if isinstance(value, list)
                else _object(inner, field, value)
            )
        else:
            arguments[name] = value
    return owner(**arguments)


@functools.cache
def _contents(message: Any, version: int) -> st.SearchStrategy[dict[str, Any]]:
    return _structures(message.json, version)


@pytest.mark.proves("request-round-trip")
@pytest.mark.parametrize(("message", "version"), _VERSIONED)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_messages_survive_the_wire(message: Any, version: int, data: st.DataObject) -> None:
    content = data.draw(_contents(message, version))
    encoded = _object(message, message.json, content).encode(version=version)
    assert message.decode(encoded, version=version).to_dict(json=False) == content
