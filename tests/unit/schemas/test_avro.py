"""Avro as columns: types, resolution, and values that can't be read or written."""

import datetime
import json
import re
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_eos.errors import SchemaError
from spark_eos.schemas.formats import Schema
from spark_eos.schemas.kinds import CodecResult
from support.avro_schemas import array, enum, fixed, logical, mapping, payload, record, schema
from support.schema_codecs import column, read, spark_type, write

DAY = datetime.date(2026, 2, 28)
MOMENT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.timezone.utc)
LOCAL = MOMENT.replace(tzinfo=None)
UUID = uuid.UUID("d17bb2d3-4c1a-4b4c-9b0f-7c6f2f9d7a10")


def decoded(payloads: list[bytes], writer: Any, reader: Any = None) -> CodecResult:
    """Decoded payloads."""
    return read(payloads, schema(writer), None if reader is None else schema(reader))


def encoded(values: list[Any], text: Any, kind: T.DataType | None = None) -> CodecResult:
    """Values encoded with a schema."""
    return write(values, schema(text), kind)


# Type, Spark's name of it, a value in Avro, and the same as a column has it in Python.
TYPES: dict[str, tuple[Any, str, Any, Any]] = {
    "boolean": ("boolean", "boolean", True, True),
    "int": ("int", "int", -(2**31), -(2**31)),
    "long": ("long", "bigint", 2**63 - 1, 2**63 - 1),
    "float": ("float", "float", 0.5, 0.5),
    "double": ("double", "double", 0.1, 0.1),
    "bytes": ("bytes", "binary", b"\x00\xff", b"\x00\xff"),
    "string": ("string", "string", "zoë", "zoë"),
    "enum": (enum("A", "B"), "string", "B", "B"),
    "fixed": (fixed(3), "binary", b"abc", b"abc"),
    "decimal": (
        logical("bytes", "decimal", precision=38, scale=3),
        "decimal(38,3)",
        Decimal("-12345678901234567890.123"),
        Decimal("-12345678901234567890.123"),
    ),
    "decimal of a fixed": (
        fixed(4, logicalType="decimal", precision=9, scale=2),
        "decimal(9,2)",
        Decimal("1234567.89"),
        Decimal("1234567.89"),
    ),
    "date": (logical("int", "date"), "date", DAY, DAY),
    "time in milliseconds": (logical("int", "time-millis"), "int", 86_399_999, 86_399_999),
    "time in microseconds": (logical("long", "time-micros"), "bigint", 7, 7),
    "timestamp in milliseconds": (
        logical("long", "timestamp-millis"),
        "timestamp",
        -1,
        MOMENT.replace(microsecond=999_000),
    ),
    "timestamp in microseconds": (logical("long", "timestamp-micros"), "timestamp", -1, MOMENT),
    "timestamp in nanoseconds": (logical("long", "timestamp-nanos"), "timestamp", -1000, MOMENT),
    "local timestamp": (logical("long", "local-timestamp-micros"), "timestamp_ntz", -1, LOCAL),
    "uuid": (logical("string", "uuid"), "string", str(UUID), str(UUID)),
    "uuid of a fixed": (fixed(16, logicalType="uuid"), "string", UUID.bytes, str(UUID)),
    "array": (array(["null", logical("int", "date")]), "array<date>", [DAY, None], [DAY, None]),
    "map": (mapping(logical("int", "date")), "map<string,date>", {"a": DAY}, [("a", DAY)]),
    "record": (
        record(("when", logical("int", "date")), ("empty", record(name="Empty")), name="R"),
        "struct<when:date,empty:struct<>>",
        {"when": DAY, "empty": {}},
        {"when": DAY, "empty": {}},
    ),
    "union": (
        ["null", "string", logical("int", "date"), record(("n", "int"), name="shop.R")],
        "struct<string:string,int:date,R:struct<n:int>>",
        ("shop.R", {"n": 1}),
        {"string": None, "int": None, "R": {"n": 1}},
    ),
    "unknown logical type": (logical("string", "colour"), "string", "red", "red"),
}


