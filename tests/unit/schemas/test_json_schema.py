"""JSON as columns: types, readers' schemas, and values that can't be read or written."""

import datetime
import json
import sys
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.common.json_schema import _json_dumps
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_eos.errors import ConfigurationError, SchemaError
from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.kinds import CodecResult
from support.schema_codecs import read, spark_type, write

MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 123_456, tzinfo=datetime.timezone.utc)
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
NULL = {"type": "null", "title": "Not included"}


def schema(text: Any, **references: Any) -> Schema:
    """A schema, with the schemas that it refers to."""
    named = tuple((f"{name}.json", json.dumps(one)) for name, one in references.items())
    return Schema("JSON", json.dumps(text), named)


def record(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object schema."""
    return {"type": "object", "properties": properties, "required": required.split()}


def decoded(payloads: list[Any], writer: Any, reader: Any = None) -> CodecResult:
    """Decoded payloads: bytes or values."""
    own = writer if isinstance(writer, Schema) else schema(writer)
    raw = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in payloads]
    return read(raw, own, None if reader is None else schema(reader))


def encoded(values: list[Any], text: Any, kind: T.DataType | None = None) -> CodecResult:
    """Values encoded with a schema."""
    return write(values, text if isinstance(text, Schema) else schema(text), kind)


def one(of: Any, text: Any, reader: Any = None) -> Any:
    """The only value, which must have no error."""
    made = decoded([of], text, reader)
    assert made.errors == {}
    return made.array.to_pylist()[0]


# Schema, Spark's name of its type, and a value in JSON and as a column has it in Python.
TYPES: dict[str, tuple[Any, str, Any, Any]] = {
    "string": (STRING, "string", "zoë \u2028\n", "zoë \u2028\n"),
    "uuid": ({**STRING, "format": "uuid"}, "string", "u", "u"),
    "integer": (INTEGER, "bigint", -(2**63), -(2**63)),
    "number": (NUMBER, "double", 1e-07, 1e-07),
    "boolean": ({"type": "boolean"}, "boolean", True, True),
    "date": ({**STRING, "format": "date"}, "date", "2026-02-28", datetime.date(2026, 2, 28)),
    "date-time": (
        {**STRING, "format": "date-time"},
        "timestamp",
        "1969-12-31T23:59:59.123456Z",
        MOMENT,
    ),
    "enum": ({"enum": ["A", "B"]}, "string", "B", "B"),
    "const": ({"const": 7}, "bigint", 7, 7),
    "array": (
        {"type": "array", "items": {"type": ["integer", "null"]}},
        "array<bigint>",
        [1, None],
        [1, None],
    ),
    "map": (
        {"type": "object", "additionalProperties": {**STRING, "format": "date"}},
        "map<string,date>",
        {"a": "2026-02-28"},
        [("a", datetime.date(2026, 2, 28))],
    ),
    "object": (
        {"properties": {"n": {"properties": {"x": STRING}}}},
        "struct<n:struct<x:string>>",
        {"n": {"x": "y"}},
        {"n": {"x": "y"}},
    ),
    "oneOf with null": ({"oneOf": [NULL, INTEGER]}, "bigint", None, None),
    "anyOf with null": ({"anyOf": [record(x=STRING), NULL]}, "struct<x:string>", {}, {"x": None}),
}


@pytest.mark.parametrize("name", TYPES)
def test_each_type_is_read_and_written(name: str) -> None:
    kind, spark, value, seen = TYPES[name]
    text = record("f", f=kind, optional=kind)
    assert spark_type(schema(text))["f"].dataType.simpleString() == spark
    made = one({"f": value}, text)
    assert made == {"f": seen, "optional": None}
    back = encoded([made], record("f", f=kind))
    assert back.errors.keys() == set()
    assert back.array.to_pylist() == [_json_dumps({"f": value}).encode()]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("2026-01-01T00:00:00+01:30", "2025-12-31 22:30:00"),
        ("2026-01-01T00:00:00.1Z", "2026-01-01 00:00:00.100000"),
        ("2026-01-01T00:00:00.1234569Z", "2026-01-01 00:00:00.123456"),
        ("2026-01-01t00:00:00.1234569z", "2026-01-01 00:00:00.123456"),
        ("2026-01-01t00:00:00-00:30", "2026-01-01 00:30:00"),
    ],
)
def test_each_spelling_of_a_time_is_read(text: str, seen: str) -> None:
    when = datetime.datetime.fromisoformat(f"{seen}+00:00")
    assert one(text, {**STRING, "format": "date-time"}) == when


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("9007199254740993", 2**53 + 1),
        ("-9223372036854775808", -(2**63)),
        ("9007199254740993.0", 2**53 + 1),
        ("9007199254740993e0", 2**53 + 1),
        ("-9.007199254740993E+15", -(2**53) - 1),
        ("9223372036854774784.0", 2**63 - 1024),
        ("90071992547409930e-1", 2**53 + 1),
        ("9007199254740993000.0E-3", 2**53 + 1),
        ("1e18", 10**18),
        ("1.0", 1),
    ],
)
def test_whole_numbers_are_read_exactly(text: str, whole: int) -> None:
    both = record(i=INTEGER, l={"type": "array", "items": INTEGER}, d=NUMBER)
    double = text if text != str(whole) else "1.152921504606847e+18"
    raw = f'{{"i": {text}, "l": [{text}], "d": {double}}}'.encode()
    assert one(raw, both) == {"i": whole, "l": [whole], "d": float(double)}


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740992.5",
        "90071992547409935e-1",
        "9223372036854775807.0",
        "-9223372036854775809.0",
    ],
)
def test_a_number_that_is_no_64_bit_integer_costs_its_row(text: str) -> None:
    made = decoded([f'{{"i": {text}}}'.encode(), {"i": 1}], record(i=INTEGER))
    assert made.errors.keys() == {0}
    assert made.array.to_pylist() == [None, {"i": 1}]


def test_nulls_are_written_where_the_schema_has_them() -> None:
    nullable = {"type": ["string", "null"]}
    text = record("a b", a=STRING, b=nullable, c=STRING, d=nullable)
    values = [{"a": "1", "b": None, "c": None, "d": None}, {"a": None, "b": "2"}, None]
    made = encoded(values, text)
    assert made.array.to_pylist() == [b'{"a":"1","b":null,"d":null}', None, None]
    assert made.errors == {1: 'a: the value is not of type "string"'}
    # What the column lacks.
    kind = T.StructType([T.StructField("a", T.StringType())])
    assert encoded([{"a": "1"}], text, kind).array.to_pylist() == [b'{"a":"1","b":null}']


def test_references_are_followed_in_the_document_and_to_others() -> None:
    address = {**record(street={"$ref": "#/definitions/line"}), "definitions": {"line": STRING}}
    address["properties"]["country"] = {"$ref": "country.json"}
    for own in ({}, {"$id": "http://example.com/order.json"}, {"$id": "order.json"}):
        # Of the same name as in the other document.
        text = {**own, **record(to={"$ref": "#/definitions/line"}, n={"$ref": "#/$defs/a~1%20b"})}
        text |= {"definitions": {"line": {"$ref": "address.json"}}, "$defs": {"a/ b": INTEGER}}
        whole = schema(text, country={"enum": ["DE"]}, address=address)
        value = {"to": {"street": "s", "country": "DE"}, "n": 1}
        assert decoded([value], whole).array.to_pylist() == [value]
        assert encoded([value], whole).array.to_pylist() == [_json_dumps(value).encode()]
        bad = decoded([{"to": {"country": "FR"}}], whole)
        assert bad.errors == {0: 'to.country: the value is not one of "DE"'}


@pytest.mark.parametrize("name", ["line", "common/line"])
def test_a_references_columns_are_in_its_documents_order(name: str) -> None:
    whole = schema(record(to={"$ref": f"{name}.json"}), **{name: record(b=STRING, a=STRING)})
    assert spark_type(whole).simpleString() == "struct<to:struct<b:string,a:string>>"


def test_a_reader_has_its_own_columns() -> None:
    writer = record("id", id=INTEGER, gone=STRING, price=NUMBER)
    value = {"id": 1, "gone": "x", "price": 2, "undeclared": []}
    assert one(value, writer, record("id", id=NUMBER, more=STRING)) == {"id": 1.0, "more": None}
    assert decoded([value], writer, record("new", new=STRING)).errors == {
        0: 'the record: "new" is a required property'
    }
    # Arrow would make 1 of it.
    other = decoded([{"id": 1, "price": 1.5}], writer, record(price=INTEGER))
    assert other.errors == {0: 'price: the value is not of type "integer"'}
    strict = {**record(id=INTEGER), "additionalProperties": False}
    assert one(value, writer, strict) == {"id": 1}


ORDER = record("id", id=INTEGER, amount=NUMBER, items={"type": "array", "items": record(d=STRING)})
ORDER["properties"]["day"] = {**STRING, "format": "date", "pattern": "^2"}


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (b"", "it is not JSON: Expecting value"),
        (b'{"id": 1', "it is not JSON: Expecting"),
        (b'{"id": 1} x', "it is not JSON: Extra data"),
        (b'{"id": 1, "undeclared": NaN}', "it is not JSON: NaN"),
        (b'{"id": 1, "x": "\xff"}', "it is not JSON: a text is not UTF-8"),
        (b"[" * 100_000, "it is not JSON: maximum recursion"),
        (b"null", 'the record: the value is not of type "object"'),
        (b"{}", 'the record: "id" is a required property'),
        (b'{"id": "1"}', 'id: the value is not of type "integer"'),
        (b'{"id": 1.5}', 'id: the value is not of type "integer"'),
        (b'{"id": true}', 'id: the value is not of type "integer"'),
        (b'{"id": 9223372036854775808}', "id: the value is greater than the maximum of 92233"),
        (b'{"id": 1e300}', "id: the value is greater than the maximum of 92233"),
        (b'{"id": 1, "amount": 1e400}', 'amount: the value is not of type "number"'),
        (b'{"id": 1, "amount": 9007199254740993}', "a value does not fit its type"),
        (b'{"id": 1, "items": [{}, {"d": 2}]}', 'items[1].d: the value is not of type "string"'),
        (b'{"id": 1, "items": [{"d": "\\ud800"}]}', "a text is not UTF-8"),
        (b'{"id": 1, "day": "2026-02-30"}', 'day: the value is not a "date"'),
        (b'{"id": 1, "day": "1999-12-31"}', 'day: the value does not match "^2"'),
    ],
)
def test_a_bad_record_costs_its_row(broken: bytes, text: str) -> None:
    good = {"id": 1, "amount": 2, "items": [{"d": "x"}], "day": "2026-02-28"}
    made = decoded([good, broken, good], ORDER)
    assert made.errors.keys() == {1}
    assert made.errors[1].startswith(text)
    assert made.array.is_null().to_pylist() == [False, True, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            {"type": ["string", "integer"]},
            "in.f is string or integer, but a column has only one type",
        ),
        ({"oneOf": [STRING, INTEGER]}, "in.f: oneOf can only combine one type with null"),
        ({"anyOf": [STRING, INTEGER, NULL]}, "in.f: anyOf can only combine one type with null"),
        ({"allOf": [record(x=STRING)]}, "in.f: allOf can only combine"),
        ({"type": "array"}, "in.f: an array needs items of one type"),
        ({"type": "array", "items": [STRING]}, "in.f: an array needs items of one type"),
        (
            {"type": "array", "items": STRING, "prefixItems": [INTEGER]},
            "in.f: an array needs items of one type",
        ),
        ({"type": "array", "items": {}}, r"in.f\[\]: its schema does not state a type"),
        ({"type": "object"}, "in.f: an object needs properties"),
        ({"type": "object", "additionalProperties": True}, "in.f: an object needs properties"),
        (
            {
                "type": "object",
                "additionalProperties": STRING,
                "patternProperties": {"^x": INTEGER},
            },
            "in.f: an object needs properties",
        ),
        ({"type": "object", "additionalProperties": {"type": "x"}}, "can't be used"),
        (True, "in.f: its schema is true, which does not state a type"),
        ({"type": "null"}, "in.f is null"),
        ({"$ref": "#/definitions/none"}, "can't be used: .*none"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "can't be used: .*127.0.0.1"),
        (record(child={"$ref": "#"}), "in.f.child: # contains itself"),
        (
            {"$ref": "#/properties/in", "properties": {"x": STRING}},
            r"in.f: \$ref next to properties is ambiguous",
        ),
        (
            {"$ref": "#/properties/in", "anyOf": [record(x=STRING)]},
            r"in.f: \$ref next to anyOf is ambiguous",
        ),
    ],
)
def test_what_spark_has_no_column_for_is_refused_by_its_name(text: Any, words: str) -> None:
    # The only draft of which a list of items is valid.
    draft = "http://json-schema.org/draft-07/schema#"
    whole = {"$schema": draft, "properties": {"in": {"properties": {"f": text}}}}
    with pytest.raises(SchemaError, match=words):
        spark_type(schema(whole))


def test_keywords_without_columns_may_accompany_a_reference() -> None:
    beside = {"title": "t", "definitions": {"s": STRING}, "minLength": 1, "type": "string"}
    text = record(f={"$ref": "#/properties/f/definitions/s", **beside})
    assert spark_type(schema(text)).simpleString() == "struct<f:string>"


@pytest.mark.parametrize("text", ["", "[]", "7", '{"type": "strin"}', '{"properties": []}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="the JSON Schema can't be used"):
        spark_type(Schema("JSON", text))


def test_columns_that_do_not_fit_are_refused_at_once() -> None:
    kind = T.StructType([T.StructField("amount", T.DoubleType())])
    with pytest.raises(SchemaError, match="lacks the field 'id'"):
        write([], schema(ORDER), kind)


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ({"items": STRING}, b'"abc"'),
        ({"properties": {"a": STRING}}, b"[]"),
        ({"additionalProperties": STRING}, b"[]"),
    ],
)
def test_json_of_another_kind_than_its_column_is_an_error(text: Any, payload: bytes) -> None:
    made = decoded([payload], text)
    assert made.errors.keys() == {0}
    assert made.array.to_pylist() == [None]


def test_a_value_that_does_not_fit_costs_its_row() -> None:
    values: list[Any] = [
        {"id": 1},
        {"id": 2, "amount": float("nan")},
        {"id": 3, "day": datetime.date(1, 1, 1)},
        {"id": None},
        {"id": 4, "items": [None]},
    ]
    made = encoded(values, ORDER)
    assert made.array.to_pylist() == [b'{"id":1}', None, None, None, None]
    assert made.errors == {
        1: 'amount: the value is not of type "number"',
        2: 'day: the value does not match "^2"',
        3: 'id: the value is not of type "integer"',
        4: 'items[0]: the value is not of type "object"',
    }
    column = pa.array([253_402_300_800_000_000, 0], pa.timestamp("us", "UTC"))
    late = write(column, schema({**STRING, "format": "date-time"}))
    assert late.errors == {0: "JSON Schema's date formats only allow the years 0000 to 9999"}
    assert late.array.to_pylist() == [None, b'"1970-01-01T00:00:00.000000Z"']


def test_a_record_is_called_by_its_title() -> None:
    assert format_of(schema({**record(a=STRING), "title": "Order"})).name == "Order"
    assert format_of(schema({**record(a=STRING), "$id": "urn:order"})).name == "urn:order"
    assert format_of(schema(STRING)).name == "object"


def test_a_missing_package_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    format_of.cache_clear()
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    for name in ("json_kinds", "json_schema"):
        monkeypatch.delitem(sys.modules, f"spark_eos.schemas.{name}", raising=False)
    with pytest.raises(ConfigurationError, match=r"jsonschema_rs.*install spark-eos\[schemas\]"):
        format_of(schema({}))


DOCUMENTS = st.fixed_dictionaries(
    {"s": st.text(), "n": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "l": st.lists(st.text()),
        "m": st.dictionaries(st.text(), st.none() | st.booleans()),
    },
)
MIXED = record(
    "s n",
    s=STRING,
    n=INTEGER,
    d=NUMBER,
    b={"type": "boolean"},
    l={"type": "array", "items": STRING},
    m={"type": "object", "additionalProperties": {"type": ["boolean", "null"]}},
)


@pytest.mark.slow
@given(st.lists(DOCUMENTS, max_size=5))
def test_records_are_written_byte_for_byte_as_confluent_does(documents: list[Any]) -> None:
    payloads = [
        _json_dumps({name: doc[name] for name in MIXED["properties"] if name in doc}).encode()
        for doc in documents
    ]
    made = decoded(payloads, MIXED)
    assert made.errors == {}
    assert encoded(made.array.to_pylist(), MIXED).array.to_pylist() == payloads
