"""Arbitrary records with schemas of a registry, and queries that read and write them."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf import message_factory
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_eos.schemas import SchemaRegistry, formats
from support.any_records import RECORDS, Given
from support.any_rows import plain
from support.avro_schemas import array, enum, logical, mapping, payload, record

INNER = record(("n", "int"), name="Inner")
PARTS: list[tuple[str, Any]] = [
    ("text", "string"),
    ("number", "long"),
    ("real", "double"),
    ("flag", "boolean"),
    ("kind", enum("A", "B")),
    ("list", array("string")),
    ("more", mapping("bytes")),
    ("inner", ["null", INNER]),
]
# The same bytes, and any number of such bytes.
LIMITED = logical("long", "timestamp-micros"), logical("int", "date")
COST = logical("bytes", "decimal", precision=10, scale=2)
READ = zip(("time", "day", "cost"), (*LIMITED, COST), strict=True)
AVRO = record(*PARTS, *READ)
AVRO_BYTES = record(*PARTS, ("time", "long"), ("day", "int"), ("cost", "bytes"))
JSON = {
    "title": "Order",
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "integer"},
        "real": {"type": ["number", "null"]},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "additionalProperties": {"type": "number"}},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "time": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
    },
}
PROTOBUF = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Order {
  string text = 1; int64 number = 2; double real = 3; bool flag = 4; Kind kind = 5;
  repeated string list = 6; map<string, bytes> more = 7; Inner inner = 8;
  google.protobuf.Timestamp time = 9; google.protobuf.Duration length = 10;
  uint64 natural = 11; google.protobuf.StringValue name = 12; optional bytes cost = 13;
  oneof choice { fixed32 left = 14; sint64 right = 15; }
}
enum Kind { A = 0; B = 1; }
message Inner { int32 n = 1; }
"""

LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 51)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
TEXTS = st.text(max_size=10)
BYTES = st.binary(max_size=20)
LISTS = st.lists(TEXTS, max_size=3)
BYTE_MAPS = st.dictionaries(TEXTS, BYTES, max_size=2)
FLOATS = st.floats(allow_nan=True)
# The contents of records, by format.
AVRO_VALUES = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "number": LONGS,
        "real": FLOATS,
        "flag": st.booleans(),
        "kind": st.sampled_from("AB"),
        "list": LISTS,
        "more": BYTE_MAPS,
        "inner": st.none() | st.fixed_dictionaries({"n": INTS}),
        "time": LONGS,
        "day": INTS,
        "cost": BYTES,
    }
)
ANYTHING = st.none() | TEXTS | LONGS | FLOATS | LISTS | st.just(1e308)
MOMENTS = st.datetimes().map(lambda time: f"{time.isoformat()}Z") | TEXTS
DAYS = st.dates().map(str) | st.sampled_from(["0000-01-01", "2026-02-30", "9999-12-31"])
JSON_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "number": LONGS | ANYTHING,
        "real": FLOATS | st.none() | LONGS,
        "flag": st.booleans(),
        "list": LISTS,
        "more": st.dictionaries(TEXTS, FLOATS, max_size=2),
        "inner": st.dictionaries(st.just("n"), INTS | ANYTHING),
        "time": MOMENTS,
        "day": DAYS,
        "else": ANYTHING,
    },
)
SECONDS = st.fixed_dictionaries({"seconds": LONGS, "nanos": INTS})
PROTOBUF_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "number": LONGS,
        "real": FLOATS,
        "flag": st.booleans(),
        "kind": st.sampled_from([0, 1, 7]),
        "list": LISTS,
        "more": BYTE_MAPS,
        "inner": st.fixed_dictionaries({"n": INTS}),
        "time": SECONDS,
        "length": SECONDS,
        "natural": st.integers(0, (1 << 64) - 1),
        "name": st.fixed_dictionaries({"value": TEXTS}),
        "cost": BYTES,
        "left": st.integers(0, (1 << 32) - 1),
        "right": LONGS,
    },
)


class Format(NamedTuple):
    """A schema, its records' contents, and how they are written."""

    schema: str
    values: st.SearchStrategy[Any]
    write: Callable[[Any], bytes]


def _protobuf() -> Format:
    descriptor = formats.format_of(formats.Schema("PROTOBUF", PROTOBUF)).descriptor("Order")
    make = message_factory.GetMessageClass(descriptor)
    # The file's first message.
    return Format(
        PROTOBUF, PROTOBUF_VALUES, lambda value: b"\0" + make(**value).SerializeToString()
    )


FORMATS: dict[str, Callable[[], Format]] = {
    "AVRO": lambda: Format(json.dumps(AVRO), AVRO_VALUES, partial(payload, AVRO_BYTES)),
    "JSON": lambda: Format(json.dumps(JSON), JSON_VALUES, lambda value: json.dumps(value).encode()),
    "PROTOBUF": _protobuf,
}


def records_of(client: SchemaRegistryClient, subject: str, kind: str) -> st.SearchStrategy[Given]:
    """Records of a new schema: valid ones, damaged ones and unrelated ones."""
    made = FORMATS[kind]()
    number = client.register_schema(subject, Schema(made.schema, kind))
    ids = st.sampled_from([number] * 8 + [0xFFFFFFF0])
    whole = made.values.map(made.write)
    changed = st.builds(_changed, whole, st.integers(0, 100), st.integers(0, 3), BYTES)
    bodies = whole | changed | BYTES
    framed = st.builds(lambda own, body: b"\0" + own.to_bytes(4, "big") + body, ids, bodies)
    return st.builds(lambda own, value: own._replace(value=value), RECORDS, framed)


def _changed(payload: bytes, place: int, removed: int, added: bytes) -> bytes:
    at = place % (len(payload) + 1)
    return payload[:at] + added + payload[at + removed :]


def coded(frame: DataFrame, url: str, subject: str, errors: str | None = None) -> DataFrame:
    """Rows whose values are decoded with a schema, changed and encoded with it."""
    registry = SchemaRegistry({"url": url})
    read = registry.decode(frame, subject=subject, errors=errors)
    text = F.when(F.length("key") > 0, F.col("key").cast("string")).otherwise(F.col("value.text"))
    changed = read.withColumn("value", F.col("value").withField("text", text))
    return plain(registry.encode(changed, subject=subject, errors=errors))