@pytest.mark.parametrize("name", TYPES)
def test_each_type_is_read_and_written(name: str) -> None:
    kind, spark, value, seen = TYPES[name]
    # fastavro itself would convert logical types.
    written_as = _plain(kind) if type(value) in {int, bytes} else kind
    written = payload(record(("f", written_as)), {"f": value})
    nullable = kind if isinstance(kind, list) else ["null", kind]
    for text, raw, one in (
        (record(("f", kind)), written, seen),
        (record(("f", nullable)), b"\x00", None),
    ):
        assert spark_type(schema(text))["f"].dataType.simpleString() == spark
        made = decoded([raw], text)
        assert (made.array.to_pylist(), made.errors) == ([{"f": one}], {})
        back = encoded([{"f": one}], text)
        assert (back.array.to_pylist(), back.errors) == ([raw], {})


def _plain(kind: Any) -> Any:
    return {k: v for k, v in kind.items() if k != "logicalType"} if isinstance(kind, dict) else kind


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("string", ["a", ""]),
        ("long", [7]),
        (logical("int", "date"), [DAY]),
        (["null", "string"], ["a"]),
        (["int", "string"], [{"int": None, "string": "a"}, {"int": 1, "string": None}]),
        (array("int"), [[1, 2], []]),
        (mapping("int"), [[("a", 1)], []]),
        (enum("A"), ["A"]),
        (
            [record(("n", "int")), record(("s", "string"), name="Refund")],
            [{"Order": {"n": 1}, "Refund": None}, {"Order": None, "Refund": {"s": "x"}}],
        ),
    ],
)
def test_a_schema_need_not_be_a_record(text: Any, values: list[Any]) -> None:
    made = encoded(values, text)
    assert made.errors == {}
    assert decoded(made.array.to_pylist(), text).array.to_pylist() == values


