"""Malformed or malicious schemas, records and columns soon result in errors."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2 as pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import Schema, format_of
from support.avro_schemas import array, enum, fixed, logical, mapping, record
from support.schema_codecs import read, spark_type, write

TEXT = b"caf\xe9"
EMPTY = record(name="R0")
SECONDS = 30


@pytest.fixture
def _in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SECONDS


def avro(text: Any, *references: Any) -> Schema:
    return Schema(
        "AVRO",
        json.dumps(text),
        tuple((str(n), json.dumps(one)) for n, one in enumerate(references)),
    )


def proto(text: str, **references: str) -> Schema:
    head = 'syntax = "proto3"; '
    return Schema("PROTOBUF", head + text, tuple((n, head + one) for n, one in references.items()))


def layers(leaf: Any, **more: Any) -> Any:
    """Records that each contain the next one twice: 34 of them, and 2^34 fields."""
    made: Any = record(("n", leaf), name="R34")
    for n in range(33, -1, -1):
        fields = [{"name": "a", "type": made, **more}, {"name": "b", "type": f"R{n + 1}", **more}]
        made = {"type": "record", "name": f"R{n}", "fields": fields}
    return made


def messages(line: str) -> str:
    return "".join(line.format(n, n + 1) for n in range(34)) + "message M34 { int32 a = 1; }"


NODE = record(("n", "int"), ("next", ["null", "R"]), name="R")
FLAT = [record(("n", "int"), name="R0")] + [
    record(("r", f"R{n - 1}"), name=f"R{n}") for n in range(1, 400)
]
TWICE = messages("message M{0} {{ M{1} a = 1; M{1} b = 2; }} ")
IMPORTS = {
    f"f{n}.proto": f'import public "f{n + 1}.proto"; import "g{n + 1}.proto"; message F{n} {{}}'
    for n in range(34)
}
IMPORTS |= {f"g{n}.proto": f'import "f{n}.proto"; message G{n} {{}}' for n in range(1, 35)}
IMPORTS |= {"f34.proto": "message F34 {}"}
# Writer, reader, payloads, and what is wrong with the schema, or with the last payload.
HARMFUL: dict[str, tuple[Schema, Schema, list[bytes], str]] = {
    "a record in itself": (
        avro(record(("r", "R"), name="R")),
        avro(record(name="R")),
        [b"\0"],
        "250 levels",
    ),
    "twice in itself": (
        avro(record(("a", "R"), ("b", "R"), name="R")),
        avro(record(name="R")),
        [b"\0"],
        "250 levels",
    ),
    "5,000 levels of records": (
        avro(NODE),
        avro(record(("n", "int"), name="R")),
        [b"\2\2" * 249 + b"\2\0", b"\2\2" * 5000 + b"\2\0"],
        "250 levels",
    ),
    "a list in itself": (
        avro(record(("l", array("R")), name="R")),
        avro(record(name="R")),
        [b"\2" * 100 + b"\0" * 101, b"\2" * 5000 + b"\0" * 5001],
        "250 levels",
    ),
    "400 types in each other": (
        avro(record(("u", FLAT), name="T")),
        avro(record(name="T")),
        [],
        "250 levels|too deep",
    ),
    "a default in itself": (
        avro(record(("r", "R", {}), name="R")),
        avro(record(name="R")),
        [b""],
        "250 levels deep",
    ),
    "2^34 nulls": (avro(layers("null")), avro(EMPTY), [], "more than 1000 values without bytes"),
    "lists of 2^34 nulls": (
        avro(array(layers("null"))),
        avro(array(EMPTY)),
        [],
        "more than 1000 values",
    ),
    "2^34 numbers": (avro(layers("int")), avro(EMPTY), [b"\0" * 1000], "truncated"),
    "2^34 columns": (avro(layers("int")), avro(layers("int")), [], "more than 20,000 columns"),
    "2^34 defaults": (
        avro(record(("r", {**layers("int", default={}), "name": "S"}, {}), name="T")),
        avro(record(name="T")),
        [b"\0" * 1000],
        "truncated",
    ),
    "100,001 defaults": (
        avro(record(name="T")),
        avro(record(("r", array("int"), [0] * 100_001), name="T")),
        [],
        "more than 100,000 values",
    ),
    "a fixed of less than no bytes": (
        avro(array(fixed(-4))),
        avro(array("bytes")),
        [],
        "size of a fixed is -4",
    ),
    "2^62 items": (
        avro(record(("f", array(fixed(4))), ("r", ["null", "R"]), name="R")),
        avro(record(name="R")),
        [b"\xfe" + b"\xff" * 8 + b"\1" + b"a" * 9],
        "truncated",
    ),
    "2^62 items that the reader lacks": (
        avro(record(("n", "int"), ("f", array("double")), name="R")),
        avro(record(("n", "long"), name="R")),
        [b"\2\0", b"\2\xfe" + b"\xff" * 8 + b"\1" + b"a" * 9],
        "truncated",
    ),
    "a truncated text that the reader lacks": (
        avro(record(("n", "int"), ("s", "string"), name="R")),
        avro(record(("n", "long"), name="R")),
        [b"\2\4ab", b"\2\6ab"],
        "truncated",
    ),
    "2^34 fields of JSON": (
        Schema("JSON", "{}"),
        Schema(
            "JSON",
            json.dumps(
                {
                    "$ref": "#/$defs/d0",
                    "$defs": {
                        **{
                            f"d{n}": {
                                "properties": {
                                    "a": {"$ref": f"#/$defs/d{n + 1}"},
                                    "b": {"$ref": f"#/$defs/d{n + 1}"},
                                }
                            }
                            for n in range(34)
                        },
                        "d34": {"type": "string"},
                    },
                }
            ),
        ),
        [],
        "more than 20,000 columns",
    ),
    "5,000 levels of JSON": (
        Schema("JSON", '{"$ref": "#"}'),
        Schema("JSON", '{"properties": {"a": {"type": "string"}}}'),
        [b"{}", b'{"a":' * 5000 + b"{}" + b"}" * 5000],
        "it is not JSON",
    ),
    "2^34 messages": (proto(TWICE), proto("message M0 {}"), [b"\0"], ""),
    "2^34 columns of messages": (proto(TWICE), proto(TWICE), [], "more than 20,000 columns"),
    "2^34 imports": (
        proto('import "f0.proto"; message A {}', **IMPORTS),
        proto("message A {}"),
        [b"\0"],
        "",
    ),
    "imports of itself": (
        proto('import "f0.proto"; message A {}', **{"f0.proto": 'import "f0.proto";'}),
        proto("message A {}"),
        [],
        "imports itself|recursively",
    ),
    "a name of no file": (
        proto("message A {}", **{"\0": ""}),
        proto("message A {}"),
        [],
        "null byte",
    ),
    "a file and a directory": (
        proto("message A {}", **{"a": "message B {}", "a/b": "message C {}"}),
        proto("message A {}"),
        [],
        "'a/b' can't be the name of a file",
    ),
    "text that is none": (proto("message A {} \ud800"), proto("message A {}"), [], "utf-8"),
}


@pytest.mark.usefixtures("_in_time")
@pytest.mark.parametrize("name", HARMFUL)
def test_what_would_do_harm_is_an_error_in_time(name: str) -> None:
    writer, reader, payloads, words = HARMFUL[name]
    if not payloads:
        with pytest.raises(SchemaError, match=words):
            read(payloads, writer, reader)
        return
    *good, last = read(payloads, writer, reader).errors.items() or [(None, "")]
    assert good == []
    assert words in last[1]
    assert (last[0] == len(payloads) - 1) == bool(words)


@pytest.mark.usefixtures("_in_time")
def test_messages_of_proto2_in_each_other_are_read_in_time() -> None:
    text = messages("message M{0} {{ optional M{1} a = 1; optional M{1} b = 2; }} ").replace(
        "int32", "optional int32"
    )
    own = Schema(
        "PROTOBUF", f'syntax = "proto2"; {text} message R {{ optional M0 m = 1; }}', message="R"
    )
    other = Schema("PROTOBUF", 'syntax = "proto2"; message R {}', message="R")
    indexes = format_of(own).prefix
    assert read([indexes, indexes + b"\x0a\x00"], own, other).errors == {}


@pytest.mark.parametrize(
    "kinds", [(enum("a"), EMPTY), (fixed(2), record(name="F2")), (record(name="E"), enum("a"))]
)
def test_another_kind_of_the_same_name_is_refused(kinds: tuple[Any, Any]) -> None:
    written, wanted = ({**one, "name": "Same"} for one in kinds)
    with pytest.raises(
        SchemaError, match=f"is the {wanted['type']} Same, but was the {written['type']} Same"
    ):
        read([b"\0"], avro(written), avro(wanted))


JSON_TEXT = {"type": "string"}
# A schema of one field, by the field's type.
FIELDS: dict[str, Callable[[Any], Schema]] = {
    "AVRO": lambda kind: avro(record(("f", kind))),
    "JSON": lambda kind: Schema("JSON", json.dumps({"type": "object", "properties": {"f": kind}})),
    "PROTOBUF": lambda kind: proto(f"message A {{ {kind} = 1; }} enum E {{ caf = 0; }}"),
}
# Format, type, where the text is, and what holds a text.
TEXTS: list[tuple[str, Any, str, Callable[[Any], Any]]] = [
    ("AVRO", "string", "f", lambda text: text),
    ("AVRO", ["null", "string"], "f", lambda text: text),
    ("AVRO", enum("caf"), "f", lambda text: text),
    ("AVRO", logical("string", "uuid"), "f", lambda text: text),
    ("AVRO", array("string"), "f[]", lambda text: [b"caf", text]),
    ("AVRO", array(["null", "string"]), "f[]", lambda text: [None, text]),
    ("AVRO", mapping("int"), "f{}", lambda text: [(text, 1)]),
    ("AVRO", mapping("string"), "f{}", lambda text: [(b"a", text)]),
    ("AVRO", ["int", "string"], "f.string", lambda text: {"int": None, "string": text}),
    ("AVRO", record(("g", "string"), name="In"), "f.g", lambda text: {"g": text}),
    ("JSON", JSON_TEXT, "f", lambda text: text),
    ("JSON", {"type": ["string", "null"]}, "f", lambda text: text),
    ("JSON", {"enum": ["caf"]}, "f", lambda text: text),
    ("JSON", {"type": "array", "items": JSON_TEXT}, "f[]", lambda text: [b"caf", text]),
    (
        "JSON",
        {"type": "object", "additionalProperties": JSON_TEXT},
        "f{}",
        lambda text: [(text, b"a")],
    ),
    ("PROTOBUF", "string f", "f", lambda text: text),
    ("PROTOBUF", "optional string f", "f", lambda text: text),
    ("PROTOBUF", "E f", "f", lambda text: text),
    ("PROTOBUF", "repeated string f", "f[]", lambda text: [b"caf", text]),
    ("PROTOBUF", "map<string, int32> f", "f{}", lambda text: [(text, 1)]),
]


def _of_bytes(kind: pa.DataType, into: pa.DataType) -> pa.DataType:
    """A type with bytes for texts, or the reverse."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return into
    fields = [
        kind.field(n).with_type(_of_bytes(kind.field(n).type, into)) for n in range(kind.num_fields)
    ]
    if pa.types.is_map(kind):
        return pa.map_(_of_bytes(kind.key_type, into), fields[0].type.field(1))
    if pa.types.is_list(kind):
        return pa.list_(fields[0])
    return pa.struct(fields) if fields else kind


