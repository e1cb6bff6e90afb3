"""Protobuf read and written as columns is what it is one by one, whatever the messages are."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas import protobuf_rows
from spark_eos.schemas.formats import OneByOne, Schema, format_of
from spark_eos.schemas.protobuf import Protobuf
from spark_eos.schemas.protobuf_columns import columns_of
from support.random_protobuf import RandomProtobuf, compiled
from support.schema_codecs import counted, read_alike, with_others, written_alike

SEEDS = range(35)
ROWS = 40


def _sorted(array: pa.Array) -> list[Any]:
    """All values, with sorted maps: upb has them in another order in each process."""

    def value(one: Any, kind: pa.DataType) -> Any:
        if one is None:
            return None
        if pa.types.is_struct(kind):
            return [value(one[field.name], field.type) for field in kind]
        if pa.types.is_map(kind):
            return sorted(
                ((value(key, kind.key_type), value(item, kind.item_type)) for key, item in one),
                key=repr,
            )
        if pa.types.is_list(kind):
            return [value(item, kind.value_type) for item in one]
        return one

    return [value(one, array.type) for one in array.to_pylist()]


def _made(seed: int) -> tuple[RandomProtobuf, Protobuf, Protobuf, Any]:
    made = RandomProtobuf(seed)
    file = made.file()
    writer = format_of(compiled(file))
    try:
        reader = writer if seed % 3 else format_of(compiled(made.changed(file)))
        reader.decoder_by_row(writer)
    except SchemaError:
        pytest.skip("refused")
    return made, writer, reader, message_factory.GetMessageClass(writer.descriptor(writer.name))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_messages_whole_and_damaged_are_read_alike(seed: int) -> None:
    made, writer, reader, make = _made(seed)
    messages = [made.fill(make()) for _ in range(ROWS)]
    payloads = [
        b"\0" + message.SerializePartialToString(deterministic=True) for message in messages
    ]
    payloads += [b"\0" + made.damaged(message) for message in messages]
    payloads += [made.damaged(message) for message in messages[:3]]
    made.random.shuffle(payloads)
    # Not from its buffer's beginning.
    rows = pa.array(payloads, pa.binary())[3:]
    read_alike(reader, writer, rows, _sorted)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_rows_are_written_alike_with_nulls_anywhere(seed: int) -> None:
    made, writer, _, make = _made(seed)
    messages = [made.fill(make()) for _ in range(ROWS)]
    payloads = [
        b"\0" + message.SerializePartialToString(deterministic=True) for message in messages
    ]
    rows = writer.decoder_by_row(writer)(pa.array(payloads, pa.binary())).array
    others = with_others(rows, made.random, _others)
    for one in (rows, rows[5:], others, others[3:-3], rows[:0]):
        written_alike(writer, one)


def _others(value: Any, kind: pa.DataType) -> list[Any]:
    if pa.types.is_string(kind):
        return [*[value] * 99, "77", "E", "", "none"]
    return [*[value] * 99, -1, 2**32, 2**63 - 1] if pa.types.is_int64(kind) else [value]


ORDINARY = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
    import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto";
    message Order {
      string id = 1; double amount = 2; int64 number = 3; optional string customer = 4;
      google.protobuf.Timestamp at = 5; bool paid = 6; repeated string tags = 7;
      int32 quantity = 8; uint64 large = 9; Status status = 10; Line first = 11;
      repeated Line lines = 12; repeated sint32 numbers = 13; map<string, int64> counts = 14;
      map<int32, Line> by_number = 15; oneof how { string card = 16; int64 cash = 17; }
      google.protobuf.Duration took = 18; google.protobuf.StringValue note = 19;
      repeated fixed64 sums = 2000; bytes raw = 2001; float share = 2002;
      enum Status { NEW = 0; PAID = 1; }
      message Line { string product = 1; uint32 count = 2; string note = 12; }
    }"""
VALUES: dict[str, Any] = {
    "id": "a",
    "amount": 0.5,
    "number": -1,
    "customer": "",
    "at": {"seconds": 1, "nanos": 5_000},
    "paid": True,
    "tags": ["x", "", "y"],
    "quantity": -5,
    "large": 2**64 - 1,
    "status": 1,
    "first": {},
    "lines": [{"product": "p", "count": 300}, {}],
    "numbers": [1, -(2**31), 0],
    "counts": {"b": 1, "a": 0, "ab": -1},
    "by_number": {-1: {"count": 1}, 5: {}},
    "cash": 0,
    "took": {"seconds": -1, "nanos": -500_000},
    "note": {"value": "n"},
    "sums": [0, 2**64 - 1],
    "raw": b"\xff",
    "share": 1.5,
}


