"""Compares the CPU time of decoding and encoding with plain loops of the underlying libraries.

Records have ten fields, with dates and times, and come in batches as large as Spark's. There is no
Spark and no Kafka: the benchmark measures the CPU time of a task's work for each batch.
"""

import datetime
import decimal
import io
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import click
import fastavro
import jsonschema_rs
import pyarrow as pa
from bench import note
from google.protobuf import message_factory
from results import Measured
from turns import turns

from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.framing import framed, prefix_of
from spark_eos.schemas.protobuf_files import file_of

_BATCH: Final = 10_000
_MOMENT: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
_FIELDS: Final = {
    "id": "long",
    "customer": "string",
    "product": "string",
    "amount": "double",
    "count": "int",
    "paid": "boolean",
    "note": ["null", "string"],
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "status": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
}
_ORDER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": name, "type": kind} for name, kind in _FIELDS.items()],
}


def _order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"customer {number % 100}",
        "product": "widget",
        "amount": number / 2,
        "count": number % 7,
        "paid": number % 2 == 0,
        "note": None if number % 3 else "a note",
        "at": _MOMENT,
        "status": "NEW",
        "price": decimal.Decimal(number) / 100,
    }


class Contest(NamedTuple):
    """A format, and plain loops with its library.

    Attributes:
        loop: Name of the library.
        schema: The writer's schema.
        wider: The reader's schema, with an additional field, so that each record is resolved.
        records: The records written by the loop.
        read: The loop that reads.
        write: The loop that writes.
    """

    loop: str
    schema: Schema
    wider: Schema
    records: list[bytes]
    read: Callable[[], object]
    write: Callable[[], object]


def _avro() -> Contest:
    parsed = fastavro.parse_schema(_ORDER)
    orders = [_order(number) for number in range(_BATCH)]

    def write() -> list[bytes]:
        made = []
        for order in orders:
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, parsed, order)
            made.append(prefix_of(1) + stream.getvalue())
        return made

    records = write()

    def read() -> None:
        for record in records:
            fastavro.schemaless_reader(io.BytesIO(record[5:]), parsed, None)

    wider = {**_ORDER, "fields": [*_ORDER["fields"], {"name": "x", "type": "int", "default": 0}]}
    schema, other = (Schema("AVRO", json.dumps(one)) for one in (_ORDER, wider))
    return Contest("fastavro", schema, other, records, read, write)


def _json() -> Contest:
    kinds = {"count": "integer", "id": "integer", "amount": "number", "price": "number"}
    properties: dict[str, Any] = {name: {"type": kinds.get(name, "string")} for name in _FIELDS}
    properties |= {
        "paid": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "status": {"enum": ["NEW", "PAID"]},
    }
    text = {"type": "object", "properties": properties, "required": list(properties)}
    made = (_order(number) for number in range(_BATCH))
    times = _MOMENT.isoformat().replace("+00:00", ".000000Z")
    orders = [{**order, "at": times, "price": float(order["price"])} for order in made]
    validate = jsonschema_rs.validator_for(text).validate

    def write() -> list[bytes]:
        made = []
        for order in orders:
            validate(order)
            written = json.dumps(order, separators=(",", ":"), ensure_ascii=False)
            made.append(prefix_of(1) + written.encode())
        return made

    records = write()

    def read() -> None:
        for record in records:
            validate(json.loads(record[5:]))

    wider = {**text, "properties": {**properties, "x": {"type": "integer"}}}
    schema, other = (Schema("JSON", json.dumps(one)) for one in (text, wider))
    return Contest("json, jsonschema-rs", schema, other, records, read, write)


_PROTO: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  enum Status { NEW = 0; PAID = 1; }
  int64 id = 1; string customer = 2; string product = 3; double amount = 4; int32 count = 5;
  bool paid = 6; optional string note = 7; google.protobuf.Timestamp at = 8; Status status = 9;
  uint64 price = 10;
}
"""


def _protobuf() -> Contest:
    schema = Schema("PROTOBUF", _PROTO)
    other = Schema("PROTOBUF", _PROTO.replace("price = 10;", "price = 10; int32 x = 11;"))
    message = message_factory.GetMessageClass(file_of(schema).message_types_by_name["Order"])
    made = (_order(number) for number in range(_BATCH))
    orders = [{**order, "price": int(order["price"] * 100)} for order in made]
    plain = [name for name in _FIELDS if name not in {"note", "at"}]

    def write() -> list[bytes]:
        return [prefix_of(1) + b"\x00" + message(**one).SerializeToString() for one in orders]

    records = write()

    def read() -> None:
        for record in records:
            one = message.FromString(record[6:])
            found = {name: getattr(one, name) for name in plain}
            found["note"] = one.note if one.HasField("note") else None
            found["at"] = one.at.ToMicroseconds()

    return Contest("protobuf", schema, other, records, read, write)


_CONTESTS: Final = {"avro": _avro, "json": _json, "protobuf": _protobuf}


def schemas(rounds: int, scale: float) -> Iterator[Measured]:
    """Measure reading and writing in each format."""
    for name, contest in _CONTESTS.items():
        yield from _measured(name, contest(), max(1, int(10 * scale)), rounds)


def _measured(name: str, contest: Contest, batches: int, rounds: int) -> Iterator[Measured]:
    own = format_of(contest.schema)
    decoder = own.decoder(own)
    resolving = format_of(contest.wider).decoder(own)
    encoder = own.encoder(own.kind.spark)
    column = pa.array(contest.records, pa.binary())

    def decode(of: Any = decoder) -> pa.Array:
        (group,) = framed(column, None, "value").groups
        return of(group.payloads).array

    values = decode()
    if values.null_count or encoder(values).errors:
        raise click.ClickException("records were not read or written")
    both: dict[str, dict[str, Callable[[], object]]] = {
        "read": {
            contest.loop: contest.read,
            "spark-eos": decode,
            "spark-eos, resolved": lambda: decode(resolving),
        },
        "written": {contest.loop: contest.write, "spark-eos": lambda: encoder(values)},
    }
    for what, contestants in both.items():
        measured = Measured(f"schemas, {name} {what}", "records/s of a core", base=contest.loop)
        for number, contestant in turns(list(contestants), rounds):
            began = time.process_time()
            for _ in range(batches):
                contestants[contestant]()
            speed = batches * _BATCH / (time.process_time() - began)
            note(measured, contestant, speed, counts=number > 0)
        yield measured
