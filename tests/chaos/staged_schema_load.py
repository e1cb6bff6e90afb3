"""A staged load of Avro records, which are decoded, moved to other partitions, and encoded.

One record in a hundred is broken and must become a dead letter.
"""

import random
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from chaos.loads import Load, Record
from chaos.schema_load import (
    OUTPUT,
    SUBJECT,
    SchemaRecords,
    no_record,
    price,
    registered,
    registry_of,
)
from chaos.staged_loads import in_another_order

_SUBJECT = "chaos-staged-prices"
_DIGITS = 12
# The bytes of a value begin with its schema's id and its number's digits: they sort by number.
_SEQUENCE = {"name": "digits", "type": {"type": "fixed", "name": "Digits", "size": _DIGITS}}
_SCHEMA: dict[str, Any] = {**OUTPUT, "fields": [_SEQUENCE, *OUTPUT["fields"]]}


class _Records(SchemaRecords):
    """As for the other loads with schemas, but each key has one source partition."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        registered(url, _SUBJECT, _SCHEMA)

    def __call__(self, chosen: random.Random, number: int, partitions: int) -> Record:
        record = super().__call__(chosen, number, partitions)
        return replace(record, key=b"%d-%d" % (record.partition, number % 300))


def _moved(frame: DataFrame, targets: list[str], *, registry: str, pinned: str) -> DataFrame:
    schemas = registry_of(registry)
    orders = schemas.decode(frame, subject=SUBJECT, pinned=pinned, errors="column")
    digits = F.lpad(F.col("value.number").cast("string"), _DIGITS, "0").cast("binary")
    # With the source column, dead letters contain their records.
    kept = [name for name in ("source", "key", "error") if name in orders.columns]
    value = price().withField("digits", digits).alias("value")
    rows = orders.select(*kept, value, F.lit(targets[0]).alias("topic")).repartition(3, "key")
    return schemas.encode(rows, subject=_SUBJECT)


def expected_prices(
    frame: DataFrame, targets: list[str], dead_letter_topics: list[str], schemas: dict[str, str]
) -> DataFrame:
    """The expected output for all input, and the records that must become dead letters."""
    good = _moved(frame.select("key", "value"), targets, **schemas).where("error is null")
    whole = frame.select("key", "value", F.col("value").alias("record"))
    decoded = registry_of(schemas["registry"]).decode(
        whole, subject=SUBJECT, pinned=schemas["pinned"], errors="column"
    )
    topic = F.lit(dead_letter_topics[0]).alias("topic")
    broken = decoded.where("error is not null").select("key", F.col("record").alias("value"), topic)
    return good.select("key", "value", "topic").union(broken)


STAGED_SCHEMAS = {
    "prices": Load(
        1,
        1,
        3,
        4_000,
        1_000,
        24_000,
        {"max_transaction_records": 400, "progress_partitions": 6},
        no_record,
        _moved,
        of_batch=in_another_order,
        number=lambda value: int(value[5 : 5 + _DIGITS]),
        dead_letters=True,
        of_registry=_Records,
    )
}