def _texts(schema: Schema, values: list[Any]) -> pa.Array:
    """A column of values with bytes for texts."""
    kind = format_of(schema).kind.arrow
    return pa.array([{"f": one} for one in values], _of_bytes(kind, pa.binary())).view(kind)


@pytest.mark.parametrize(("kind", "of", "where", "made"), TEXTS)
def test_text_that_is_not_utf_8_costs_its_row(
    kind: str, of: Any, where: str, made: Callable[[Any], Any]
) -> None:
    own = FIELDS[kind](of)
    good = b"d17bb2d3-4c1a-4b4c-9b0f-7c6f2f9d7a10" if "uuid" in str(of) else b"caf"
    values = [made(good), made(good), made(TEXT), made(good)]
    written = write(_texts(own, values), own)
    assert written.errors == {2: f"{where}: a text is not UTF-8"}
    assert [one is None for one in written.array.to_pylist()] == [False, False, True, False]
    assert write(_texts(own, values)[1:3], own).errors.keys() == {1}


JUNK = st.sampled_from(
    [
        *"AB",
        "null",
        "int",
        "string",
        "bytes",
        "record",
        "enum",
        "fixed",
        "array",
        "map",
        "decimal",
        "uuid",
        "",
        "x.y",
        "\ud800",
        None,
        True,
        0.5,
        -1,
        3,
        40,
    ]
)
ANY_BYTES = st.lists(st.binary(max_size=30), min_size=1, max_size=4)