# Writer, value, reader, and what is read.
EVOLVED: dict[str, tuple[Any, Any, Any, Any]] = {
    "a default of bytes": (
        record(("id", "int")),
        {"id": 1},
        record(("b", "bytes", "\u00ff"), ("f", fixed(2), "\u0000\u00fe")),
        {"b": b"\xff", "f": b"\x00\xfe"},
    ),
    "a fixed's default of another size": (
        record(("id", "int")),
        {"id": 1},
        record(("long", fixed(2), "abc"), ("short", ["F2", "bytes"], "a")),
        {"long": b"ab", "short": {"F2": b"a\0", "bytes": None}},
    ),
    "defaults within defaults": (
        record(),
        {},
        record(
            ("inner", record(("a", "int", 5), ("b", "bytes", "\u00ff"), name="I"), {}),
            ("many", array("I"), [{"a": 1}]),
            ("map", mapping("bytes"), {"k": "\u00fe"}),
            ("date", logical("int", "date"), 1),
            ("union", [logical("long", "timestamp-micros"), "null"], -1),
        ),
        {
            "inner": {"a": 5, "b": b"\xff"},
            "many": [{"a": 1, "b": b"\xff"}],
            "map": [("k", b"\xfe")],
            "date": datetime.date(1970, 1, 2),
            "union": MOMENT,
        },
    ),
    "a field that others' names are defined in": (
        record(("gone", record(("n", "int"), name="I")), ("kept", "I")),
        {"gone": {"n": 1}, "kept": {"n": 2}},
        record(("new", record(("m", "long", 7), ("n", "long"), name="I"), {"n": 3}), ("kept", "I")),
        {"new": {"m": 7, "n": 3}, "kept": {"m": 7, "n": 2}},
    ),
    "a renamed field": (
        record(("id", "int")),
        {"id": 1},
        {
            **record(name="Bestellung", aliases=["Order"]),
            "fields": [{"name": "nr", "aliases": ["id"], "type": "int"}],
        },
        {"nr": 1},
    ),
    "promotion": (
        record(("a", "int"), ("b", "float"), ("c", "string"), ("d", "int")),
        {"a": 1, "b": 0.5, "c": "s", "d": 2},
        record(("a", "long"), ("b", "double"), ("c", "bytes"), ("d", "double")),
        {"a": 1, "b": 0.5, "c": b"s", "d": 2.0},
    ),
    "into a union of several": (
        record(("a", "int")),
        {"a": 1},
        record(("a", ["null", "string", "long"])),
        {"a": {"string": None, "long": 1}},
    ),
    "a default of a union's first number": (
        record(),
        {},
        record(("n", ["double", "long"], 0), ("u", ["null", "int", "string"], "x")),
        {"n": {"double": 0.0, "long": None}, "u": {"int": None, "string": "x"}},
    ),
    "a default of a union's first member": (
        record(),
        {},
        record(
            ("u", [record(("q", "double"), name="Q"), mapping("int")], {"q": 0.5}),
            ("m", array([mapping("int"), "Q"]), [{"q": 5}]),
            ("i", record(("u", ["long", "string"], 7), name="I"), {}),
        ),
        {
            "u": {"Q": {"q": 0.5}, "map": None},
            "m": [{"map": [("q", 5)], "Q": None}],
            "i": {"u": {"long": 7, "string": None}},
        },
    ),
    "out of a union": (record(("a", ["null", "int"])), {"a": 1}, record(("a", "int")), {"a": 1}),
    "out of a union of records": (
        record(("a", [record(("n", "int"), name="R"), "string"])),
        {"a": {"n": 1}},
        record(("a", record(("n", "int"), name="R")), ("u", ["int", "string"], 3)),
        {"a": {"n": 1}, "u": {"int": 3, "string": None}},
    ),
    "an unknown symbol": (
        record(("e", enum("A", "B"))),
        {"e": "B"},
        record(("e", {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"})),
        {"e": "A"},
    ),
}


@pytest.mark.parametrize("name", EVOLVED)
def test_records_are_resolved_by_avros_rules(name: str) -> None:
    writer, value, reader, seen = EVOLVED[name]
    made = decoded([payload(writer, value)], writer, reader)
    assert made.errors == {}
    assert made.array.to_pylist() == [seen]


ORDER = record(("id", "string"), ("amount", "double"))
GOOD = payload(ORDER, {"id": "o1", "amount": 0.5})


@pytest.mark.parametrize(
    ("broken", "reader", "words"),
    [
        (GOOD[:-1], None, "truncated"),
        (b"", None, "truncated"),
        (GOOD + b"\x00", None, "1 bytes are left"),
        (b"\x02\xff" + bytes(8), None, "does not match its schema"),
        (GOOD, record(("missing", "int")), "does not resolve.*No default value for field missing"),
        (GOOD, record(("id", "int")), "does not resolve"),
        (GOOD, record(("id", "string"), name="Refund"), "does not resolve"),
    ],
)
def test_a_bad_record_costs_its_row(broken: bytes, reader: Any, words: str) -> None:
    own = reader or ORDER
    good = [] if reader else [GOOD]
    made = decoded([*good, broken, *good], ORDER, own)
    assert made.errors.keys() == {len(good)}
    assert re.search(words, made.errors[len(good)])
    assert made.array.is_null().to_pylist() == [
        row in made.errors for row in range(len(made.array))
    ]


E3 = enum("A", "B", "C")
LONGS = array("long")

NESTED = record(("n", "int"), ("m", ["null", "int"]), name="I")
LARGE = b"\xff" * 9 + b"\x01"


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (["null", "string"], b"\x01\x02x", "the index of a union or an enum is -1"),
        (["null", "string"], b"\x83\x80\x00", "the index of a union or an enum is -2"),
        (["null", "string"], b"\x04", "truncated, or does not match its schema"),
        (E3, b"\x05", "the index of a union or an enum is -3"),
        (E3, b"\x06", "truncated, or does not match its schema"),
        ("long", b"\x82" * 11 + b"\x00", "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("string", b"\x82" + b"\x80" * 10 + b"\x00x", "more than 64 bits"),
        ("boolean", b"\x02", "a boolean is 2"),
        (LONGS, b"\x02" + b"\x80" * 10 + b"\x00\x00", "more than 64 bits"),
        (mapping(E3), b"\x02\x02k\x01\x00", "enum is -1"),
        ({"type": "enum", "name": "M", "symbols": [f"S{n}" for n in range(99)]},
         b"\x81\x01", "enum is -65"),
    ],
)  # fmt: skip
def test_bytes_that_avro_does_not_have_are_not_read_as_others(
    kind: Any, value: bytes, words: str
) -> None:
    for text, around in (
        (record(("f", kind)), b""),
        (record(("t", NESTED), ("f", kind), ("l", "long")), b"\x02\x02\x00"),
    ):
        made = decoded([around + value + (LARGE if around else b"")], text)
        assert words in made.errors[0], made
        assert made.array.to_pylist() == [None]


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        ("long", LARGE, -(2**63)),
        ("long", b"\x82\x80\x00", 1),
        ("string", b"$" + "日本語日本語".encode(), "日本語日本語"),
        ("boolean", b"\x01", True),
        (fixed(12), b"\xff" * 12, b"\xff" * 12),
        # Blocks, one of them with its size.
        (LONGS, b"\x03\x04\x01\x02\x02" + LARGE + b"\x00", [-1, 1, -(2**63)]),
        (mapping("double"), b"\x02\x02k" + b"\xff" * 8 + b"\x00", None),
    ],
)  # fmt: skip
def test_bytes_that_only_look_so_are_read(kind: Any, value: bytes, seen: Any) -> None:
    union = ["null", "int", enum(*(f"S{n}" for n in range(60)))]
    made = decoded([value + b"\x02\x01"], record(("f", kind), ("u", union)))
    assert made.errors == {}
    (row,) = made.array.to_pylist()
    assert row["u"]["int"] == -1
    assert seen is None or row["f"] == seen


