"""A load of Avro records whose schema changes while the query runs, and its checks.

The version changes after a number of records; some later records still have older versions. If
the load has dead letters, one record in a hundred is broken and must become one. Without dead
letters, the sink's own tasks encode.
"""

import functools
import io
import json
import random
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import tenacity
from confluent_kafka import Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.invariants import Rule, Violation
from chaos.loads import Load, Record
from spark_eos.schemas import SchemaRegistry

SUBJECT, OUTPUT_SUBJECT = "chaos-orders", "chaos-prices"
_RECORDS_OF_A_VERSION = 40_000
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
_OPTIONAL: Any = ["null", "string"]
_SHIPPING = {
    "type": "record",
    "name": "Shipping",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "zip", "type": "string", "default": "none"},
    ],
}
OUTPUT: dict[str, Any] = {
    "type": "record",
    "name": "chaos.Price",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "title", "type": "string"},
        {"name": "amount", "type": _DECIMAL},
        {"name": "tag", "type": _OPTIONAL},
        {"name": "city", "type": "string"},
        {"name": "items", "type": {"type": "array", "items": "string"}},
    ],
}
# An id that no schema has.
_UNKNOWN_ID = (2**31 - 2).to_bytes(4, "big")


def _schema(version: int) -> dict[str, Any]:
    """A version's schema, with its own field; some lack the tag, and their number is an int."""
    other = _is_other(version)
    tag = [] if other else [{"name": "tag", "type": _OPTIONAL, "default": None}]
    return {
        "type": "record",
        "name": "chaos.Order",
        "fields": [
            {"name": f"new_in_{version}", "type": "string", "default": ""},
            {"name": "number", "type": "int" if other else "long"},
            {"name": "name", "type": "string"},
            {"name": "amount", "type": _DECIMAL},
            *tag,
            {"name": "shipping", "type": _SHIPPING},
            {"name": "items", "type": {"type": "array", "items": "string"}},
        ],
    }


def _is_other(version: int) -> bool:
    return version % 3 == 2


def _version(number: int) -> int:
    """The schema version of the n-th record."""
    return max(0, number // _RECORDS_OF_A_VERSION - number % 4)


def _order(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "name": f"order {number}",
        "amount": Decimal(number).scaleb(-2),
        "tag": None if number % 5 else f"tag {number}",
        "shipping": {"city": f"city {number % 100}", "zip": "1"},
        "items": [f"item {n}" for n in range(number % 3)],
    }


def _price(number: int) -> dict[str, Any]:
    """The query's expected output for a record."""
    order = _order(number)
    return {
        "number": number,
        "title": order["name"].upper(),
        "amount": order["amount"],
        "tag": None if _is_other(_version(number)) else order["tag"],
        "city": order["shipping"]["city"],
        "items": order["items"],
    }


def _is_broken(number: int) -> bool:
    return number % 100 == 7


def _broken(number: int, whole: bytes) -> bytes:
    payload = whole[5:]
    ways = (
        b"\0" + _UNKNOWN_ID + payload,
        whole[:-2],
        whole + b"\0",
        b"\1" + whole[1:],
        b"",
        b"\0\0",
        b'{"number": 1}',
    )
    return ways[number // 100 % len(ways)]


class SchemaRecords:
    """Makes the n-th record; registers each version with its first record."""

    def __init__(self, url: str, *, broken: bool = True) -> None:
        self._url = url
        self._with_broken = broken
        self._schemas: list[tuple[bytes, Any]] = []
        registered(url, OUTPUT_SUBJECT, OUTPUT)
        self._prefix_and_schema(0)

    def __call__(self, chosen: random.Random, number: int, partitions: int) -> Record:
        prefix, schema = self._prefix_and_schema(_version(number))
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, _order(number))
        whole = prefix + file.getvalue()
        value = _broken(number, whole) if self._with_broken and _is_broken(number) else whole
        return Record(0, chosen.randrange(partitions), b"%d" % number, value, 1)

    def _prefix_and_schema(self, version: int) -> tuple[bytes, Any]:
        while len(self._schemas) <= version:
            one = len(self._schemas)
            schema = _schema(one)
            # Without pins, the query reads with the latest version at its start.
            subject = "chaos-others" if _is_other(one) else SUBJECT
            number = registered(self._url, subject, schema)
            prefix = b"\0" + number.to_bytes(4, "big")
            self._schemas.append((prefix, fastavro.parse_schema(schema)))
        return self._schemas[version]


@tenacity.retry(stop=tenacity.stop_after_delay(120), wait=tenacity.wait_fixed(0.5), reraise=True)
def registered(url: str, subject: str, schema: dict[str, Any]) -> int:
    """Registers a schema with a registry that may be down; returns the schema's id."""
    with SchemaRegistryClient({"url": url, "timeout": 5}) as client:
        return int(client.register_schema(subject, Schema(json.dumps(schema), "AVRO")))


def no_record(_chosen: random.Random, _number: int, _partitions: int) -> Record:
    raise NotImplementedError("the registry decides on the records: see `Load.of_registry`")


def registry_of(url: str) -> SchemaRegistry:
    # If the registry is away for longer, the query ends.
    return SchemaRegistry({"url": url, "timeout": 2}, max_wait=4)


def price() -> Column:
    return F.struct(
        "value.number",
        F.upper("value.name").alias("title"),
        "value.amount",
        "value.tag",
        "value.shipping.city",
        "value.items",
    )


def _prices(frame: DataFrame, targets: list[str], *, registry: str, pinned: str) -> DataFrame:
    orders = registry_of(registry).decode(frame, "value", subject=SUBJECT, pinned=pinned)
    return orders.select("source", "key", price().alias("value"), F.lit(targets[0]).alias("topic"))


def _encoded(rows: DataFrame, *, registry: str, pinned: str) -> DataFrame:
    del pinned
    return registry_of(registry).encode(rows, "value", subject=OUTPUT_SUBJECT)


_GOOD = Load(
    1,
    1,
    4,
    30_000,
    5_000,
    120_000,
    {"max_transaction_records": 5_000},
    no_record,
    _prices,
    encode=_encoded,
    of_registry=functools.partial(SchemaRecords, broken=False),
)
WITH_SCHEMAS = {
    "schemas": replace(_GOOD, dead_letters=True, of_registry=SchemaRecords),
    "encoded": _GOOD,
}


def wrong_values(
    outputs: Iterable[Message], dead_letters: Iterable[Message], schema: int, *, broken: bool
) -> list[Violation]:
    """Outputs and dead letters that differ from those expected for their input records."""
    parsed = fastavro.parse_schema(OUTPUT)
    prefix = b"\0" + schema.to_bytes(4, "big")
    wrong = []
    for message in outputs:
        number, value = int(message.key() or b""), message.value() or b""
        found = None
        if value[:5] == prefix:
            file = io.BytesIO(value[5:])
            found = fastavro.schemaless_reader(file, parsed, None)
        if (broken and _is_broken(number)) or found != _price(number):
            wrong.append(f"record {number} gave {found!r}")
    wrong += [
        f"record {number} became a dead letter"
        for number in (int(message.key() or b"") for message in dead_letters)
        if not (broken and _is_broken(number))
    ]
    if not wrong:
        return []
    return [Violation(Rule.VALUES_KEPT, f"{len(wrong):,} times, first: {wrong[0]}")]
