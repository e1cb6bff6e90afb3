"""Short functions for Avro schemas."""

import io
import json
from typing import Any

import fastavro

from spark_eos.schemas.formats import Schema


def schema(text: Any, *references: Any) -> Schema:
    """A schema with its references."""
    named = tuple((str(number), json.dumps(one)) for number, one in enumerate(references))
    return Schema("AVRO", json.dumps(text), named)


def record(*fields: Any, name: str = "Order", **more: Any) -> dict[str, Any]:
    """A record type; fields are (name, type) or (name, type, default)."""
    names = ("name", "type", "default")
    made = [dict(zip(names, field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def enum(*symbols: str, name: str = "E") -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": [*symbols]}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": f"F{size}", "size": size, **more}


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def payload(text: Any, value: Any) -> bytes:
    """A value as written by fastavro itself."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(text), value)
    return out.getvalue()