def test_numbers_that_do_not_fit_cost_their_row() -> None:
    text = record(("n", "int"), ("d", logical("bytes", "decimal", precision=2)))
    large = b"\xfe\xff\xff\xff\xff\x7f" + b"\x02\x01"
    digits = b"\x02" + b"\x04\x03\xe8"
    good = b"\x02\x02\x05"
    made = decoded([good, large, digits, good], text)
    assert made.errors.keys() == {1, 2}
    assert made.array.to_pylist() == [
        {"n": 1, "d": Decimal(5)},
        None,
        None,
        {"n": 1, "d": Decimal(5)},
    ]


LINE = record(("when", logical("int", "date")), ("sum", "bytes", "\u00ff"), name="shop.Line")
REFUND = record(("s", "string"), name="Refund")


@pytest.mark.parametrize(
    ("own", "values"),
    [
        (
            schema(record(("lines", array("Line")), name="shop.Order"), LINE),
            [{"lines": [{"when": DAY, "sum": b"x"}]}],
        ),
        (
            schema(["Order", "Refund"], record(("n", "int")), REFUND),
            [{"Order": {"n": 1}, "Refund": None}, {"Order": None, "Refund": {"s": "x"}}],
        ),
    ],
)
def test_references_are_found_by_their_names(own: Schema, values: list[Any]) -> None:
    made = write(values, own)
    assert made.errors == {}
    assert read(made.array.to_pylist(), own).array.to_pylist() == values


