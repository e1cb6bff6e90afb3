"""Protobuf as columns: types, resolution, indexes, and values that can't be read or written."""

import base64
import datetime
import sys
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from google.protobuf import descriptor_pb2, message_factory
from pyspark.sql import types as T

from spark_eos.errors import ConfigurationError, SchemaError
from spark_eos.schemas import protobuf_files
from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.protobuf_files import file_of
from support.schema_codecs import decoder, read, spark_type, write

UTC = datetime.timezone.utc
MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
EVERYTHING = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/any.proto";
import "google/type/date.proto";
message Order {
  message Line { string product = 1; optional int32 count = 2; }
  message Gone {}
  enum Status { NEW = 0; PAID = 1; }
  double d = 1; float f = 2; int32 i = 3; int64 l = 4; uint32 u = 5; uint64 ul = 6;
  sint32 si = 7; sint64 sl = 8; fixed32 fu = 9; fixed64 ful = 10; sfixed32 fi = 11;
  sfixed64 fl = 12; bool b = 13; string s = 14; bytes raw = 15;
  Status status = 16;
  Line line = 17;
  repeated Line lines = 18;
  repeated int32 numbers = 19;
  map<string, int64> counts = 20;
  map<int32, Line> by_number = 21;
  oneof how { string card = 22; int64 cash = 23; Gone gone = 24; }
  optional string note = 25;
  google.protobuf.Timestamp at = 26;
  google.protobuf.Duration took = 27;
  google.protobuf.StringValue text = 28;
  google.protobuf.UInt64Value number = 29;
  google.protobuf.Any any = 30;
  google.type.Date day = 31;
  repeated google.protobuf.Timestamp times = 32;
  map<string, google.protobuf.Timestamp> stamps = 33;
  repeated Status states = 34;
}
"""
# Of each field: its type in Spark, what it is if the message lacks it, and another value.
FIELDS: dict[str, tuple[str, Any, Any]] = {
    "d": ("double", 0.0, 1.5),
    "f": ("float", 0.0, 0.5),
    "i": ("int", 0, -(2**31)),
    "l": ("bigint", 0, -(2**63)),
    "u": ("bigint", 0, 2**32 - 1),
    "ul": ("decimal(20,0)", Decimal(0), Decimal(2**64 - 1)),
    "si": ("int", 0, -5),
    "sl": ("bigint", 0, -5),
    "fu": ("bigint", 0, 2**32 - 1),
    "ful": ("decimal(20,0)", Decimal(0), Decimal(2**64 - 1)),
    "fi": ("int", 0, -5),
    "fl": ("bigint", 0, -5),
    "b": ("boolean", False, True),
    "s": ("string", "", "é"),
    "raw": ("binary", b"", b"\xff"),
    "status": ("string", "NEW", "PAID"),
    "line": ("struct<product:string,count:int>", None, {"product": "", "count": None}),
    "lines": (
        "array<struct<product:string,count:int>>",
        [],
        [{"product": "a", "count": 0}, {"product": "b", "count": None}],
    ),
    "numbers": ("array<int>", [], [1, -1]),
    "counts": ("map<string,bigint>", [], [("a", 1)]),
    "by_number": (
        "map<int,struct<product:string,count:int>>",
        [],
        [(-1, {"product": "a", "count": 1})],
    ),
    "card": ("string", None, ""),
    "cash": ("bigint", None, None),
    "gone": ("struct<>", None, None),
    "note": ("string", None, ""),
    "at": ("timestamp", None, MOMENT),
    "took": ("interval day to second", None, datetime.timedelta(microseconds=-1_500_000)),
    "text": ("string", None, ""),
    "number": ("decimal(20,0)", None, Decimal(2**64 - 1)),
    "any": ("struct<type_url:string,value:binary>", None, {"type_url": "a/b", "value": b"x"}),
    "day": ("struct<year:int,month:int,day:int>", None, {"year": 2026, "month": 2, "day": 28}),
    "times": ("array<timestamp>", [], [MOMENT]),
    "stamps": ("map<string,timestamp>", [], [("a", MOMENT)]),
    "states": ("array<string>", [], ["PAID", "NEW"]),
}


def schema(text: str, *references: tuple[str, str], message: str | None = None) -> Schema:
    """A schema; proto3 unless its text says otherwise."""
    head = "" if "syntax" in text else 'syntax = "proto3"; package shop; '
    return Schema("PROTOBUF", head + text, references, message)


def make(own: Schema) -> Any:
    """The class of a schema's message."""
    name = format_of(own).name
    return message_factory.GetMessageClass(file_of(own).pool.FindMessageTypeByName(name))


