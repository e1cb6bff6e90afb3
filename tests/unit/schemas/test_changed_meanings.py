"""Changes that would give another value, and values that would take others with them."""

import datetime
import json
import uuid
from io import BytesIO
from typing import Any

import fastavro
import pytest
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import Schema
from support.schema_codecs import decoder, read, write

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}


def _decimal(scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": scale}


def _money(scale: int) -> dict[str, Any]:
    return {**_decimal(scale), "type": "fixed", "name": "Money", "size": 8}


def _record(name: str, kind: Any = "int") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "x", "type": kind}]}


def _avro(kind: Any, **more: Any) -> Schema:
    field = {"name": "a", "type": kind, **more}
    return Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": [field]}))


NAMED = {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}
MAP = {"type": "map", "values": "int"}


@pytest.mark.parametrize(
    ("writer", "reader", "words"),
    [
        (MILLIS, MICROS, "timestamp-micros, and was timestamp-millis"),
        (["null", MILLIS], ["null", MICROS], "was timestamp-millis"),
        ({"type": "array", "items": MILLIS}, {"type": "array", "items": MICROS}, "was"),
        (_decimal(2), _decimal(4), "decimal of scale 4, and was decimal of scale 2"),
        ({"type": "int", "logicalType": "date"}, MILLIS, "was date"),
        (NAMED, [NAMED, MAP], "is a union"),
        (["null", "string", MILLIS], ["null", "string", MICROS], "was timestamp-millis"),
        (MILLIS, ["string", MICROS], "was timestamp-millis"),
        (["string", MILLIS], MICROS, "was timestamp-millis"),
        (_money(2), _money(4), "decimal of scale 4"),
        (["null", _money(2)], ["null", _money(4)], "decimal of scale 4"),
        ({"type": "map", "values": ["string", MILLIS]}, {"type": "map", "values": MICROS}, "was"),
    ],
)
def test_what_avro_would_read_as_another_value_is_refused(
    writer: Any, reader: Any, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        decoder(_avro(writer), _avro(reader))
    decoder(_avro(writer), _avro(writer, doc="the same"))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (["string", "bytes"], "of which string would be read as bytes"),
        ([_record("a.M"), _record("b.M")], "of which a.M would be read as b.M"),
    ],
)
def test_members_that_fastavro_takes_for_each_other_are_refused_in_another_schema(
    members: list[Any], words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        decoder(_avro(members), _avro(members[::-1]))
    decoder(_avro(members), _avro(members))


def test_a_type_by_its_name_is_compared_as_well() -> None:
    money = ("money", json.dumps(_money(2))), ("money", json.dumps(_money(4)))
    text = _avro(["null", "Money"]).text
    with pytest.raises(SchemaError, match="decimal of scale 4"):
        decoder(*(Schema("AVRO", text, (one,)) for one in money))


def _both(first: Any, second: Any) -> Schema:
    fields = [{"name": "a", "type": first}, {"name": "b", "type": second}]
    return Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_records_of_one_short_name_are_compared_where_they_meet() -> None:
    writer = _both(_record("a.M", MILLIS), _record("b.M", MICROS))
    changed = "is of the logical type timestamp-"
    for first, second, words in [
        (_record("a.M", MICROS), _record("b.M", MICROS), rf"of a\.M {changed}micros"),
        (_record("b.M", MICROS), _record("a.M", MICROS), rf"of b\.M {changed}micros"),
        (_record("c.M", MILLIS), _record("d.M", MILLIS), rf"of d\.M {changed}millis"),
    ]:
        with pytest.raises(SchemaError, match=words):
            decoder(writer, _both(first, second))
    decoder(writer, _both(_record("b.M", MILLIS), _record("a.M", MICROS)))


def test_a_record_that_contains_itself_is_compared_once() -> None:
    def schema(kind: Any) -> Schema:
        node = _record("Node", kind)
        node["fields"].append({"name": "next", "type": ["null", "Node"], "default": None})
        return _both(node, "int")

    reader = _both(_record("Node", MICROS), "int")
    decoder(schema(MICROS), reader)
    with pytest.raises(SchemaError, match="was timestamp-millis"):
        decoder(schema(MILLIS), reader)


@pytest.mark.parametrize("indent", [None, 1])
def test_unions_of_one_schema_are_read_as_they_were_written(indent: int | None) -> None:
    first, second = ["null", "double", "long"], ["null", "bytes", "string", _money(2)]
    writer = _both(first, second)
    stream = BytesIO()
    row = {"a": ("long", 2**53 + 1), "b": ("string", "text")}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(writer.text)), row)
    # Other spaces are no other schema.
    reader = Schema("AVRO", json.dumps(json.loads(writer.text), indent=indent))
    made = read([stream.getvalue()], writer, reader)
    assert made.errors == {}
    (found,) = made.array.to_pylist()
    assert found["a"] == {"double": None, "long": 2**53 + 1}
    assert found["b"] == {"bytes": None, "string": "text", "Money": None}