def test_ordinary_messages_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    left = counted(monkeypatch)
    own = format_of(Schema("PROTOBUF", ORDINARY))
    make = message_factory.GetMessageClass(own.descriptor(own.name))
    messages = [make(**VALUES), make(), make(id="a", card="c", lines=[{}] * 7)]
    contents = [message.SerializeToString(deterministic=True) for message in messages]
    rows = pa.array([b"\0" + content for content in contents] * 10, pa.binary())
    found = own.decoder(own)(rows)
    assert own.encoder(own.kind.spark)(found.array).array.to_pylist() == contents * 10
    assert left == []
    read_alike(own, own, rows, _sorted)
    left.clear()
    # A list that is longer than most others is left to upb, which reads it faster.
    long = make(lines=[{"count": 1}] * 100).SerializeToString()
    twice = contents[0] + b"\x08\x01"
    damaged = [b"", b"\1", b"\0" + contents[0][:-1], b"\0" + twice, b"\0" + long, rows[0].as_py()]
    own.decoder(own)(pa.array(damaged, pa.binary()))
    assert left == [5]


def test_messages_are_read_and_skipped_by_other_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    left = counted(monkeypatch)
    writer = format_of(Schema("PROTOBUF", ORDINARY))
    make = message_factory.GetMessageClass(writer.descriptor(writer.name))
    rows = pa.array([b"\0" + make(**VALUES).SerializeToString()] * 3, pa.binary())
    fewer = """syntax = "proto3"; package shop; message Order { bytes id = 1; int64 quantity = 8;
        repeated Line first = 11; repeated sint64 numbers = 13; int32 added = 12000;
        message Line { uint32 count = 2; } }"""
    reader = format_of(Schema("PROTOBUF", fewer))
    found = reader.decoder(writer)(rows)
    expected = {"id": b"a", "quantity": -5, "first": [{"count": 0}], "added": 0}
    expected["numbers"] = [1, -(2**31), 0]
    assert found.array.to_pylist() == [expected] * 3
    assert found.errors == {}
    assert left == []


WIRE = """syntax = "proto2"; package shop; message A {
    optional int32 i = 1; optional uint32 u = 2; optional sint32 s = 3; optional bool b = 4;
    optional Enum e = 5; optional string t = 6; optional int64 l = 7; repeated int32 p = 8;
    optional A2 a = 9; map<string, int32> m = 10; repeated string r = 11; optional float f = 12;
    oneof o { int32 x = 13; int32 y = 14; } repeated fixed32 q = 15 [packed = true];
    repeated int32 v = 16 [packed = true]; }
    message A2 { optional int32 n = 1; } enum Enum { X = 0; Y = 1; }"""
ODD = [
    b"\x08\xff\xff\xff\xff\x0f",  # -1, cut off after 32 bits
    b"\x08\x80\x80\x80\x80\x10",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x03",  # more than 64 bits
    b"\x08" + b"\x80" * 10 + b"\x01",
    b"\x08\x81\x00",  # longer than it need be
    b"\x88\x00\x01",  # likewise, a tag
    b"\x10\xff\xff\xff\xff\x1f",
    b"\x18\xff\xff\xff\xff\x1f",
    b"\x20\x02",
    b"\x28\x02",
    b"\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x32\x01\xff",
    b"\x32\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x32\x80\x80\x80\x80\x08a",
    b"\x32\x05a",
    b"\x38\x01\x38\x02",
    b"\x38\x01\x08\x02",
    b"\x40\x01\x42\x02\x02\x03",  # unpacked, and packed
    b"\x42\x02\x01\x80",
    b"\x4a\x02\x08\x01\x4a\x00",
    b"\x4a\x03\x08\x01",
    b"\x4a\x02\x08\x80\x01\x08\x01",
    b"\x4a\x01\x08\x4a",
    b"\x52\x05\x0a\x01a\x10\x01\x52\x05\x0a\x01a\x10\x02",
    b"\x52\x03\x0a\x01a",
    b"\x52\x02\x10\x01",
    b"\x52\x05\x10\x01\x0a\x01a",
    b"\x52\x05\x0a\x01\xff\x10\x01",
    b"\x5a\x01\xff\x5a\x00",
    b"\x65\x00\x00\x00",
    b"\x61\x00\x00\x00\x00\x00\x00\x00\x00",
    b"\x68\x01\x70\x02",
    b"\x70\x02\x68\x01",
    b"\x7a\x03\x01\x02\x03",
    b"\x7a\x04\x01\x02\x03\x04\x7a\x00",
    b"\x7a\x08\x01\x02\x03\x04",
    b"\x82\x01\x03\x01\x80\x01",
    b"\x82\x01\x02\x01\x80",
    b"\x82\x01\x02\x80\x80\x01",
    b"\x82\x01\x0c" + b"\xff" * 9 + b"\x01\x01\x02",
    b"\x82\x01\x0b" + b"\x80" * 10 + b"\x01",
    b"\x03\x04",
    b"\x8b\x01\x8c\x01",
    b"\x00\x00",
    b"\xa0\x01\x05",
]


