"""Compares schema records in Spark's columns with Spark's own functions for Avro and JSON.

Batch frames of 8 fields go from Parquet to Spark's noop sink, with a real registry. Spark's own
functions get the schema as text. They don't check records' ids, and miss most damaged records.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orders
from bench import note
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.avro.functions import from_avro, to_avro
from results import Measured
from turns import turns

from spark_eos._jars.jar_sets import locked_jars
from spark_eos._jars.lockfile import parse_lock
from spark_eos.schemas import SchemaRegistry
from spark_eos.testing import EmbeddedSchemaRegistry

_HERE: Final = Path(__file__).parent
_ROWS: Final = 400_000
_OWN: Final = "Spark's own function"
_OURS: Final = "spark-eos"
_AVRO: Final[dict[str, Any]] = {**orders.AVRO, "tags": {"type": "array", "items": "string"}}
_JSON: Final[dict[str, Any]] = {
    **orders.JSON,
    "tags": {"type": "array", "items": {"type": "string"}},
}


def spark_avro() -> str:
    """Return the path of the jar with Spark's Avro functions, which is downloaded once."""
    text = (_HERE / "locks" / "spark-avro-4.2.0.json").read_text(encoding="utf-8")
    (jar,) = locked_jars(parse_lock("spark-avro-4.2.0", text))
    return str(jar)


def _value(kinds: Mapping[str, T.DataType]) -> Column:
    number = F.col("id")
    columns = {
        "id": F.concat(F.lit("order-"), number),
        "amount": number * 0.25,
        "number": number,
        "customer": F.when(number % 5 != 0, F.concat(F.lit("customer "), number % 1000)),
        "at": F.timestamp_millis(number + 1_700_000_000_000),
        "paid": number % 2 == 0,
        "tags": F.slice(F.array(F.lit("a"), F.lit("bc")), 1, (number % 3).cast("int")),
        "quantity": number % 100,
    }
    return F.struct(*(columns[name].cast(kind).alias(name) for name, kind in kinds.items()))


def frames(spark: SparkSession, directory: Path, rounds: int, scale: float) -> Iterator[Measured]:
    """Measure Avro and JSON, read and written."""
    with EmbeddedSchemaRegistry() as server:
        registry = SchemaRegistry({"url": server.url})
        for kind, text in (
            ("AVRO", orders.avro_schema(_AVRO)),
            ("JSON", orders.json_schema(_JSON)),
        ):
            subject = f"orders-{kind.lower()}"
            rows = spark.range(max(1_000, int(_ROWS * scale))).repartition(4)
            columns = rows.select(_value(_columns(kind)).alias("value"))
            written = registry.encode(
                columns, subject=subject, schema=text, kind=kind, register=True
            )
            own, records = directory / f"{subject}-columns", directory / f"{subject}-records"
            columns.write.parquet(str(own))
            written.write.parquet(str(records))
            encoded = spark.read.parquet(str(records))
            decoded = registry.decode(encoded, subject=subject)
            decoded.write.parquet(str(directory / f"{subject}-decoded"))
            values = spark.read.parquet(str(directory / f"{subject}-decoded"))
            kept = values.schema["value"].dataType
            payload = F.substring("value", orders.PREFIX + 1, 1 << 30)
            if kind == "AVRO":
                read = from_avro(payload, text)
                write = to_avro(F.col("value"), text)
            else:
                read = F.from_json(payload.cast("string"), kept.simpleString())
                write = F.to_json("value").cast("binary")
            prefix = F.unhex(F.lit("0000000001"))
            yield _measured(
                f"frames, {kind.lower()} read",
                {_OWN: encoded.select(read.alias("value")), _OURS: decoded},
                encoded.count(),
                rounds,
            )
            yield _measured(
                f"frames, {kind.lower()} written",
                {
                    _OWN: values.select(F.concat(prefix, write).alias("value")),
                    _OURS: registry.encode(values, subject=subject),
                },
                encoded.count(),
                rounds,
            )


def _columns(kind: str) -> dict[str, T.DataType]:
    return {
        "id": T.StringType(),
        "amount": T.DoubleType(),
        "number": T.LongType(),
        "customer": T.StringType(),
        "at": T.TimestampType(),
        "paid": T.BooleanType(),
        "tags": T.ArrayType(T.StringType()),
        "quantity": T.IntegerType() if kind == "AVRO" else T.LongType(),
    }


def _measured(name: str, contestants: Mapping[str, DataFrame], rows: int, rounds: int) -> Measured:
    measured = Measured(name, "records/s", base=_OWN)
    runs: dict[str, Callable[[], None]] = {
        contestant: _save(frame) for contestant, frame in contestants.items()
    }
    for number, contestant in turns(list(runs), rounds):
        began = time.monotonic()
        runs[contestant]()
        note(measured, contestant, rows / (time.monotonic() - began), counts=number > 0)
    return measured


def _save(frame: DataFrame) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()
