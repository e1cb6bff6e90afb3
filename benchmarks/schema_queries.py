"""Whole queries on records of a schema: decode, filter, change a field, encode.

The base is a query with Spark's own functions and Spark's own sink. Those functions get schemas as
text: Spark has no registry, so the query itself takes the id off each record and puts it back on.
"""

import datetime
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import fastavro
import orders
from contestants import EQUAL, OURS, Arena, Trial, run_and_stop, spark_eos
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from spark_eos.schemas import SchemaRegistry
from spark_eos.schemas.formats import Schema
from spark_eos.schemas.framing import prefix_of

_SUBJECT: Final = "orders-value"
# Records repeat: more of them would only take longer to produce.
_RECORDS: Final = 2_000
_MOMENT: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
_AVRO: Final[dict[str, Any]] = {**orders.AVRO, "note": "string"}
_JSON: Final[dict[str, Any]] = {**orders.JSON, "note": {"type": "string"}}
_TYPES: Final = (
    "struct<id string, amount double, number bigint, customer string, at timestamp, paid boolean, "
    "quantity bigint, note string>"
)


class Kind(NamedTuple):
    """Records of a schema.

    Attributes:
        name: ``AVRO`` or ``JSON``.
        size: Approximate bytes of a record.
        schemas: Number of writers' schemas, whose records alternate.
    """

    name: str
    size: int
    schemas: int = 1

    @property
    def title(self) -> str:
        """The name used in tables."""
        return f"{self.name.lower()} query" + (", two schemas" if self.schemas > 1 else "")


def register(url: str, kind: Kind) -> list[bytes]:
    """Register the writers' schemas and return records of each in turn."""
    registry = SchemaRegistry({"url": url})
    client = registry._client  # noqa: SLF001 - the public API registers with a frame only
    texts = _texts(kind)
    ids = [
        client.registered(_SUBJECT, Schema(kind.name, text), register=True).number for text in texts
    ]
    write = _avro_writer(texts) if kind.name == "AVRO" else _json_text
    return [
        prefix_of(ids[number % len(ids)]) + write(_order(kind, number), number % len(ids))
        for number in range(_RECORDS)
    ]


def _texts(kind: Kind) -> list[str]:
    """Return the writers' schemas; the later ones have one more optional field each."""
    texts = []
    for number in range(kind.schemas):
        more = [f"more{index}" for index in range(number)]
        if kind.name == "JSON":
            fields = _JSON | dict.fromkeys(more, orders.JSON["customer"])
            texts.append(orders.json_schema(fields, more))
        else:
            fields = _AVRO | dict.fromkeys(more, orders.AVRO["customer"])
            texts.append(orders.avro_schema(fields, more))
    return texts


def _order(kind: Kind, number: int) -> dict[str, Any]:
    order = {
        "id": f"order-{number}",
        "amount": number * 0.25,
        "number": number,
        "customer": None if number % 5 == 0 else f"customer {number % 1000}",
        "at": _MOMENT + datetime.timedelta(milliseconds=number),
        "paid": number % 2 == 0,
        "quantity": number % 100,
        "more0": "more",
    }
    used = 60 if kind.name == "AVRO" else 150
    return order | {"note": "n" * max(0, kind.size - used)}


def _avro_writer(texts: list[str]) -> Callable[[dict[str, Any], int], bytes]:
    parsed = [fastavro.parse_schema(json.loads(text)) for text in texts]

    def write(order: dict[str, Any], schema: int) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed[schema], order)
        return stream.getvalue()

    return write


def _json_text(order: dict[str, Any], schema: int) -> bytes:
    moment = order["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = order | {"at": moment}
    if not schema:
        del record["more0"]
    return json.dumps(record, separators=(",", ":")).encode()


def _changed(frame: DataFrame) -> DataFrame:
    """Filter, and change a field."""
    amount = F.col("value.amount") * 2
    return frame.where("value.quantity >= 10").withColumn(
        "value", F.col("value").withField("amount", amount)
    )


def _either(reads: int) -> Callable[[str], Column]:
    def field(name: str) -> Column:
        return F.coalesce(*(F.col(f"r{index}.{name}") for index in range(reads))).alias(name)

    return field


def _with_sparks_functions(frame: DataFrame, kind: Kind, *columns: str) -> DataFrame:
    """Decode, change and encode with Spark's own functions; pass the other columns on."""
    payload, texts = F.substring("value", orders.PREFIX + 1, 1 << 30), _texts(kind)
    if kind.name == "JSON":
        read: Column = F.from_json(payload.cast("string"), _TYPES)
    else:
        # Records of each schema are read with their own schema, and then as columns of the first.
        number = F.conv(F.hex(F.substring("value", 2, 4)), 16, 10).cast("int")
        reads = [from_avro(F.when(number == i, payload), text) for i, text in enumerate(texts, 1)]
        frame = frame.select(*columns, *(each.alias(f"r{i}") for i, each in enumerate(reads)))
        read = F.col("r0") if len(reads) == 1 else F.struct(*map(_either(len(reads)), _AVRO))
    changed = _changed(frame.select(*columns, read.alias("value")))
    prefix = F.unhex(F.lit(prefix_of(1).hex()))
    if kind.name == "JSON":
        written = F.to_json("value").cast("binary")
    else:
        written = to_avro(F.col("value"), texts[0])
    return changed.select(*columns, F.concat(prefix, written).alias("value"))


def _own(arena: Arena, kind: Kind) -> Trial:
    rows = _with_sparks_functions(arena.read(as_we_do=True), kind, "key")
    servers = {"kafka.bootstrap.servers": arena.bootstrap_servers, "topic": arena.target}
    return run_and_stop(rows.writeStream.format("kafka").options(**servers), arena)


def _own_functions(arena: Arena, kind: Kind) -> Trial:
    return spark_eos(arena, lambda frame: _with_sparks_functions(frame, kind, "source", "key"))


def _ours(arena: Arena) -> Trial:
    registry = SchemaRegistry({"url": arena.registry})

    def shape(frame: DataFrame) -> DataFrame:
        decoded = registry.decode(
            frame.select("source", "key", "value"), subject=_SUBJECT, version=1
        )
        return registry.encode(_changed(decoded), subject=_SUBJECT, version=1)

    return spark_eos(arena, shape)


def contestants(kind: Kind) -> Mapping[str, Callable[[Arena], Trial]]:
    """Return the query with Spark's own functions and sink, with ours, and with our sink only."""
    return {
        EQUAL: lambda arena: _own(arena, kind),
        OURS: _ours,
        "Spark's own functions, our sink": lambda arena: _own_functions(arena, kind),
    }


KINDS: Final = (
    Kind("AVRO", 100),
    Kind("AVRO", 100, schemas=2),
    Kind("AVRO", 1024),
    Kind("JSON", 100),
    Kind("JSON", 1024),
)