@pytest.mark.parametrize("around", [(b"", b""), (b"\x08\x02", b"\xa0\x01\x01")])
def test_what_is_odd_is_read_as_upb_does(around: tuple[bytes, bytes]) -> None:
    own = format_of(Schema("PROTOBUF", WIRE))
    before, after = around
    # Others that are ordinary, beside each.
    some = [b"\x08\x01\x82\x01\x02\x01\x02", b"", b"\x4a\x02\x08\x01"]
    payloads = [b"\0" + one for odd in ODD for one in (before + odd + after, *some)]
    for rows in (payloads, payloads[::-1], [b"\0" + odd for odd in ODD]):
        read_alike(own, own, pa.array(rows, pa.binary()), _sorted)


def test_floats_have_the_same_bits() -> None:
    text = 'syntax = "proto3"; message A { float f = 1; double d = 2; }'
    own = format_of(Schema("PROTOBUF", text))
    floats = [0x7F800001, 0xFFC00123, 0x80000000, 1, 0x7F7FFFFF]
    doubles = [0x7FF0000000000001, 0xFFF8000000000123, 1 << 63, 1, 0x7FEFFFFFFFFFFFFF]
    payloads = [
        b"\0\x0d" + single.to_bytes(4, "little") + b"\x11" + double.to_bytes(8, "little")
        for single, double in zip(floats, doubles, strict=True)
    ]
    rows = pa.array(payloads, pa.binary())
    found, expected = own.decoder(own)(rows).array, own.decoder_by_row(own)(rows).array
    for name, code in (("f", "<u4"), ("d", "<u8")):
        bits = [np.frombuffer(made.field(name).buffers()[1], code) for made in (found, expected)]
        assert bits[0].tolist() == bits[1][: len(rows)].tolist()
    columns = [
        pa.array(np.array(floats, "<u4").view("<f4")),
        pa.array(np.array(doubles, "<u8").view("<f8")),
    ]
    assert written_alike(own, pa.StructArray.from_arrays(columns, ["f", "d"])).errors == {}


def test_narrower_and_fewer_columns_are_written_alike() -> None:
    own = format_of(Schema("PROTOBUF", ORDINARY))
    line = pa.struct([("count", pa.int8())])
    kinds = [pa.int32(), pa.int16(), pa.float32(), line]
    names = ["large", "number", "amount", "first"]
    column = pa.array(
        [
            {"large": 5, "number": 2, "amount": 0.5, "first": {"count": 3}},
            {"large": -1, "number": 2, "amount": 0.5, "first": {"count": 3}},
            {"large": 1, "number": 2, "amount": 0.5, "first": {"count": -3}},
        ],
        pa.struct([*zip(names, kinds, strict=True)]),
    )
    fields = [T.IntegerType(), T.ShortType(), T.FloatType()]
    kind = T.StructType([*map(T.StructField, names, fields)])
    kind = kind.add("first", T.StructType([T.StructField("count", T.ByteType())]))
    assert written_alike(own, column, kind).errors.keys() == {1, 2}