def test_each_type_has_a_column() -> None:
    own = schema(EVERYTHING)
    kind = spark_type(own)
    assert isinstance(kind, T.StructType)
    assert {field.name: field.dataType.simpleString() for field in kind} == {
        name: spark for name, (spark, _, _) in FIELDS.items()
    }
    lacking = {name: value for name, (_, value, _) in FIELDS.items()}
    whole = {name: value for name, (_, _, value) in FIELDS.items()}
    gone = lacking | {"gone": {}}
    made = write([lacking, whole, None, gone], own)
    assert made.errors == {}
    first, second, third, fourth = made.array.to_pylist()
    assert (first, third, fourth) == (b"", None, make(own)(gone={}).SerializeToString())
    message = make(own).FromString(second)
    assert (message.at.seconds, message.at.nanos) == (-1, 999_999_000)
    assert (message.took.seconds, message.took.nanos) == (-1, -500_000_000)
    assert message.WhichOneof("how") == "card"
    assert message.HasField("note")
    again = read([b"\x00" + first, b"\x00" + second, b"\x00" + fourth], own)
    assert again.errors == {}
    assert again.array.to_pylist() == [lacking, whole, gone]
    # A slice of an array, as Arrow shares them.
    assert write([gone, whole, lacking], own).array[1:].to_pylist() == [second, first]
    again = read([b"\x00" + second, b"\x00" + first, b"\x00" + second], own)
    arrow = again.array.slice(1, 2)
    assert write(arrow, own).array.to_pylist() == [first, second]


def test_required_fields_below_others_are_named() -> None:
    own = schema("""
        syntax = "proto2"; message Order { repeated Part parts = 1; map<string, Part> named = 2;
          optional Part one = 3; map<int32, string> texts = 4; }
        message Part { required string id = 1; map<int32, int32> counts = 2; }""")
    # upb's own list of them crashes the process if there are maps of scalar values.
    part = b"\x12\x04\x08\x01\x10\x02"
    parts = b"".join(b"\x0a" + bytes([len(part)]) + part for _ in range(5))
    named = b"\x12\x0b\x0a\x01k\x12\x06" + part
    payload = b"\x00" + parts + named + b"\x1a\x06" + part + b"\x22\x05\x08\x01\x12\x01x"
    made = read([payload, b"\x00\x1a\x03\x0a\x01i"], own)
    lacking = [f"parts[{index}].id" for index in range(5)] + ["named[k].id", "one.id"]
    assert made.errors == {0: f"it lacks required fields: {', '.join(lacking)}"}
    assert made.array.to_pylist()[1]["one"] == {"id": "i", "counts": []}


def test_proto2_has_defaults_and_required_fields() -> None:
    own = schema("""
        syntax = "proto2"; message Order {
          required int64 id = 1; optional string unit = 2 [default = "pc"];
          optional group Part = 3 { optional int32 n = 4; } extensions 100 to 200; }""")
    made = read([b"\x00\x08\x01", b"\x00", b"\x00\x08\x01\x12\x02\xff\xff"], own)
    assert made.array.to_pylist() == [{"id": 1, "unit": "pc", "part": None}, None, None]
    assert made.errors.keys() == {1, 2}
    assert made.errors[1] == "it lacks required fields: id"
    wrong = write([{"id": None, "unit": None, "part": {"n": 1}}], own)
    assert wrong.errors == {0: "id is null, which its schema does not allow"}
    with pytest.raises(SchemaError, match="lacks the field 'id', for which"):
        write([], own, T.StructType([T.StructField("unit", T.StringType())]))


