"""Variants of the query, each with its own contestants; the first one is the base of comparison.

Each variant runs with large batches and with triggers of 100 rows, like the plain relays.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import schema_queries
from contestants import EQUAL, Arena, Trial, run_and_stop, spark_eos
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_eos import DeadLetters

_STAGED_PARTITIONS: Final = 4


def _repartitioned(frame: DataFrame) -> DataFrame:
    return frame.select("key", "value").repartition(_STAGED_PARTITIONS)


def _own_staged(arena: Arena) -> Trial:
    servers = {"kafka.bootstrap.servers": arena.bootstrap_servers, "topic": arena.target}
    frame = _repartitioned(arena.read(as_we_do=True))
    return run_and_stop(frame.writeStream.format("kafka").options(**servers), arena)


def _judged(frame: DataFrame, *, digits: int) -> DataFrame:
    """Add an error to records whose number ends with ``digits`` zeros."""
    last = F.expr(f"cast(substring(value, {13 - digits}, {digits}) as string)")
    error = F.when(last == "0" * digits, F.lit("not an order"))
    return frame.select("source", "key", "value", error.alias("error"))


def _with_dead_letters(
    arena: Arena, shape: Callable[[DataFrame], DataFrame] | None = None
) -> Trial:
    return spark_eos(arena, shape, dead_letters=DeadLetters(arena.other_topic()))


def _mirrored(arena: Arena) -> Trial:
    return spark_eos(arena, source_kafka={"bootstrap.servers": arena.other_servers})


_Contestants = Mapping[str, Callable[[Arena], Trial]]

VARIANTS: Final[Mapping[str, _Contestants]] = {
    "staged": {EQUAL: _own_staged, "staged": partial(spark_eos, shape=_repartitioned)},
    "mirrored": {"direct": spark_eos, "mirrored": _mirrored},
    "dead letters": {
        "no topic": spark_eos,
        "a topic": _with_dead_letters,
        "a topic, an error column": partial(_with_dead_letters, shape=partial(_judged, digits=12)),
        "a topic, 1 % bad records": partial(_with_dead_letters, shape=partial(_judged, digits=2)),
    },
}
CONTESTANTS: Final[Mapping[str, _Contestants]] = {
    **VARIANTS,
    **{kind.title: schema_queries.contestants(kind) for kind in schema_queries.KINDS},
}
"""Contestants of all variants, with those that run in large batches only."""