def _avro(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.fixed_dictionaries(
        {"name": st.sampled_from("ab"), "type": inner},
        optional={"default": inner, "aliases": inner},
    )
    more = {
        "fields": st.lists(field, max_size=3),
        "symbols": st.lists(st.sampled_from("XY"), max_size=2),
        "size": st.integers(-1, 20),
        "items": inner,
        "values": inner,
    }
    words = ("aliases", "namespace", "logicalType", "precision", "scale", "default", "type", "name")
    named = st.fixed_dictionaries(
        {
            "type": st.sampled_from(["record", "enum", "fixed", "array", "map"]),
            "name": st.sampled_from("AB"),
        },
        optional={**more, **dict.fromkeys(words[:5], inner)},
    )
    return st.one_of(
        named,
        named,
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*words, *more]), inner, max_size=4),
    )


def _json(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    words = (
        "type",
        "properties",
        "items",
        "$ref",
        "$id",
        "$defs",
        "oneOf",
        "anyOf",
        "allOf",
        "enum",
        "const",
        "required",
        "additionalProperties",
        "format",
        "title",
        "prefixItems",
    )
    return st.one_of(
        st.dictionaries(st.sampled_from(words), inner, max_size=4),
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "\ud800"]), inner, max_size=2),
    )


@st.composite
def _message(draw: Any, depth: int = 1) -> Any:
    fields = draw(
        st.lists(
            st.tuples(
                st.sampled_from("abc"),
                st.integers(0, 5),
                st.integers(1, 3),
                st.integers(1, 18),
                st.sampled_from([None, "A", ".B", "google.protobuf.Timestamp"]),
            ),
            max_size=3,
        )
    )
    made = [
        pb.FieldDescriptorProto(name=n, number=i, label=many, type=of, type_name=ref)
        for n, i, many, of, ref in fields
    ]
    nested = draw(st.lists(_message(depth - 1), max_size=depth)) if depth else []
    return pb.DescriptorProto(name=draw(st.sampled_from("AB")), field=made, nested_type=nested)


