"""Where records have their schema's id: as Confluent's own serializers put it."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId

from spark_eos.schemas.framing import framed, header_name, header_of, prefix_of, with_header

GUID = uuid.UUID("d17bb2d3-4c1a-4b4c-9b0f-7c6f2f9d7a10")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _found(values: list[bytes | None], headers: Any = None) -> tuple[dict[Any, Any], list[int]]:
    """Rows and payloads by schema, and rows with errors."""
    made = framed(pa.array(values, pa.binary()), headers and pa.array(headers, HEADERS), "value")
    groups: dict[Any, Any] = {}
    for group in made.groups:
        pairs = zip(group.rows.tolist(), group.payloads.to_pylist(), strict=True)
        groups.setdefault(group.key, []).extend(pairs)
    return groups, sorted(made.errors)


def test_what_is_written_is_what_confluents_serializers_write() -> None:
    assert prefix_of(70_000) == SchemaId("AVRO", 70_000).id_to_bytes()
    assert header_of(str(GUID)) == SchemaId("AVRO", None, str(GUID)).guid_to_bytes()


def test_records_are_grouped_by_the_id_before_their_payload() -> None:
    values = [
        prefix_of(7) + b"a",
        None,
        prefix_of(2**31) + b"bb",
        prefix_of(7),
        b"\x01" + GUID.bytes + b"c",
    ]
    groups, errors = _found(values)
    assert groups == {7: [(0, b"a"), (3, b"")], 2**31: [(2, b"bb")], GUID: [(4, b"c")]}
    assert errors == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "is empty"),
        (b"{}", "begins with byte 0x7b"),
        (b"\x00\x00\x00\x07", "after 4 bytes"),
        (b"\x01" + bytes(15), "after 16 bytes"),
    ],
)
def test_what_has_no_id_is_an_error_of_its_row_alone(value: bytes, words: str) -> None:
    made = framed(pa.array([prefix_of(1) + b"a", value, None], pa.binary()), None, "value")
    assert [(group.key, group.rows.tolist()) for group in made.groups] == [(1, [0])]
    assert made.errors.keys() == {1}
    assert words in made.errors[1]


def test_an_id_in_a_header_comes_first_and_the_first_of_them() -> None:
    guid, number = header_of(str(GUID)), prefix_of(5)
    name = header_name("value")
    headers = [
        [{"key": name, "value": guid}, {"key": name, "value": number}],
        [{"key": "other", "value": guid}],
        [{"key": header_name("key"), "value": guid}, {"key": name, "value": number + b"\x02\x08"}],
        None,
        [{"key": name, "value": b"\x09"}],
        [{"key": name, "value": guid}],
        [{"key": name, "value": None}],
    ]
    values = [b"a", prefix_of(6) + b"b", b"c", prefix_of(6) + b"d", b"e", None, prefix_of(6) + b"f"]
    groups, errors = _found(values, headers)
    # What a header has beyond the id belongs before the payload: Protobuf's message indexes.
    assert groups == {
        GUID: [(0, b"a")],
        5: [(2, b"\x02\x08c")],
        6: [(1, b"b"), (3, b"d"), (6, b"f")],
    }
    assert errors == [4]


def test_slices_and_large_binaries_are_read_alike() -> None:
    values = [b"no", prefix_of(1) + b"a", prefix_of(2) + b"b", None]
    for kind in (pa.binary(), pa.large_binary()):
        for array in (pa.array(values, kind)[1:3], pa.array(values[1:3], kind)):
            found = framed(array, None, "value")
            assert [(g.key, g.payloads.to_pylist()) for g in found.groups] == [
                (1, [b"a"]),
                (2, [b"b"]),
            ]


def test_a_header_replaces_the_one_that_is_there() -> None:
    name = header_name("value")
    before: Any = [
        [{"key": name, "value": b"old"}, {"key": "a", "value": None}],
        None,
        [],
        [{"key": name, "value": b"old"}],
    ]
    made = with_header(pa.array(before, HEADERS), name, [b"new", b"new", None, None])
    assert made.to_pylist() == [
        [{"key": "a", "value": None}, {"key": name, "value": b"new"}],
        [{"key": name, "value": b"new"}],
        [],
        [],
    ]
    assert with_header(None, name, [b"new", None]).to_pylist() == [
        [{"key": name, "value": b"new"}],
        None,
    ]


def test_headers_without_an_id_stay_as_they_are() -> None:
    headers = pa.array([[{"key": "a", "value": b"b"}], None], HEADERS)
    assert with_header(headers, header_name("value"), [None, None]) is headers
