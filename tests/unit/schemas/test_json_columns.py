"""JSON read and written by column gives the same results as row by row, for any records."""

import json
import random
import string
from typing import Any

import pyarrow as pa
import pytest

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.json_schema import JsonSchema
from support.schema_codecs import (
    column,
    counted,
    damages,
    read_alike,
    spark_type,
    with_others,
    write,
    written_alike,
)

SEEDS = [*range(80), 436]
ROWS = 20
# Texts of numbers, as records may have them.
NUMBERS = [
    *("0", "-0", "-0.0", "1", "-7", "1.0", "0.1", "1e2", "1E-3", "1.5e300", "1e400", "5e-324"),
    *("9007199254740993", "9223372036854775807", "-9223372036854775808", "9223372036854775808"),
    *("18446744073709551616", "123456789012345678.0", "12345678901234567e1", "99999999e11"),
    *("9007199254740992.5", "0.30000000000000004", "1e16", "123456789.125", "1e-4", "1e9"),
]
TEXTS = ["", "a", "é", '"\\/\b\n\x01\x7f', "\u2028", "1e5", "2026-01-01", "x" * 40, "{", "null"]
MOMENTS = [
    *("2026-01-01T00:00:00Z", "1969-12-31t23:59:59.1234567z", "2026-01-01T00:00:00-05:30"),
    *("2026-01-01", "0001-01-01", "2024-02-30", "2026-06-30T23:59:60Z"),
]
DAMAGES = [
    *(b"", b"null", b"[]", b"{}", b'"a"', b"{", b'{"f0":1}{"f0":2}', b"\xef\xbb\xbf{}", b"\xff"),
    *(b'{"f0":NaN}', b'{"f0":-Infinity}', b'{"f0":"\\ud800"}', b'{"f0":1,"f0":2}', b'{"f0":[1,]}'),
    *(b' {"f1" : 1 }\n', b'{"f0":true,"f1":"\xff"}', b"[" * 2000),
]


class Made:
    """Random schemas, and values that mostly fit them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def schema(self, depth: int = 0) -> dict[str, Any]:
        chance = self.random
        names = ["string", "integer", "number", "boolean", "date", "date-time"]
        name = chance.choice([*names, *(["object", "array"] if depth < 3 else [])])
        if name in {"date", "date-time"}:
            made: dict[str, Any] = {"type": "string", "format": name}
        elif name == "object":
            made = self.record(depth + 1)
        elif name == "array":
            made = {"type": "array", "items": self.schema(depth + 1)}
        else:
            made = {"type": name}
        if chance.random() < 0.1 and name == "string":
            made["maxLength"] = 3
        if chance.random() < 0.1 and name == "integer":
            made["minimum"] = 0
        if chance.random() < 0.3:
            if chance.random() < 0.5:
                made["type"] = [made["type"], "null"]
            else:
                made = {chance.choice(["oneOf", "anyOf"]): [{"type": "null"}, made]}
        return made

    def record(self, depth: int = 0) -> dict[str, Any]:
        chance = self.random
        names = [f"f{number}" for number in range(chance.randint(1, 4))]
        made: dict[str, Any] = {"type": "object"}
        made["properties"] = {name: self.schema(depth) for name in names}
        made["required"] = [name for name in names if chance.random() < 0.5]
        if chance.random() < 0.2:
            made["additionalProperties"] = False
        if chance.random() < 0.1:
            made["title"] = 'a "title"'
        return made

    def text(self, schema: Any, wrong: float) -> str:
        """A value's JSON; ``wrong``: the probability that a part of it has another type."""
        chance = self.random
        for word in ("oneOf", "anyOf"):
            if word in schema:
                schema = {**schema[word][1], "nullable": True}
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if chance.random() < 0.2 and ("null" in names or "nullable" in schema):
            return "null"
        if chance.random() < wrong:
            return chance.choice(["null", "1", "1.5", '"a"', "true", "[]", "{}", "[1]"])
        if names[0] in {"array", "object"}:
            return self._container(schema, names[0], wrong)
        return self._scalar(schema, names[0])

    def _scalar(self, schema: Any, name: str) -> str:
        chance = self.random
        if "format" in schema:
            return json.dumps(chance.choice(MOMENTS[:3] if chance.random() < 0.9 else MOMENTS))
        if name == "string":
            return json.dumps(chance.choice(TEXTS), ensure_ascii=chance.random() < 0.5)
        if name == "boolean":
            return chance.choice(["true", "false"])
        few = NUMBERS[:6] if name == "integer" else NUMBERS[:10]
        return chance.choice(few if chance.random() < 0.9 else NUMBERS)

    def _container(self, schema: Any, name: str, wrong: float) -> str:
        chance = self.random
        space = chance.choice(["", " ", "\n\t"])
        if name == "array":
            items = [self.text(schema["items"], wrong) for _ in range(chance.randint(0, 3))]
            return f"[{space}{f',{space}'.join(items)}]"
        parts = [
            f"{json.dumps(field)}{space}:{self.text(own, wrong)}"
            for field, own in schema["properties"].items()
            if chance.random() < (0.95 if field in schema["required"] else 0.6)
        ]
        if chance.random() < 0.1:
            parts.append('"other":[1,{"f0":null}]')
        chance.shuffle(parts)
        return "{" + f",{space}".join(parts) + space + "}"