def _file(messages: list[Any], syntax: str, imports: list[str]) -> str:
    file = pb.FileDescriptorProto(message_type=messages, syntax=syntax, dependency=imports)
    file.enum_type.add(name="E").value.add(name="V", number=0)
    return base64.b64encode(file.SerializeToString()).decode()


SCHEMAS: dict[str, st.SearchStrategy[str]] = {
    "AVRO": st.recursive(JUNK, _avro, max_leaves=10).map(json.dumps),
    "JSON": st.recursive(
        st.one_of(JUNK, st.sampled_from(["object", "#", "#/properties/a", "date"])),
        _json,
        max_leaves=10,
    ).map(json.dumps),
    "PROTOBUF": st.builds(
        _file,
        st.lists(_message(), max_size=3),
        st.sampled_from(["", "proto2", "proto3", "editions"]),
        st.lists(st.sampled_from(["google/protobuf/timestamp.proto", "x.proto"]), max_size=1),
    ),
}


@pytest.mark.parametrize("kind", SCHEMAS)
@settings(max_examples=60, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_any_schema_and_bytes_are_read_or_an_error(kind: str, data: Any) -> None:
    writer, payloads = data.draw(SCHEMAS[kind]), data.draw(ANY_BYTES)
    reader = Schema(kind, data.draw(st.one_of(st.just(writer), SCHEMAS[kind])))
    try:
        made = read([b"\0" + one for one in payloads], Schema(kind, writer), reader)
        again = write(made.array, reader, spark_type(reader))
    except SchemaError:
        return
    assert len(made.array) == len(again.array) == len(payloads)
    assert not {*made.errors} & {*again.errors}


NESTED = {
    "AVRO": avro(
        record(
            (
                "f",
                record(
                    ("a", ["null", "string"]),
                    ("b", array("string")),
                    ("c", mapping("string")),
                    name="In",
                ),
            )
        )
    ),
    "JSON": Schema(
        "JSON",
        json.dumps(
            {
                "properties": {
                    "f": {
                        "properties": {
                            "a": JSON_TEXT,
                            "b": {"items": JSON_TEXT},
                            "c": {"additionalProperties": JSON_TEXT},
                        }
                    }
                }
            }
        ),
    ),
    "PROTOBUF": proto(
        "message A { In f = 1; } message In { optional string a = 1; repeated string b = 2; "
        "map<string, string> c = 3; }"
    ),
}
TEXT_OR_BYTES = st.one_of(
    st.binary(max_size=3), st.text(max_size=3).map(lambda one: one.encode("utf-8", "replace"))
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NESTED)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "a": st.none() | TEXT_OR_BYTES,
                "b": st.lists(TEXT_OR_BYTES, max_size=2),
                "c": st.dictionaries(TEXT_OR_BYTES, TEXT_OR_BYTES, max_size=2).map(
                    lambda one: [*one.items()]
                ),
            }
        ),
        max_size=5,
    )
)
def test_any_text_is_written_or_an_error_of_its_row(kind: str, rows: list[dict[str, Any]]) -> None:
    own = NESTED[kind]
    made = write(_texts(own, rows), own)
    for row, one in enumerate(rows):
        texts = [one["a"] or b"", *one["b"], *(text for pair in one["c"] for text in pair)]
        assert (
            (row in made.errors)
            == (made.array[row].as_py() is None)
            == any(text.decode("utf-8", "ignore").encode() != text for text in texts)
        )
    prefix = format_of(own).prefix
    kept = [prefix + one for one in made.array.to_pylist() if one is not None]
    assert read(kept, own).errors == {}