def test_what_compiled_files_and_references_hold_is_found() -> None:
    money = 'syntax = "proto3"; package shop; message Money { int64 units = 1; }'
    own = schema(
        """import "shop/money.proto"; import "confluent/type/decimal.proto";
        message Order { Money price = 1; confluent.type.Decimal exact = 2; }""",
        ("shop/money.proto", money),
    )
    expected = (
        "struct<price:struct<units:bigint>,exact:struct<value:binary,precision:bigint,scale:int>>"
    )
    assert spark_type(own).simpleString() == expected
    # As Confluent's serializer for Python registers them.
    texts = {}
    for name in ("shop/money.proto", "spark_eos_schema.proto"):
        file = descriptor_pb2.FileDescriptorProto()
        file_of(own).pool.FindFileByName(name).CopyToProto(file)
        texts[name] = base64.b64encode(file.SerializeToString()).decode()
    compiled = texts["spark_eos_schema.proto"]
    for reference in (money, texts["shop/money.proto"]):
        same = Schema("PROTOBUF", compiled, (("shop/money.proto", reference),))
        assert spark_type(same).simpleString() == expected
    mixed = Schema("PROTOBUF", own.text, (("shop/money.proto", texts["shop/money.proto"]),))
    assert spark_type(mixed).simpleString() == expected
    with pytest.raises(SchemaError, match=r"has no reference 'shop/money.proto', which"):
        spark_type(Schema("PROTOBUF", compiled))


@pytest.mark.parametrize("name", ["google/type/own.proto", "confluent/shop/own.proto"])
def test_a_reference_may_be_named_like_a_common_file(name: str) -> None:
    money = 'syntax = "proto3"; package shop; message Money { int64 units = 1; }'
    own = schema(f'import "{name}"; message Order {{ Money price = 1; }}', (name, money))
    assert spark_type(own).simpleString() == "struct<price:struct<units:bigint>>"


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (schema("message Order { Money price = 1; }"), r'"Money" is not defined'),
        (schema("message Order {"), r"the schema:1:\d+: "),
        (schema('import "other.proto"; message Order {}'), "other.proto: File not found"),
        (schema("enum E { A = 0; }"), "has no message"),
        (
            schema("message A {} message B {}", message="shop.C"),
            "no message 'shop.C'; it has shop.A",
        ),
        (schema("message A {}", ("../../a.proto", "message B {}")), "can't be the name of a file"),
        (
            schema("message A { map<string, B> bs = 1; } message B { repeated A as = 1; }"),
            r"bs\{\}\.as\[\]: message shop\.A contains itself",
        ),
        (
            schema(
                'import "google/protobuf/struct.proto"; message A { google.protobuf.Struct s = 1; }'
            ),
            r"s\.fields\{\}.*: message google\.protobuf\.\w+ contains itself",
        ),
    ],
)
def test_what_is_no_column_is_refused(own: Schema, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        spark_type(own)


def test_no_schema_is_to_blame_if_protoc_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_files, "_SECONDS", 0.001)
    with pytest.raises(ConfigurationError, match=r"protoc has not ended within 0\.001 s"):
        spark_type(schema("message NeverCompiled {}"))
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigurationError, match=r"grpc_tools\.protoc ended with 1"):
        spark_type(schema("message NeverCompiled {}"))


SEVERAL = """message A { int32 x = 1; message B { int32 y = 1; message C { int32 z = 1; } } }
    message D { int32 d = 1; }"""


@pytest.mark.parametrize(
    ("message", "indexes"),
    [("shop.A", [0]), ("shop.A.B", [0, 0]), ("shop.A.B.C", [0, 0, 0]), ("shop.D", [1])],
)
def test_indexes_say_which_message_it_is(message: str, indexes: list[int]) -> None:
    own = schema(SEVERAL, message=message)
    kind = spark_type(own)
    prefix = SchemaId("PROTOBUF", 7, None, indexes).id_to_bytes()[5:]
    assert format_of(own).prefix == prefix
    # The first message may be written as an array of one, too.
    long_form = bytes([2 * len(indexes), *(2 * index for index in indexes)])
    others = [b"\x02\x04\x08\x05", b"\x04\x00\x0a\x08\x05", b"\x03\x08\x05", b"\x08\x00", b""]
    made = read([prefix + b"\x08\x05", long_form + b"\x08\x05", *others], own)
    (name,) = kind.fieldNames()
    assert made.array.to_pylist() == [{name: 5}] * 2 + [None] * 5
    assert made.errors.keys() == {2, 3, 4, 5, 6}
    assert f"not a {message}" in made.errors[2]
    assert "its message indexes can't be read" in made.errors[4]
    assert not any("EOS" in text for text in made.errors.values())
    other = schema(SEVERAL, message="shop.D" if message != "shop.D" else "shop.A")
    wrong = read([prefix + b"\x08\x05"], own, other)
    assert wrong.errors[0].startswith(f"it is a {message}, by its message indexes {indexes}, not")