@pytest.mark.parametrize("seed", SEEDS)
def test_records_are_read_as_row_by_row(seed: int) -> None:
    made = Made(seed)
    text = made.record()
    writer: JsonSchema = format_of(Schema("JSON", json.dumps(text)))
    reader = writer
    if seed % 4 == 0:
        fields = list(text["properties"])[:-1] or list(text["properties"])
        less = {**text, "properties": {name: text["properties"][name] for name in fields}}
        less["required"] = [name for name in text["required"] if name in fields]
        reader = format_of(Schema("JSON", json.dumps(less)))
    payloads = [made.text(text, 0.02).encode() for _ in range(ROWS)]
    for payload in [*payloads]:
        some = damages(payload, made.random, string.printable.encode())
        payloads.append(made.random.choice([*some, made.random.choice(DAMAGES)]))
    made.random.shuffle(payloads)
    rows = pa.array(payloads, pa.binary())
    read_alike(reader, writer, rows)
    # A slice, as Spark's batches may be.
    read_alike(reader, writer, rows[3:-2])


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_are_written_as_row_by_row(seed: int) -> None:
    made = Made(seed)
    text = made.record()
    schema: JsonSchema = format_of(Schema("JSON", json.dumps(text)))
    payloads = [made.text(text, 0.0).encode() for _ in range(ROWS)]
    rows = schema.decoder(schema)(pa.array(payloads, pa.binary())).array
    others = with_others(rows, made.random, _others)
    for values in (rows, others, others[2:-3], others[:0]):
        written_alike(schema, values)


def _others(value: Any, kind: pa.DataType) -> list[Any]:
    if pa.types.is_floating(kind):
        return [value, 0.1, 1e16, 5e-324, -0.0, float("nan"), 1e300, 12345678.0]
    return [value, *TEXTS] if pa.types.is_string(kind) else [value]


def test_ordinary_records_are_not_coded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    left = counted(monkeypatch)
    kinds = {"s": "string", "i": "integer", "n": "number", "b": "boolean"}
    fields: dict[str, Any] = {name: {"type": kind} for name, kind in kinds.items()}
    fields["t"] = {"type": "string", "format": "date-time"}
    fields["l"] = {"type": "array", "items": {"type": ["string", "null"]}}
    text = {"type": "object", "properties": fields, "required": ["s"], "minProperties": 1}
    schema: JsonSchema = format_of(Schema("JSON", json.dumps(text)))
    values = {"s": 'a "b" 0f3e5', "i": 2**62, "n": 0.25, "b": True, "l": ["a", None]}
    values["t"] = "2026-01-01T00:00:00.5-01:00"
    payloads = [json.dumps(values).encode(), b'{"s":"a"}'] * 150
    rows = pa.array(payloads, pa.binary())
    made = schema.encoder(schema.kind.spark)(schema.decoder(schema)(rows).array)
    assert made.array[0].as_py() == (
        b'{"s":"a \\"b\\" 0f3e5","i":4611686018427387904,"n":0.25,"b":true,'
        b'"t":"2026-01-01T01:00:00.500000Z","l":["a",null]}'
    )
    assert left == []


def test_only_rows_in_doubt_are_coded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    left = counted(monkeypatch)
    format_: JsonSchema = format_of(
        Schema("JSON", '{"type": "object", "properties": {"f": {"type": "number"}}}')
    )
    made = format_.decoder(format_)(pa.array([b'{"f":1.5}', b"{", b'{"f":0.5}'], pa.binary()))
    assert (left, [*made.errors]) == ([1], [1])
    column = pa.array([{"f": 0.5}, {"f": float("nan")}, None], format_.kind.arrow)
    made = format_.encoder(format_.kind.spark)(column)
    assert (left, [*made.errors]) == ([1, 1], [1])


def test_schemas_with_maps_are_coded_row_by_row() -> None:
    text = {"type": "object", "properties": {"m": {"additionalProperties": {"type": "string"}}}}
    format_: JsonSchema = format_of(Schema("JSON", json.dumps(text)))
    payloads = pa.array([b'{"m":{"a":"b"}}'], pa.binary())
    column = format_.decoder(format_)(payloads).array
    assert format_.encoder(format_.kind.spark)(column).array.to_pylist() == payloads.to_pylist()


def test_schemas_of_which_no_column_is_made() -> None:
    schema: JsonSchema = format_of(Schema("JSON", '{"type": "object", "properties": {"f": {}}}'))
    with pytest.raises(SchemaError, match="does not state a type"):
        schema.decoder(schema)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ({"type": "string", "maxLength": 2}, "abc"),
        ({"type": "string", "enum": ["a"]}, "b"),
        ({"type": "integer", "minimum": 1}, 0),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, ["a", "b"]),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "maxProperties": 0},
            {"a": ""},
        ),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}, {"a": ""}),
    ],
)
def test_what_only_the_schema_refuses(text: Any, value: Any) -> None:
    whole = {"type": "object", "properties": {"f": text}}
    schema: JsonSchema = format_of(Schema("JSON", json.dumps(whole)))
    payload = json.dumps({"f": value}).encode()
    made = schema.decoder(schema)(pa.array([payload], pa.binary()))
    assert made.errors.keys() == {0}
    column = pa.array([{"f": value}], schema.kind.arrow)
    assert schema.encoder(schema.kind.spark)(column).errors.keys() == {0}


@pytest.mark.parametrize("mark", ['"', "\\", "\0", "\n", "\x1f", "\x7f", "é", "\u2028"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_batchs_only_character_to_escape_is_found(mark: str, place: int) -> None:
    schema = Schema("JSON", '{"type": "object", "properties": {"text": {"type": "string"}}}')
    rows: list[Any] = [{"text": "plain"}, {"text": None}, {"text": "plain"}]
    rows[place] = {"text": f"a{mark}"}
    whole = column([{"text": '"'}, *rows, {"text": '"'}], spark_type(schema))
    for values in (whole, whole.slice(1, 3)):
        made = write(values, schema)
        assert made.errors == {}
        found = [json.loads(payload).get("text") for payload in made.array.to_pylist()]
        assert found == [row["text"] for row in values.to_pylist()]
