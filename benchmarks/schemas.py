"""What decoding and encoding Avro takes a core, against plain fastavro in a loop.

Records of ten fields, with logical types, in batches as Spark's. No Spark and no Kafka: what
is measured is what a task does for each batch. Processor time, in turns; the ratio is that within a
round. A first round warms up and is thrown away.

.venv/bin/python benchmarks/schemas.py
"""

import datetime
import decimal
import io
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import click
import fastavro
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.framing import framed, prefix_of

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


@click.command()
@click.option("--batches", default=10, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(batches: int, rounds: int) -> None:
    """Prints records a second of each, and the ratio to the loop."""
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
    schema = Schema("AVRO", json.dumps(_ORDER))
    own = format_of(schema)
    decoder, encoder = own.decoder(schema, schema), own.encoder(schema, own.spark_type(schema))
    # One field more, so that each record is resolved.
    wider = {**_ORDER, "fields": [*_ORDER["fields"], {"name": "x", "type": "int", "default": 0}]}
    resolving = own.decoder(schema, Schema("AVRO", json.dumps(wider)))
    column = pa.array(records, pa.binary())

    def read() -> None:
        for record in records:
            fastavro.schemaless_reader(io.BytesIO(record[5:]), parsed, None)

    def decode(of: Any = decoder) -> pa.Array:
        (group,) = framed(column, None, "value").groups
        return of(group.payloads).array

    values = decode()
    contestants: dict[str, Callable[[], object]] = {
        "fastavro: read": read,
        "decode": decode,
        "decode, resolved": lambda: decode(resolving),
        "fastavro: write": write,
        "encode": lambda: encoder(values),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, run in contestants.items():
            began = time.process_time()
            for _ in range(batches):
                run()
            seconds[name].append(time.process_time() - began)
    table = Table("", "records/s", "of the loop")
    for name, taken in seconds.items():
        loop = seconds[
            "fastavro: write" if name in {"fastavro: write", "encode"} else "fastavro: read"
        ]
        ratios = [base / one for base, one in zip(loop[1:], taken[1:], strict=True)]
        speed = batches * _BATCH / statistics.median(taken[1:])
        table.add_row(name, f"{speed:,.0f}", f"{statistics.median(ratios):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