def test_bad_records_have_errors() -> None:
    own = schema(
        """import "google/protobuf/timestamp.proto";
        message A { string s = 1; int32 i = 2; google.protobuf.Timestamp at = 3; }"""
    )
    late = make(own)(at={"seconds": 253_402_300_800}).SerializeToString()
    whole = make(own)(s="abc", i=1).SerializeToString()
    made = read([b"\x00" + one for one in (whole, whole[:3], b"\x07", b"\x0a\x01\xff", late)], own)
    assert made.array.to_pylist() == [{"s": "abc", "i": 1, "at": None}, None, None, None, None]
    assert made.errors.keys() == {1, 2, 3, 4}
    assert "it is truncated, or does not match its schema" in made.errors[1]
    assert "seconds or nanoseconds are out of timestamp's range" in made.errors[4]


_OWN = "google.protobuf"
_ONE_OF_TWO = "oneof o { int32 a = 1; int32 b = 2; }"


def test_fields_come_and_go() -> None:
    old = schema("message A { string s = 1; int32 i = 2; bool gone = 3; }")
    new = schema("message A { bytes renamed = 1; int64 i = 2; optional int32 added = 4; }")
    record = b"\x00" + make(old)(s="a", i=-1, gone=True).SerializeToString()
    made = read([record], old, new)
    assert (made.array.to_pylist(), made.errors) == (
        [{"renamed": b"a", "i": -1, "added": None}],
        {},
    )
    back = b"\x00" + make(new)(renamed=b"a", i=-1, added=7).SerializeToString()
    assert read([back], new, schema("message A { bytes renamed = 1; int64 i = 2; }")).errors == {}
    # One alone may move into a oneof, and all of one into another.
    for before in ("int32 a = 1;", _ONE_OF_TWO.replace(" o ", " p ")):
        decoder(*(schema(f"message A {{ {own} }}") for own in (before, _ONE_OF_TWO)))


@pytest.mark.parametrize(
    ("writer", "reader", "text"),
    [
        ("int64 a = 1;", "string a = 1;", r"a \(field 1\): int64 can't be read as string"),
        ("int64 a = 1;", "int32 a = 1;", "int64 can't be read as int32"),
        ("sint32 a = 1;", "int32 a = 1;", "sint32 can't be read as int32"),
        ("repeated int32 a = 1;", "int32 a = 1;", "repeated int32 can't be read as int32"),
        ("B a = 1; message B { int32 b = 2; }", "B a = 1; message B { bool b = 2; }", r"a\.b \(f"),
        ("int32 a = 1; int32 b = 2;", _ONE_OF_TWO, "o: a message may have both a and b"),
        ("oneof p { int32 a = 1; } int32 b = 2;", _ONE_OF_TWO, "may have both a and b"),
        (f"{_OWN}.Duration a = 1;", f"{_OWN}.Timestamp a = 1;", "Duration can't be read as"),
        (f"{_OWN}.StringValue a = 1;", f"{_OWN}.BytesValue a = 1;", "can't be read as"),
        (
            "repeated B a = 1; message B { string key = 1; int32 value = 2; }",
            "map<string, int32> a = 1;",
            r"a \(field 1\): repeated message can't be read as map",
        ),
    ],
)
def test_a_field_that_has_changed_its_type_is_not_lost(writer: str, reader: str, text: str) -> None:
    names = ("duration", "timestamp", "wrappers") if _OWN in writer else ()
    head = "".join(f'import "google/protobuf/{name}.proto"; ' for name in names)
    one, other = (schema(f"{head} message A {{ {own} }}") for own in (writer, reader))
    with pytest.raises(SchemaError, match=text):
        decoder(one, other)