MEMBERS: dict[str, tuple[Any, Any]] = {
    "timestamp": (logical("long", "timestamp-millis"), MOMENT.replace(microsecond=0)),
    "date": (logical("int", "date"), DAY),
    "enum": (enum("A"), "A"),
    "fixed": (fixed(2), b"ab"),
    "text of Java": ({"type": "string", "avro.java.string": "String"}, "x"),
    "array": (array(["int", "boolean"]), [{"int": 1, "boolean": None}]),
    "map": (mapping(["int", "boolean"]), [("a", {"int": 1, "boolean": None})]),
    "record": (record(("n", "int"), name="R"), {"n": 1}),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_unions_are_written_wherever_they_are(name: str) -> None:
    kind, value = MEMBERS[name]
    union = ["null", kind, "double", fixed(5)]
    (own,) = spark_type(schema(union)).names[:1]
    one = {own: value, "double": None, "F5": None}
    for around, whole in (
        (["null", record(("at", union), name="D")], {"at": one}),
        (["null", array(union)], [one, None]),
        ([mapping(union), "null"], [("k", one)]),
        (["null", array(["null", record(("at", union), name="D")])],
         [{"at": one}, None]),
        (["string", record(("at", union), name="D")], {"string": None, "D": {"at": one}}),
    ):  # fmt: skip
        text = record(("detail", around))
        made = encoded([{"detail": whole}, {"detail": None}], text)
        if "null" in around:
            assert made.errors == {}
        found = decoded([made.array[0].as_py()], text)
        assert found.errors == {}
        assert found.array.to_pylist() == [{"detail": whole}]


@pytest.mark.parametrize("union", [["null", "R"], ["R"]])
def test_unions_in_a_record_of_a_union_at_the_top_are_written(union: list[str]) -> None:
    kind = logical("long", "timestamp-millis")
    own = schema(union, record(("u", ["string", kind]), ("n", "int", 7), name="R"))
    value = {"string": None, "long": MOMENT.replace(microsecond=0)}
    # Without n, fastavro writes the rows.
    made = write([{"u": value}], own, struct(u=spark_type(own)["u"].dataType))
    assert made.errors == {}
    assert read(made.array.to_pylist(), own).array.to_pylist() == [{"u": value, "n": 7}]


def test_a_primitive_type_may_be_a_dictionary() -> None:
    text = record(("f", [{"type": "null"}, {"type": "string"}]), ("x", {"type": "double"}, 0))
    assert spark_type(schema(text)).simpleString() == "struct<f:string,x:double>"
    made = encoded([{"f": None}, {"f": "a"}], text, struct(f=TEXT))
    assert made.errors == {}
    assert decoded(made.array.to_pylist(), text).array.to_pylist() == [
        {"f": None, "x": 0.0},
        {"f": "a", "x": 0.0},
    ]


@pytest.mark.parametrize(
    ("kind", "spark", "given"),
    [
        (logical("bytes", "decimal", precision=2, scale=4), "binary", b"a"),
        (logical("bytes", "decimal", precision=2, scale=-1), "binary", b"a"),
        (logical("bytes", "decimal", precision=0), "binary", b"a"),
        (logical("bytes", "decimal", precision="2"), "binary", b"a"),
        (logical("bytes", "decimal"), "binary", b"a"),
        (logical("string", "decimal", precision=2), "string", "1"),
        (fixed(1, logicalType="decimal", precision=3), "binary", b"a"),
        (fixed(3, logicalType="duration"), "binary", b"abc"),
        (logical("string", "timestamp-millis"), "string", "x"),
        (logical("int", "timestamp-micros"), "int", 1),
    ],
)
def test_invalid_logical_types_are_ignored(kind: Any, spark: str, given: Any) -> None:
    text = record(("f", kind))
    assert spark_type(schema(text)).simpleString() == f"struct<f:{spark}>"
    made = encoded([{"f": given}], text)
    plain = record(("f", _plain(kind) if kind["type"] == "fixed" else kind["type"]))
    assert made.array.to_pylist() == [payload(plain, {"f": given})]
    for writer, reader in ((text, plain), (plain, text)):
        found = decoded(made.array.to_pylist(), writer, reader)
        assert found.array.to_pylist() == [{"f": given}]


@pytest.mark.parametrize(
    "items", ["null", record(name="Empty"), fixed(0), record(("n", record(name="I")), name="O")]
)
def test_items_of_no_bytes_have_a_limit(items: Any) -> None:
    text = record(("a", array(items)), ("n", "int"))
    # 2^26 of them; 999 in one block and 2 in another; and 2^62, which a reader passes over.
    many = [b"\x80\x80\x80\x40\x00\x02", b"\xce\x0f\x04\x00\x02", b"\x80" * 8 + b"\x40\x00\x02"]
    for reader in (None, record(("n", "int"))):
        # The last one is checked twice, because its number has more bytes than it needs.
        few = [b"\xd0\x0f\x00\x02", b"\x03\x00\x00\x02", b"\xb0\x09\x00\x82\x00"]
        made = decoded([*many, *few], text, reader)
        assert made.errors == dict.fromkeys(range(3), made.errors[0])
        assert made.errors[0].endswith("it has more than 1000 items without bytes")
        assert [row["n"] for row in made.array.to_pylist()[3:]] == [1, 1, 1]


def test_no_error_quotes_a_value() -> None:
    late = datetime.datetime(9999, 1, 1, tzinfo=datetime.timezone.utc)
    writer = record(("n", "long"), ("e", enum("A", "secret")))
    texts = [
        *decoded([b"\xf2\xc0\x01" + b"\x02\x02"], writer).errors.values(),
        *decoded([b"\x02\x02"], writer, record(("e", enum("A")))).errors.values(),
        *decoded(
            [b"\x02\x04\x30\x39"], record(("d", logical("bytes", "decimal", precision=2)))
        ).errors.values(),
        *decoded([b"\x80\x80\x80\x80\x40"], record(("n", "int"))).errors.values(),
    ]
    for kind, value in (
        (enum("A"), "secret"),
        (fixed(16, logicalType="uuid"), "secret"),
        (logical("long", "timestamp-nanos"), late),
    ):
        texts += encoded([{"a": value}], record(("a", kind))).errors.values()
    assert len(texts) == 7
    assert not any(re.search("secret|12345|17179869184|9999|253", one) for one in texts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            record(("name", "string"), ("next", ["null", "Order"])),
            "next: record Order contains itself",
        ),
        (record(("a", record(("b", array("Order")), name="I"))), r"a\.b\[\]: record"),
        (
            record(("wait", fixed(12, logicalType="duration"))),
            "wait: Spark has no type for a duration",
        ),
        (
            record(("m", logical("bytes", "decimal", precision=50))),
            "m: decimal.50, 0.: Spark has at most 38 digits. Pass .* only the bytes",
        ),
        (record(("u", ["int", "long"])), "u: in a union of int and long"),
        (record(("u", mapping(["float", "double"]))), r"u\{\}: in a union of double"),
        ({"type": "record"}, "can't be used"),
        ("no type", "can't be used"),
    ],
)
def test_what_spark_has_no_column_for_is_refused_by_its_field(text: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        spark_type(schema(text))


def test_a_reader_may_leave_out_what_spark_has_no_column_for() -> None:
    writer = record(
        ("b", "boolean"),
        ("next", ["null", "Order"]),
        ("wait", fixed(12, logicalType="duration")),
        ("n", "int"),
    )
    inner = {"b": True, "next": None, "wait": b"\x01" * 12, "n": 1}
    good = payload(_plain_fixed(writer), {**inner, "next": inner, "n": 2})
    made = decoded([good, b"\x01\x01" + good[2:]], writer, record(("n", "int")))
    assert made.array.to_pylist() == [{"n": 2}, None]
    assert "the index of a union or an enum is -1" in made.errors[1]


def _plain_fixed(text: Any) -> Any:
    return json.loads(json.dumps(text).replace('"logicalType": "duration", ', ""))


INT, LONG, TEXT = T.IntegerType(), T.LongType(), T.StringType()


def struct(**fields: T.DataType) -> T.StructType:
    """A struct of fields by name."""
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("columns", "text", "words"),
    [
        (struct(id=INT), ORDER, "id is int, but its schema needs string"),
        (struct(id=TEXT), ORDER, "lacks the field 'amount', for which its schema has no default"),
        (
            struct(id=TEXT, amount=T.DoubleType(), x=INT),
            ORDER,
            "has a field 'x' that its schema lacks",
        ),
        (struct(n=LONG), record(("n", "int")), "n is bigint, but its schema needs int"),
        (
            struct(n=T.DecimalType(9, 2)),
            record(("n", logical("bytes", "decimal", precision=8, scale=2))),
            "cast it",
        ),
        (
            struct(n=T.DecimalType(9, 2)),
            record(("n", logical("bytes", "decimal", precision=9, scale=1))),
            "cast it",
        ),
        (
            struct(a=T.ArrayType(struct(b=INT))),
            record(("a", array(record(("b", "string"), name="I")))),
            r"a\[\]\.b is int",
        ),
        (
            struct(m=T.MapType(INT, INT)),
            record(("m", mapping("int"))),
            r"m\{\} is int, but its schema needs string",
        ),
        (
            struct(u=struct(int=INT, boolean=T.BooleanType())),
            record(("u", ["int", "string"])),
            "'boolean' that its schema lacks",
        ),
        (
            struct(t=T.TimestampType()),
            record(("t", logical("long", "local-timestamp-micros"))),
            "t is timestamp, but its schema needs timestamp_ntz",
        ),
        (struct(n=T.NullType()), record(("n", "int")), "n is void"),
        (
            T.StructType([*struct(n=INT), *struct(n=INT)]),
            record(("n", "int")),
            "the column has more than one field 'n'",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_any_row(
    columns: T.StructType, text: Any, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        write([], schema(text), columns)


def test_nulls_without_a_type_fit_what_may_be_null() -> None:
    inner = record(("n", "int"), name="I")
    kinds = {"r": inner, "a": LONGS, "m": mapping("int")}
    text = record(*((name, ["null", kind]) for name, kind in kinds.items()))
    made = encoded([dict.fromkeys(kinds)], text, struct(**dict.fromkeys(kinds, T.NullType())))
    assert (made.array.to_pylist(), made.errors) == ([bytes(3)], {})


def test_narrower_columns_and_those_with_defaults_fit() -> None:
    text = record(("n", "long"), ("d", "double"), ("b", "bytes", "\u00ff"), ("o", ["null", "int"]))
    made = encoded([{"d": 0.5, "n": 1}], text, struct(d=T.FloatType(), n=INT))
    assert made.errors == {}
    assert decoded(made.array.to_pylist(), text).array.to_pylist() == [
        {"n": 1, "d": 0.5, "b": b"\xff", "o": None}
    ]


@pytest.mark.parametrize(
    ("value", "text", "words"),
    [
        ({"a": None}, record(("a", "int")), "a is null"),
        # fastavro would write false.
        ({"a": None}, record(("a", "boolean")), "a is null"),
        ({"a": {"b": None}}, record(("a", record(("b", "string"), name="I"))), "a.b is null"),
        ({"a": [1, None]}, record(("a", array("int"))), "a[] is null"),
        ({"a": {"k": None}}, record(("a", mapping("int"))), "a{} is null"),
        ({"a": "Z"}, record(("a", enum("A"))), "a: a text is not one of A"),
        ({"a": b"abc"}, record(("a", fixed(2))), "a: a value does not have 2 bytes"),
        (
            {"a": {"int": 1, "string": "x"}},
            record(("a", ["int", "string"])),
            "a must have exactly one",
        ),
        ({"a": "no uuid"}, record(("a", fixed(16, logicalType="uuid"))), "a text is not a UUID"),
    ],
)
def test_a_row_that_can_not_be_written_costs_only_itself(value: Any, text: Any, words: str) -> None:
    made = encoded([None, value, None], text)
    assert made.errors.keys() == {1}
    assert words in made.errors[1]
    assert made.array.to_pylist() == [None, None, None]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int", 1, None),
        (array(fixed(16, logicalType="uuid")), [str(UUID)], ["bad"]),
        (logical("long", "timestamp-nanos"), MOMENT, MOMENT.replace(year=2400)),
    ],
)
def test_rows_around_a_bad_one_are_written(kind: Any, good: Any, bad: Any) -> None:
    text = record(("z", "int", 0), ("a", kind))
    values = [{"a": good if n % 3 else bad, "z": n} for n in range(20)]
    # In another order than the schema's.
    made = encoded(values, text, struct(a=spark_type(schema(kind)), z=INT))
    assert made.errors.keys() == {n for n in range(20) if n % 3 == 0}
    found = decoded(made.array.drop_null().to_pylist(), text).array.to_pylist()
    assert found == [value for value in values if value["z"] % 3]


def test_a_slice_of_nested_columns_is_written_as_a_whole_one() -> None:
    text = record(
        ("a", array(logical("int", "date"))),
        ("m", mapping(logical("int", "date"))),
        ("u", ["int", "string"]),
    )
    values = [
        {"a": [DAY] * n, "m": {str(k): DAY for k in range(n)}, "u": {"int": n, "string": None}}
        for n in range(6)
    ]
    own = schema(text)
    kind = spark_type(own)
    whole = column(values, kind)
    assert write(whole[2:5], own).array.to_pylist() == write(whole, own).array.to_pylist()[2:5]
    bad = column([{**values[2], "a": [DAY, None]}, *values[3:]], kind)
    assert write(bad[1:], own).errors == {}
    assert write(bad, own).errors.keys() == {0}


@given(
    st.lists(st.decimals(Decimal(-(10**8)), Decimal(10**8), places=2, allow_nan=False), max_size=20)
)
def test_decimals_are_written_as_fastavro_does(values: list[Decimal]) -> None:
    text = record(("d", logical("bytes", "decimal", precision=12, scale=2)))
    made = encoded([{"d": value} for value in values], text)
    assert made.array.to_pylist() == [payload(text, {"d": value}) for value in values]
    assert [row["d"] for row in decoded(made.array.to_pylist(), text).array.to_pylist()] == values


@given(st.binary(max_size=40))
def test_no_bytes_break_the_batch(value: bytes) -> None:
    text = record(("id", "string"), ("u", ["null", "int", "string"]), ("l", array("string")))
    made = decoded([value], text)
    assert made.array.is_null().to_pylist() == [bool(made.errors)]
