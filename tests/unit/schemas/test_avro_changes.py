"""Changes of Avro schemas that would result in different values."""

import json
from typing import Any

import pytest

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import Schema
from support.avro_schemas import array, fixed, logical, mapping, payload, record, schema
from support.schema_codecs import decoder, read

MILLIS = logical("long", "timestamp-millis")
MICROS = logical("long", "timestamp-micros")


def _decimal(scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=10, scale=scale)


def _money(scale: int) -> dict[str, Any]:
    return {**_decimal(scale), "type": "fixed", "name": "Money", "size": 8}


def _named(name: str, kind: Any = "int") -> dict[str, Any]:
    return record(("x", kind), name=name)


def _one(kind: Any, **more: Any) -> Schema:
    return schema(record(("a", kind), **more))


def _both(first: Any, second: Any) -> Schema:
    return schema(record(("a", first), ("b", second)))


@pytest.mark.parametrize(
    ("writer", "reader", "words"),
    [
        (MILLIS, MICROS, "timestamp-micros, but was timestamp-millis"),
        (["null", MILLIS], ["null", MICROS], "was timestamp-millis"),
        (array(MILLIS), array(MICROS), "was"),
        (_decimal(2), _decimal(4), "decimal of scale 4, but was decimal of scale 2"),
        (logical("int", "date"), MILLIS, "was date"),
        (_named("A"), [_named("A"), mapping("int")], "is a union"),
        (["null", "string", MILLIS], ["null", "string", MICROS], "was timestamp-millis"),
        (MILLIS, ["string", MICROS], "was timestamp-millis"),
        (["string", MILLIS], MICROS, "was timestamp-millis"),
        (["null", _money(2)], ["null", _money(4)], "decimal of scale 4"),
        (mapping(["string", MILLIS]), mapping(MICROS), "was"),
    ],
)
def test_what_would_be_read_as_another_value_is_refused(
    writer: Any, reader: Any, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        decoder(_one(writer), _one(reader))
    decoder(_one(writer), _one(writer, doc="the same"))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (["string", "bytes"], "in which string would be read as bytes"),
        ([_named("a.M"), _named("b.M")], "in which a.M would be read as b.M"),
    ],
)
def test_union_members_that_fastavro_confuses_are_refused(members: list[Any], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        decoder(_one(members), _one(members[::-1]))
    decoder(_one(members), _one(members))


def test_a_type_by_its_name_is_compared_as_well() -> None:
    text = record(("a", ["null", "Money"]))
    with pytest.raises(SchemaError, match="decimal of scale 4"):
        decoder(schema(text, _money(2)), schema(text, _money(4)))


def test_records_of_one_short_name_are_compared_where_they_meet() -> None:
    writer = _both(_named("a.M", MILLIS), _named("b.M", MICROS))
    changed = "has the logical type timestamp-"
    for first, second, words in [
        (_named("a.M", MICROS), _named("b.M", MICROS), rf"of a\.M {changed}micros"),
        (_named("b.M", MICROS), _named("a.M", MICROS), rf"of b\.M {changed}micros"),
        (_named("c.M", MILLIS), _named("d.M", MILLIS), rf"of d\.M {changed}millis"),
    ]:
        with pytest.raises(SchemaError, match=words):
            decoder(writer, _both(first, second))
    decoder(writer, _both(_named("b.M", MILLIS), _named("a.M", MICROS)))


def test_a_record_that_contains_itself_is_compared_once() -> None:
    def node(kind: Any) -> Schema:
        return _both(record(("x", kind), ("next", ["null", "Node"], None), name="Node"), "int")

    reader = _both(_named("Node", MICROS), "int")
    decoder(node(MICROS), reader)
    with pytest.raises(SchemaError, match="was timestamp-millis"):
        decoder(node(MILLIS), reader)


@pytest.mark.parametrize("indent", [None, 1])
def test_unions_of_one_schema_are_read_as_they_were_written(indent: int | None) -> None:
    writer = _both(["null", "double", "long"], ["null", "bytes", "string", _money(2)])
    text = json.loads(writer.text)
    raw = payload(text, {"a": ("long", 2**53 + 1), "b": ("string", "text")})
    # Other spaces are no other schema.
    made = read([raw], writer, Schema("AVRO", json.dumps(text, indent=indent)))
    assert made.errors == {}
    (found,) = made.array.to_pylist()
    assert found["a"] == {"double": None, "long": 2**53 + 1}
    assert found["b"] == {"bytes": None, "string": "text", "Money": None}


def test_changes_that_give_no_other_value_are_allowed() -> None:
    decoder(_one("long"), _one(MICROS))
    # Fixed of another size are no members of a union.
    sizes = ["null", fixed(4, name="a.F"), fixed(8, name="b.F")]
    decoder(_both(sizes, "int"), _both(sizes, "long"))


_NUMBERS = {"int": 7, "long": 9007199254740993, "float": 0.5, "double": 0.1}
_PAIRS = [("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")]


@pytest.mark.parametrize("pair", [*_PAIRS, *((b, a) for a, b in _PAIRS)], ids="-".join)
@pytest.mark.parametrize("turned", [False, True])
def test_a_member_of_a_union_stays_itself_when_a_field_is_added(
    pair: tuple[str, str], *, turned: bool
) -> None:
    writer = record(("a", ["null", *pair]))
    members = reversed(pair) if turned else pair
    reader = record(("a", ["null", *members]), ("b", "int", 0))
    payloads = [payload(writer, {"a": (name, _NUMBERS[name])}) for name in pair]
    made = read(payloads, schema(writer), schema(reader))
    assert made.errors == {}
    found = [{k: v for k, v in row["a"].items() if v is not None} for row in made.array.to_pylist()]
    assert found == [{name: _NUMBERS[name]} for name in pair]


def test_fields_are_compared_by_aliases_and_in_nested_records() -> None:
    after = _named("I", MICROS)
    after["fields"][0] |= {"name": "b", "aliases": ["x"]}
    with pytest.raises(SchemaError, match="field 'b' of I"):
        decoder(_one(array(_named("I", MILLIS))), _one(array(after)))