def test_values_of_enums_that_have_no_name_are_not_lost() -> None:
    old = schema("message A { enum E { X = 0; } E e = 1; }")
    new = schema("message A { enum E { X = 0; Y = 5; } E e = 1; }")
    made = read([b"\x00\x08\x05", b"\x00"], new, old)
    assert (made.array.to_pylist(), made.errors) == ([{"e": "5"}, {"e": "X"}], {})
    assert write([{"e": "5"}], old).array.to_pylist() == [b"\x08\x05"]
    head = 'syntax = "proto2"; package shop; message A { enum E { X = 0; '
    closed, more = (schema(f"{head} {e} }} optional E e = 1; }}") for e in ("", "Y = 5;"))
    for writer, lost in ((more, "Y"), (old, "each value of enum")):
        with pytest.raises(SchemaError, match=rf"{lost} is not in the reader's shop\.A\.E"):
            decoder(writer, closed)


def test_zeros_that_are_left_out_are_not_read_as_a_default() -> None:
    proto2 = 'syntax = "proto2"; package shop; message A {{ optional int32 a = 1 {0}; }}'
    writer = schema("message A { int32 a = 1; }")
    with pytest.raises(SchemaError, match=r"a \(field 1\): the writer leaves out zeros"):
        decoder(writer, schema(proto2.format("[default = 7]")))
    zero = read([b"\x00"], writer, schema(proto2.format("[default = 0]")))
    assert zero.array.to_pylist() == [{"a": 0}]
    with_presence = schema("message A { optional int32 a = 1; }")
    seven = read([b"\x00"], with_presence, schema(proto2.format("[default = 7]")))
    assert seven.array.to_pylist() == [{"a": 7}]


def test_rows_that_do_not_fit_have_errors() -> None:
    own = schema(
        """message A { int32 i = 1; B b = 2; repeated B bs = 3; map<string, int32> m = 4;
        oneof o { string x = 5; int32 y = 6; } enum E { X = 0; } E e = 7; uint32 u = 8; }
        message B { int32 n = 1; }"""
    )
    good: dict[str, Any] = {
        "i": 1,
        "b": None,
        "bs": [],
        "m": [],
        "x": None,
        "y": None,
        "e": "X",
        "u": 0,
    }
    rows: dict[str, dict[str, Any]] = {
        "": {},
        "i is null, which its schema does not allow": {"i": None},
        "b.n is null": {"b": {"n": None}},
        "bs is null": {"bs": None},
        "bs[] is null": {"bs": [{"n": 1}, None]},
        "bs[].n is null": {"bs": [{"n": 1}, {"n": None}]},
        "m{} is null": {"m": [("a", 1), ("b", None)]},
        "at most one of x, y may have a value": {"x": "", "y": 0},
        "e: a text is not one of X": {"e": "Z"},
        "a value does not fit its type (ValueError)": {"u": -1},
    }
    made = write([good | row for row in rows.values()], own)
    for row, text in enumerate(rows):
        assert made.errors.get(row, "").startswith(text)
    assert made.array.is_valid().to_pylist() == [True] + [False] * (len(rows) - 1)


def test_columns_are_checked_when_the_frame_is_made() -> None:
    text = r"ul is decimal\(3,1\), but its schema needs decimal\(20,0\)"
    with pytest.raises(SchemaError, match=text):
        write([], CHECKED, _struct({"ul": T.DecimalType(3, 1)}))


def test_narrower_columns_fit() -> None:
    kind = _struct({"d": T.FloatType(), "i": T.ShortType(), "ul": T.LongType()})
    made = write([{"d": 0.5, "i": 1, "ul": 2}, {"d": 0.5, "i": 1, "ul": -2}], CHECKED, kind)
    assert make(CHECKED).FromString(made.array[0].as_py()) == make(CHECKED)(d=0.5, i=1, ul=2)
    assert made.errors == {1: "a value does not fit its type (ValueError)"}


