"""Records and schemas of other writers that an ordinary test does not have."""

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.framing import framed, header_name, header_of, prefix_of

GUIDS = "d17bb2d3-4c1a-4b4c-9b0f-7c6f2f9d7a10", "d17bb2d3-4c1a-4b4c-9b0f-7c6f2f9d7a11"
PROTO = 'syntax = "proto3"; package shop; '
TWO = "message Order { string id = 1; } message Refund { string id = 1; }"
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _read(reader: Schema, payloads: list[bytes], writer: Schema | None = None) -> Any:
    made = format_of(reader).decoder(format_of(writer or reader))(pa.array(payloads, pa.binary()))
    return made.array.to_pylist(), {row: str(text) for row, text in made.errors.items()}


def test_message_indexes_in_full_do_not_move_rows() -> None:
    schema = format_of(Schema("PROTOBUF", PROTO + TWO))
    payloads = [b"\x02\x00\x0a\x01a", b"\x00\x0a\x01b", b"\x80\x00\x0a\x01c", b"\x00\x0a\x01d"]
    rows = {name: own.tolist() for name, own in schema.records(pa.array(payloads)).items()}
    assert rows == {"shop.Order": [0, 1, 2, 3]}
    assert [value["id"] for value in _read(Schema("PROTOBUF", PROTO + TWO), payloads)[0]] == [
        *"abcd"
    ]


@pytest.mark.parametrize(
    "payload",
    [b"\xff" * 1_000_000, b"\x02" + b"\xff" * 9, b"\x80\x7f" + b"\0" * 99_999, b"\x01", b""],
)
def test_message_indexes_that_never_end_are_an_error_at_once(payload: bytes) -> None:
    began = time.process_time()
    values, errors = _read(Schema("PROTOBUF", PROTO + TWO), [payload, b"\x00\x0a\x01b"])
    assert time.process_time() - began < 5
    assert (values[0], values[1]["id"]) == (None, "b")
    assert [*errors] == [0]
    assert "message indexes" in errors[0]
    assert len(errors[0]) < 200


def test_the_last_header_with_an_id_counts() -> None:
    """Serializers append theirs; null means that there is none."""
    name = header_name("value")
    first, last = ({"key": name, "value": header_of(guid)} for guid in GUIDS)
    null = {"key": name, "value": None}
    headers = pa.array([[first, last], [last, null], [null, first]], HEADERS_TYPE)
    values = pa.array([b"a", prefix_of(7) + b"b", b"c"])
    groups = framed(values, headers, "value").groups
    found = {str(group.key): group.rows.tolist() for group in groups}
    assert found == {GUIDS[1]: [0], "7": [1], GUIDS[0]: [2]}


@pytest.mark.parametrize(
    "field",
    [
        {"type": ["null", "long"], "logicalType": "timestamp-millis", "default": None},
        {"type": {"type": "long"}, "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": ["timestamp-millis"]},
    ],
)
def test_a_logical_type_beside_the_type_is_ignored(field: dict[str, Any]) -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "at", **field}]})
    nullable = isinstance(field["type"], list)
    assert _read(Schema("AVRO", text), [b"\x02\x0a" if nullable else b"\x0a"]) == ([{"at": 5}], {})


def test_types_that_multiply_are_skipped_in_time() -> None:
    def layer(level: int) -> Any:
        inner = "int" if level == 20 else layer(level + 1)
        again = inner if inner == "int" else f"R{level + 1}"
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        return {"type": "record", "name": f"R{level}", "fields": fields}

    reader = {
        "type": "record",
        "name": "R0",
        "fields": [{"name": "x", "type": "int", "default": 0}],
    }
    began = time.process_time()
    format_of(Schema("AVRO", json.dumps(reader))).decoder(
        format_of(Schema("AVRO", json.dumps(layer(0))))
    )
    assert time.process_time() - began < 20


@pytest.mark.parametrize("number", ["int", "long"])
def test_a_fields_own_name_counts_before_its_aliases(number: str) -> None:
    fields = [{"name": name, "type": "string"} for name in ("name", "full_name")]
    own = [{"name": "full_name", "type": "string", "aliases": ["name"]}]
    writer = {"type": "record", "name": "P", "fields": [*fields, {"name": "n", "type": "int"}]}
    reader = {"type": "record", "name": "P", "fields": [*own, {"name": "n", "type": number}]}
    schemas = (Schema("AVRO", json.dumps(each)) for each in (reader, writer))
    read, written = schemas
    values, errors = _read(read, [b"\x06Bob\x0cRobert\x02"], written)
    assert (values, errors) == ([{"full_name": "Robert", "n": 1}], {})


@pytest.mark.parametrize("other", [{"name": "Q.P"}, {"name": "Q", "aliases": ["P"]}])
def test_a_fields_own_name_counts_in_a_record_of_another_name(other: dict[str, Any]) -> None:
    fields = [{"name": name, "type": "int"} for name in "ab"]
    writer = {"type": "record", "name": "P", "fields": fields}
    reader = {"type": "record", **other, "fields": [{**fields[1], "aliases": ["a"]}]}
    schemas = [Schema("AVRO", json.dumps(each)) for each in (reader, writer)]
    assert _read(schemas[0], [b"\x02\x04"], schemas[1]) == ([{"b": 2}], {})


