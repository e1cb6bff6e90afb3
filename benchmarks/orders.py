"""The schemas of orders, as Avro and JSON, which several benchmarks read and write."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

PREFIX: Final = 5
"""Bytes of a schema id before a record."""
AVRO: Final[dict[str, Any]] = {
    "id": "string",
    "amount": "double",
    "number": "long",
    "customer": ["null", "string"],
    "at": {"type": "long", "logicalType": "timestamp-millis"},
    "paid": "boolean",
    "quantity": "int",
}
"""Types of the fields."""
JSON: Final[dict[str, Any]] = {
    "id": {"type": "string"},
    "amount": {"type": "number"},
    "number": {"type": "integer"},
    "customer": {"type": ["string", "null"]},
    "at": {"type": "string", "format": "date-time"},
    "paid": {"type": "boolean"},
    "quantity": {"type": "integer"},
}
"""Schemas of the properties."""


def avro_schema(fields: Mapping[str, Any], optional: Collection[str] = ()) -> str:
    """Return the schema of a record; the optional fields have the default null."""
    made = [
        {"name": name, "type": kind, **({"default": None} if name in optional else {})}
        for name, kind in fields.items()
    ]
    return json.dumps({"type": "record", "name": "Order", "fields": made})


def json_schema(properties: Mapping[str, Any], optional: Collection[str] = ()) -> str:
    """Return the schema of an object; all other properties than the customer are required."""
    required = [name for name in properties if name not in {"customer", *optional}]
    return json.dumps({"type": "object", "properties": dict(properties), "required": required})