def test_columns_of_nulls_fit_each_nullable_type() -> None:
    own = schema("""import "google/protobuf/wrappers.proto"; message A { optional int64 l = 1;
        optional uint64 u = 2; google.protobuf.StringValue s = 3;
        google.protobuf.UInt64Value n = 4; }""")
    made = write([dict.fromkeys("lusn")], own, _struct(dict.fromkeys("lusn", T.NullType())))
    assert (made.array.to_pylist(), made.errors) == ([b""], {})
    with pytest.raises(SchemaError, match="u is void"):
        write([], schema("message A { uint64 u = 1; }"), _struct({"u": T.NullType()}))


CHECKED = schema("message A { int32 i = 1; double d = 2; uint64 ul = 3; }")


def _struct(columns: dict[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("fields", "message", "text"),
    [
        ("optional E e = 1;", b"\x08\x05", "e (field 1)"),
        ("optional E e = 1 [default = Y];", b"\x08\x05", "e (field 1)"),
        ("repeated E e = 1;", b"\x08\x05\x08\x01", "e (field 1)"),
        ("map<string, E> e = 1;", b"\x0a\x05\x0a\x01a\x10\x05", "e (field 1)"),
        ("optional string s = 2;", b"\x10\x05", "s (field 2)"),
        ("repeated int32 n = 3;", b"\x1d\x05\x00\x00\x00", "n (field 3)"),
        ("map<string, int32> m = 4;", b"\x22\x06\x0a\x01a\x12\x01x", "m (field 4)"),
        ("optional B b = 5;", b"\x2a\x02\x12\x00", "n (field 2)"),
        ("optional google.protobuf.Timestamp t = 6;", b"\x32\x02\x0a\x00", "seconds (field 1)"),
        ("optional google.protobuf.StringValue w = 7;", b"\x3a\x02\x08\x01", "value (field 1)"),
    ],
)
def test_values_of_the_wrong_type_for_their_fields_are_not_lost(
    fields: str, message: bytes, text: str
) -> None:
    own = schema(
        f"""syntax = "proto2"; import "google/protobuf/timestamp.proto";
        import "google/protobuf/wrappers.proto"; message A {{ {fields} }}
        message B {{ optional int32 n = 2; }} enum E {{ X = 0; Y = 1; }}"""
    )
    # A field that the schema lacks is no fault.
    made = read([b"\x00", b"\x00" + message, b"\x00\x98\x06\x01"], own)
    assert made.errors.keys() == {1}
    assert made.errors[1].startswith(f"{text} has a value that is not of its type")
    assert made.array.is_valid().to_pylist() == [True, False, True]


def test_fields_may_have_the_names_of_messages_own_methods() -> None:
    names = sorted(name for name in dir(message_factory.GetMessageClass(
        descriptor_pb2.DescriptorProto.DESCRIPTOR)) if not name.startswith("_"))  # fmt: skip
    assert {"HasField", "ListFields", "SerializeToString"} <= {*names}
    fields = " ".join(f"optional int32 {name} = {number};" for number, name in enumerate(names, 1))
    inner = f"message B {{ {fields} }}"
    for text in (
        f"message A {{ {fields} }}",
        f'syntax = "proto2"; message A {{ {fields} required int32 x = 99; }}',
        "message A { optional B b = 1; repeated B bs = 2; map<string, B> m = 3; } "
        + inner.replace("CopyFrom", "copy_from"),
    ):
        own = schema(text)
        values: dict[str, Any] = {name: number for number, name in enumerate(names)}
        values["HasField"] = None
        values |= {"copy_from": values.pop("CopyFrom")} if "copy_from" in text else {}
        values |= {"x": 1} if "x = 99" in text else {}
        row = {"b": values, "bs": [values], "m": [("k", values)]} if "map" in text else values
        made = write([row], own)
        assert made.errors == {}
        again = read([b"\x00" + made.array[0].as_py()], own)
        assert (again.array.to_pylist(), again.errors) == ([row], {})
    own = schema(f"message A {{ map<string, B> m = 3; }} {inner}")
    with pytest.raises(SchemaError, match=r"m\{\}: messages with a field 'CopyFrom'"):
        write([], own)