def test_fixed_of_another_size_are_no_members_of_a_union() -> None:
    sizes = [{"type": "fixed", "name": f"{n}.F", "size": s} for n, s in (("a", 4), ("b", 8))]
    decoder(_both(["null", *sizes], "int"), _both(["null", *sizes], "long"))


_NUMBERS = {"int": 7, "long": 9007199254740993, "float": 0.5, "double": 0.1}
_PAIRS = [("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")]


@pytest.mark.parametrize("pair", [*_PAIRS, *((b, a) for a, b in _PAIRS)], ids="-".join)
@pytest.mark.parametrize("turned", [False, True])
def test_a_member_of_a_union_stays_itself_when_a_field_is_added(
    pair: tuple[str, str], *, turned: bool
) -> None:
    def schema(members: list[str], *more: dict[str, Any]) -> Schema:
        fields = [{"name": "a", "type": ["null", *members]}, *more]
        return Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))

    writer = schema([*pair])
    reader = schema(
        [*(reversed(pair) if turned else pair)], {"name": "b", "type": "int", "default": 0}
    )
    parsed = fastavro.parse_schema(json.loads(writer.text))
    payloads = []
    for name in pair:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, parsed, {"a": (name, _NUMBERS[name])})
        payloads.append(stream.getvalue())
    made = read(payloads, writer, reader)
    assert made.errors == {}
    found = [{k: v for k, v in row["a"].items() if v is not None} for row in made.array.to_pylist()]
    assert found == [{name: _NUMBERS[name]} for name in pair]


def test_fields_are_compared_by_their_aliases_and_in_nested_records() -> None:
    def outer(name: str, kind: Any, **more: Any) -> Schema:
        inner = {"type": "record", "name": "I", "fields": [{"name": name, "type": kind, **more}]}
        return _avro({"type": "array", "items": inner})

    with pytest.raises(SchemaError, match="field 'b' of I"):
        decoder(outer("c", MILLIS), outer("b", MICROS, aliases=["c"]))


def test_what_has_no_logical_type_may_get_one() -> None:
    decoder(_avro("long"), _avro(MICROS))


def test_a_bad_item_costs_its_row_alone() -> None:
    good = str(uuid.uuid4())
    rows = [{"a": [good]}, {"a": ["bad"]}, {"a": [good]}, {"a": []}, None]
    fixed = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    made = write(rows, _avro({"type": "array", "items": fixed}))
    assert list(made.errors) == [1]
    assert [one is None for one in made.array.to_pylist()] == [False, True, False, False, True]


def test_a_bad_value_in_columns_of_another_order_costs_its_row_alone() -> None:
    fields = [
        {"name": "a", "type": "int"},
        {"name": "t", "type": NANOS},
        {"name": "z", "type": "int", "default": 0},
    ]
    schema = Schema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    rows = [{"t": now, "a": 1}, {"t": now.replace(year=2400), "a": 2}, {"t": now, "a": 3}]
    kind = T.StructType().add("t", T.TimestampType()).add("a", T.IntegerType())
    made = write(rows, schema, kind)
    assert list(made.errors) == [1]
    assert [one is None for one in made.array.to_pylist()] == [False, True, False]


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"items": {"type": "string"}}, b'"abc"'),
        ({"properties": {"a": {"type": "string"}}}, b"[]"),
        ({"additionalProperties": {"type": "string"}}, b"[]"),
    ],
)
def test_json_of_another_kind_than_its_column_is_an_error(
    schema: dict[str, Any], payload: bytes
) -> None:
    one = Schema("JSON", json.dumps(schema))
    made = read([payload], one)
    assert list(made.errors) == [0]
    assert made.array.to_pylist() == [None]


@pytest.mark.parametrize(
    ("writer", "reader", "words"),
    [
        ("google.protobuf.Duration", "google.protobuf.Timestamp", "Duration can't be read as"),
        ("google.protobuf.StringValue", "google.protobuf.BytesValue", "can't be read as"),
    ],
)
def test_protobufs_own_types_are_not_each_other(writer: str, reader: str, words: str) -> None:
    imports = "".join(
        f'import "google/protobuf/{name}.proto"; ' for name in ("duration", "timestamp", "wrappers")
    )
    texts = (
        Schema("PROTOBUF", f'syntax = "proto3"; {imports} message M {{ {kind} a = 1; }}')
        for kind in (writer, reader)
    )
    with pytest.raises(SchemaError, match=words):
        decoder(*texts)


def test_an_open_enum_is_not_read_as_a_closed_one() -> None:
    enum = "enum E { A = 0; B = 1; } message M { %s E e = 1; }"
    opened = Schema("PROTOBUF", 'syntax = "proto3"; ' + enum % "")
    closed = Schema("PROTOBUF", 'syntax = "proto2"; ' + enum % "optional")
    with pytest.raises(SchemaError, match="is not in the reader's E"):
        decoder(opened, closed)
