"""Queries whose rows hold the values of `any_records`; workers import this module."""

import bz2
import configparser
import datetime
import json
import pickle
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_eos import guarded


def _from_header(name: str) -> Any:
    """A column of arbitrary bytes, taken from a record's headers."""
    found = F.filter("headers", lambda header: header["key"] == name)
    return F.get(found, 0)["value"]


def plain(frame: DataFrame) -> DataFrame:
    """Rows whose columns hold arbitrary bytes and numbers."""
    header = F.struct(_from_header("name").cast("string").alias("key"), F.lit(b"x").alias("value"))
    number = F.struct(F.lit("number").alias("key"), _from_header("number").alias("value"))
    headers = F.array(number, F.when(_from_header("name").isNotNull(), header).otherwise(number))
    return frame.select(
        "source",
        "key",
        "value",
        _from_header("topic").cast("string").alias("topic"),
        _from_header("partition").cast("string").cast("int").alias("partition"),
        F.timestamp_micros(_from_header("time").cast("string").cast("long")).alias("timestamp"),
        headers.alias("headers"),
        _from_header("error").cast("string").alias("error"),
    )


PARSERS: list[Callable[[bytes], object]] = [
    json.loads,
    bytes.decode,
    pickle.loads,
    bz2.decompress,
    lambda value: struct.unpack("<q", value),
    lambda value: configparser.ConfigParser().read_string(value.decode("latin-1")),
    lambda value: datetime.datetime.fromtimestamp(len(value) ** 9, datetime.timezone.utc),
    len,
]


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row if one of several parsers accepts its value."""
    number = int(row["headers"][0]["value"])
    PARSERS[number % len(PARSERS)](row["value"])
    return {**row, "timestamp": row["timestamp"]}


def _parsed_frame(rows: Any) -> Any:
    return rows.apply(lambda row: _parsed(row.to_dict()), axis=1, result_type="expand")


def _function(frame: DataFrame, kind: str, **options: Any) -> DataFrame:
    rows = plain(frame).drop("error")
    return guarded(
        rows,
        _parsed if kind == "rows" else _parsed_frame,
        "key binary, value binary, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>",
        kind=kind,
        **options,
    )


def staged(frame: DataFrame, make: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Rows without their source column, after a shuffle."""
    return make(frame).drop("source").repartition(2)


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "plain": plain,
    "staged": partial(staged, make=plain),
    "rows": partial(_function, kind="rows"),
    "staged, rows": partial(staged, make=partial(_function, kind="rows", errors="column")),
    "pandas": partial(_function, kind="pandas"),
}