def test_an_alias_counts_beside_a_record_of_the_same_short_name() -> None:
    def schema(field: dict[str, Any]) -> Schema:
        first = {"type": "record", "name": "a.Item", "fields": [{"name": "name", "type": "string"}]}
        second = {"type": "record", "name": "b.Item", "fields": [{**field, "type": "string"}]}
        fields = [{"name": "x", "type": first}, {"name": "y", "type": second}]
        return Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))

    reader = schema({"name": "name", "aliases": ["title"], "default": ""})
    values, errors = _read(reader, [b"\x02A\x02B"], schema({"name": "title"}))
    assert (values, errors) == ([{"x": {"name": "A"}, "y": {"name": "B"}}], {})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]}, '"a"', "null"),
        ({"type": "integer", "anyOf": [{"type": "number"}, {"type": "null"}]}, "1", "1.5"),
    ],
)
def test_a_type_beside_anyof_is_checked(schema: Any, good: str, bad: str) -> None:
    whole = Schema("JSON", json.dumps({"type": "object", "properties": {"a": schema}}))
    texts = [f'{{"a": {value}}}'.encode() for value in (good, bad)]
    _, errors = _read(whole, texts)
    assert [*errors] == [1]


def test_times_with_nanoseconds_of_another_sign_are_refused() -> None:
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; '
        'import "google/protobuf/duration.proto"; message M { google.protobuf.Timestamp at = 1; '
        "google.protobuf.Duration took = 2; }"
    )
    minus = b"\x10" + b"\x80\xb6\xca\x91\xfe\xff\xff\xff\xff\x01"  # nanos: -500000000
    at = b"\x00\x0a" + bytes([2 + len(minus)]) + b"\x08\x0a" + minus
    took = b"\x00\x12" + bytes([2 + len(minus)]) + b"\x08\x01" + minus
    good = b"\x00\x12" + bytes([len(minus)]) + minus
    values, errors = _read(Schema("PROTOBUF", text), [at, took, good])
    assert [*errors] == [0, 1]
    assert values[2]["took"].total_seconds() == -0.5


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("boolean", "false"),
        ("int", None),
        ("long", 0.0),
        (["null", "long"], "null"),
        ({"type": "array", "items": "int"}, None),
        ({"type": "map", "values": "int"}, "{}"),
        ("bytes", "\u20ac"),
    ],
)
def test_an_invalid_default_of_a_writer_does_not_matter(kind: Any, default: Any) -> None:
    field = {"name": "a", "type": kind}
    schema = {"type": "record", "name": "R", "fields": [field]}
    text = json.dumps({**schema, "fields": [{**field, "default": default}]})
    payload = b"\x00"
    read = Schema("AVRO", json.dumps(schema))
    expected = _read(read, [payload])
    assert expected[1] == {}
    assert _read(read, [payload], Schema("AVRO", text)) == expected
    nothing = json.dumps({**schema, "fields": [{"name": "b", "type": "int", "default": 1}]})
    read = Schema("AVRO", nothing)
    assert _read(read, [payload], Schema("AVRO", text)) == ([{"b": 1}], {})
    if kind == "bytes":
        return  # fastavro does not check its text
    with pytest.raises(SchemaError, match="Default value"):
        _read(Schema("AVRO", text), [payload])


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ({"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}, {}),
        ({"type": "array", "items": "int"}, [1, None]),
    ],
)
def test_a_default_that_lacks_a_value_is_refused(kind: Any, default: Any) -> None:
    fields = [{"name": "n", "type": "int"}, {"name": "r", "type": kind, "default": default}]
    schema = {"type": "record", "name": "R", "fields": fields}
    with pytest.raises(SchemaError, match="field 'r': its default lacks a value of type int"):
        _ = format_of(Schema("AVRO", json.dumps(schema))).kind


def test_a_type_given_by_name_is_read_as_one_given_in_place() -> None:
    """Also by fastavro, which reads records whose array has two blocks."""
    address = {"type": "record", "name": "A", "fields": [{"name": "zip", "type": "string"}]}
    tags = {"name": "tags", "type": {"type": "array", "items": "int"}}
    billing = {"name": "billing", "type": address}
    shipping = {"name": "shipping", "type": "A"}
    inline = {"name": "shipping", "type": ["null", address]}
    writer = {"type": "record", "name": "R", "fields": [billing, shipping, tags]}
    reader = {"type": "record", "name": "R", "fields": [inline, tags]}
    schemas = [Schema("AVRO", json.dumps(each)) for each in (reader, writer)]
    one, two = b"\x04\x02\x04\x00", b"\x02\x02\x02\x04\x00"
    values, errors = _read(schemas[0], [b"\x02a\x02b" + tags for tags in (one, two)], schemas[1])
    assert errors == {}
    assert values == [{"shipping": {"zip": "b"}, "tags": [1, 2]}] * 2


@pytest.mark.parametrize("by_name", ["writer", "reader"])
def test_a_union_with_a_type_given_by_name(by_name: str) -> None:
    record = {"type": "record", "name": "E", "fields": [{"name": "s", "type": "string"}]}
    number = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 0}

    def schema(*, named: bool) -> Schema:
        first = {"name": "first", "type": ["null", record if named else "int"], "default": None}
        union = ["null", "E" if named else record, "string"]
        fields = [first, {"name": "u", "type": union}, {"name": "d", "type": number}]
        return Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))

    writer, reader = schema(named=by_name == "writer"), schema(named=by_name == "reader")
    # fastavro reads the decimal, which is larger than 64 bits.
    large = b"\x18" + (10**20).to_bytes(12, "big")
    values, errors = _read(reader, [b"\x00\x02\x02x" + large], writer)
    assert errors == {}
    assert values[0]["u"]["E"] == {"s": "x"}


def test_the_limit_on_defaults_is_that_of_the_schema() -> None:
    kind, many = {"type": "array", "items": "int"}, [0] * 60_000
    fields = [{"name": name, "type": kind, "default": many} for name in "ab"]
    own = Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    with pytest.raises(SchemaError, match="schema's defaults up to here hold more than 100,000"):
        _ = format_of(own).kind