LIMITS = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
    import "google/protobuf/duration.proto"; message A { uint64 u = 1; map<string, int32> m = 2;
    google.protobuf.Timestamp t = 3; google.protobuf.Duration d = 4; map<sint64, bool> n = 5; }"""


def test_values_beyond_protobufs_limits_are_not_written() -> None:
    own = format_of(Schema("PROTOBUF", LIMITS))
    rest: dict[str, Any] = {"u": 0, "m": [], "t": None, "d": None, "n": []}
    rows = [
        rest,
        rest | {"u": Decimal(2**64 - 1)},
        rest | {"u": Decimal(2**64)},
        rest | {"u": Decimal(-1)},
        rest | {"t": 253_402_300_799_999_999},
        rest | {"t": 253_402_300_800_000_000},
        rest | {"t": -62_135_596_800_000_001},
        rest | {"d": 315_576_000_000_999_999},
        rest | {"d": -315_576_000_001_000_000},
    ]
    assert written_alike(own, pa.array(rows, own.kind.arrow)).errors.keys() == {2, 3, 5, 6, 8}


def test_maps_are_written_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    own = format_of(Schema("PROTOBUF", LIMITS))
    rest: dict[str, Any] = {"u": 0, "m": [], "t": None, "d": None, "n": []}
    texts = ["", "a", "b", "aa", "a\0", "\0", "\U0010ffff", "\u00e9", "\uffff", "ab", "abc"]
    rows = [
        rest | {"m": [(text, number) for number, text in enumerate(texts)]},
        rest | {"n": [(number, True) for number in (0, -1, 2**63 - 1, -(2**63), 5, 300, -300)]},
        # The last one counts.
        rest | {"m": [("a", 1), ("b", 2), ("a", 3)]},
    ]
    column = pa.array(rows, own.kind.arrow)
    assert written_alike(own, column).errors == {}
    # As another version of upb may have them.
    monkeypatch.setattr(protobuf_rows, "_by_text", lambda maps, _: pa.array(np.arange(len(maps))))
    with pytest.raises(OneByOne):
        protobuf_rows.rows_of(own.descriptor(own.name), own.kind)
    assert written_alike(own, column).errors == {}


def test_maps_of_messages_with_defaults_and_required_fields_are_written_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = counted(monkeypatch)
    inner = "message B { required int32 n = 1; optional string s = 2 [default = 'x']; }"
    text = f'syntax = "proto2"; message A {{ map<string, B> m = 1; map<int64, B> k = 2; }} {inner}'
    own = format_of(Schema("PROTOBUF", text))
    value = {"n": 1, "s": "y"}
    row = {"m": [("a", value), ("b", value)], "k": [(-1, value), (1, value)]}
    column = pa.array([row], own.kind.arrow)
    assert own.encoder(own.kind.spark)(column).errors == {}
    assert left == []
    written_alike(own, column)


def test_what_is_below_a_null_is_not_written() -> None:
    inner = "message B { map<string, int32> m = 1; repeated int32 n = 2; string s = 3; }"
    own = format_of(Schema("PROTOBUF", f'syntax = "proto3"; message A {{ B b = 1; }} {inner}'))
    value = {"m": [("a", 1)], "n": [1], "s": "x"}
    column = pa.array([{"b": value}, {"b": value}], own.kind.arrow)
    mask = pa.array([True, False])
    messages = pa.StructArray.from_arrays(
        column.field("b").flatten(), fields=[*column.field("b").type], mask=mask
    )
    column = pa.StructArray.from_arrays([messages], fields=[*column.type])
    assert written_alike(own, column).errors == {}
    assert own.encoder(own.kind.spark)(column).array[0].as_py() == b""
    column = pa.StructArray.from_arrays(column.flatten(), fields=[*column.type], mask=mask)
    assert own.encoder(own.kind.spark)(column).array[0].as_py() is None


def test_a_message_that_is_not_the_first_has_indexes() -> None:
    text = 'syntax = "proto3"; message A {} message B { message C { int32 c = 1; } }'
    own = format_of(Schema("PROTOBUF", text, message="B.C"))
    rows = pa.array([own.prefix + b"\x08\x01", b"\0\x08\x01", own.prefix[:2]], pa.binary())
    found = own.decoder(own)(rows)
    assert found.array.to_pylist() == [{"c": 1}, None, None]
    assert [*found.errors] == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        'syntax = "proto2"; message A { optional group G = 1 { optional int32 n = 1; } }',
        'syntax = "proto2"; message A { optional int32 n = 1; extensions 10 to 20; }',
    ],
)
def test_some_schemas_are_read_one_by_one(text: str) -> None:
    own = format_of(Schema("PROTOBUF", text))
    descriptor = own.descriptor(own.name)
    rows = pa.array([b"\0\x08\x01", b"\0", b"\0\x0b\x08\x01\x0c"], pa.binary())
    with pytest.raises(OneByOne):
        columns_of(descriptor, descriptor, own.kind, b"\0")
    read_alike(own, own, rows, _sorted)
