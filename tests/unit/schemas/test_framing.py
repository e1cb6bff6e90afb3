"""Where records have their schema's id, and how each format decodes them; without Spark."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import fastavro
import jsonschema_rs
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from pyspark.sql import types as T

from spark_eos._pyspark_internals import arrow_schema
from spark_eos._spark.row_errors import RowErrors
from spark_eos.errors import SchemaError
from spark_eos.schemas import protobuf, rows
from spark_eos.schemas.client import Client
from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.framing import (
    HEADERS_TYPE,
    framed,
    header_name,
    header_of,
    prefix_of,
    with_header,
)
from spark_eos.schemas.rows import Decoding, Encoding, Member, Target
from support.registry_answers import StubRegistry, stub_registry

GUID = uuid.UUID("d17bb2d3-4c1a-4b4c-9b0f-7c6f2f9d7a10")


def _found(values: list[bytes | None], headers: Any = None) -> tuple[dict[Any, Any], list[int]]:
    """Rows and payloads by schema, and rows with errors."""
    made = framed(
        pa.array(values, pa.binary()), headers and pa.array(headers, HEADERS_TYPE), "value"
    )
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


def test_an_id_in_a_header_comes_first_and_the_last_of_them() -> None:
    guid, number = header_of(str(GUID)), prefix_of(5)
    name = header_name("value")
    headers = [
        [{"key": name, "value": number}, {"key": name, "value": guid}],
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


def test_a_header_replaces_the_one_that_is_there() -> None:
    name = header_name("value")
    before: Any = [
        [{"key": name, "value": b"old"}, {"key": "a", "value": None}],
        None,
        [],
        [{"key": name, "value": b"old"}],
    ]
    made = with_header(pa.array(before, HEADERS_TYPE), name, [b"new", b"new", None, None])
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
    headers = pa.array([[{"key": "a", "value": b"b"}], None], HEADERS_TYPE)
    assert with_header(headers, header_name("value"), [None, None]) is headers


TEXTS = {
    "AVRO": json.dumps(
        {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
    ),
    "JSON": json.dumps(
        {"title": "Order", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    ),
    "PROTOBUF": 'syntax = "proto3"; message Unit {} message Order { string id = 1; }',
}
HEADERS_COLUMN = T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType()))


def _schema(kind: str) -> Schema:
    return Schema(kind, TEXTS[kind], message="Order" if kind == "PROTOBUF" else None)


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with stub_registry() as found:
        yield found


@pytest.mark.parametrize("framing", ["prefix", "header"])
@pytest.mark.parametrize("kind", TEXTS)
def test_what_is_written_is_read(
    registry: StubRegistry, kind: str, framing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[str] = []
    monkeypatch.setattr(rows, "reduce_task_overhead", lambda: tasks.append(kind))
    number, guid = registry.add("orders-value", TEXTS[kind], kind)
    own = _schema(kind)
    column, prefix = format_of(own).kind.spark, format_of(own).prefix
    member, errors = Member(None, own, "Order"), RowErrors.of(T.StructType(), "column", SchemaError)
    others = [T.StructField("headers", HEADERS_COLUMN), *errors.fields]
    in_header = framing == "header"
    sent = (header_of(guid) if in_header else prefix_of(number)) + prefix
    target = Target(None, own, column, sent, in_header)
    encoding = Encoding("value", [target], errors)
    decoded = T.StructType([T.StructField("value", column), *others])
    binary = T.StructType([T.StructField("value", T.BinaryType()), *others])
    assert encoding.schema(decoded) == binary
    values: list[Any] = [{"id": "o1"}, None, {"id": "zoë"}]
    headers: list[Any] = [[{"key": "a", "value": b"1"}], None, None]
    before = arrow_schema(decoded)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, before.field("value").type), pa.array(headers, before.field(1).type)],
        ["value", "headers"],
    )
    (written,) = encoding(iter([batch]))
    assert prefix == (
        SchemaId("PROTOBUF", 0, None, [1]).id_to_bytes()[5:] if kind == "PROTOBUF" else b""
    )
    for row, found in enumerate(written.to_pylist()):
        own_headers = [h["value"] for h in found["headers"] or () if h["key"] != "a"]
        if values[row] is None:
            assert (found["value"], found["headers"]) == (None, None)
        elif in_header:
            assert own_headers == [sent]
        else:
            assert found["value"].startswith(sent)
            assert own_headers == []
    client = Client({"url": registry.url}, 1)
    decoding = Decoding(client, decoded["value"], [member], "orders-value", errors)
    assert decoding.schema(binary) == decoded
    (read,) = decoding(iter([written]))
    assert read.column("value").to_pylist() == values
    assert read.column("error").to_pylist() == [None] * 3
    assert tasks == [kind] * 2


def test_a_malformed_schema_is_an_error_of_its_records(registry: StubRegistry) -> None:
    for subject, text in (("a", '"string"'), ("b", '{"type": "array"}'), ("c", "{")):
        registry.add(subject, text)
    own, errors = Schema("AVRO", '"string"'), RowErrors.of(T.StructType(), "column", SchemaError)
    made = T.StructField("value", T.StringType())
    client = Client({"url": registry.url}, 1)
    decoding = Decoding(client, made, [Member(None, own, "string")], "a", errors)
    records = [prefix_of(number) + b"\2x" for number in (1, 2, 3, 1)]
    (read,) = decoding(iter([pa.RecordBatch.from_arrays([pa.array(records)], ["value"])]))
    assert read.column("value").to_pylist() == ["x", None, None, "x"]
    messages = [error and error["message"] for error in read.column("error").to_pylist()]
    assert messages[1] == "schema id 2: the Avro schema can't be used: it lacks 'items'"
    assert messages[2].startswith("schema id 3: the Avro schema can't be used: Expecting property")
    assert messages[0] is messages[3] is None


def test_names_of_headers_that_are_not_utf_8_stay() -> None:
    raw = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    before = [[{"key": b"caf\xe9", "value": b"1"}, {"key": b"h", "value": b"2"}], None, []]
    headers = pa.array(before, raw).view(HEADERS_TYPE)
    made = with_header(headers, "h", [b"3", b"4", None]).cast(raw).to_pylist()
    assert made == [
        [{"key": b"caf\xe9", "value": b"1"}, {"key": b"h", "value": b"3"}],
        [{"key": b"h", "value": b"4"}],
        [],
    ]


@pytest.mark.parametrize("kind", TEXTS)
def test_a_schema_is_parsed_once_for_many_batches(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> list[str]:
        found = format_of(own).records(pa.array([b"\x02\x02"] * 3, pa.binary()))
        assert [rows.tolist() for rows in found.values()] == [[0, 1, 2]]
        return [*found]

    own = _schema(kind)
    assert names() == ["Order"]
    for module, name in (
        (fastavro, "parse_schema"),
        (jsonschema_rs, "Registry"),
        (protobuf, "file_of"),
    ):
        monkeypatch.delattr(module, name)
    assert names() == ["Order"]
