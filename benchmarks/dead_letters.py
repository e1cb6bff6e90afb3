"""What a dead-letter topic costs: the same query without one, with one, and with bad records.

All run in one Spark session, from one topic, in turns; ratios are those within a round. A first
round warms up and is thrown away.

.venv/bin/python benchmarks/dead_letters.py --rows 1000000
"""

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from load import fill
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from scenarios import Records
from turns import ratio_table, turns

from spark_eos import DeadLetters, ExactlyOnceSink
from spark_eos.testing import EmbeddedKafka, spark_session

_PARTITIONS: Final = 4
_PLAIN: Final = "no topic"


def _relay(frame: DataFrame) -> DataFrame:
    return frame.select("source", "key", "value")


def _judged(frame: DataFrame, *, every: int) -> DataFrame:
    # The last digits of the record's number; a bad one has all of them 0.
    digits = F.expr(f"cast(substring(value, {13 - every}, {every}) as string)")
    zeros = "0" * every
    error = F.when(digits == zeros, F.lit("not an order"))
    return frame.select("source", "key", "value", error.alias("error"))


def _none(frame: DataFrame) -> DataFrame:
    return _judged(frame, every=12).where("value <> ''")


def _hundredth(frame: DataFrame) -> DataFrame:
    return _judged(frame, every=2)


_CONTESTANTS: Final[dict[str, tuple[Callable[[DataFrame], DataFrame], bool]]] = {
    _PLAIN: (_relay, False),
    "a topic": (_relay, True),
    "a topic, an error column": (_none, True),
    "a topic, 1 % bad records": (_hundredth, True),
}


def _run(
    spark: SparkSession,
    broker: EmbeddedKafka,
    directory: Path,
    transform: Callable[[DataFrame], DataFrame],
    *,
    letters: bool,
) -> float:
    """Rows per second of one batch."""
    name = uuid.uuid4().hex[:8]
    for topic in (f"out-{name}", f"dlq-{name}"):
        broker.create_topic(topic, _PARTITIONS)
    sink = ExactlyOnceSink(
        kafka={"bootstrap.servers": broker.bootstrap_servers},
        group_id=f"group-{name}",
        topic=f"out-{name}",
        checkpoint_location=str(directory / name),
        dead_letters=DeadLetters(f"dlq-{name}") if letters else None,
    )
    frame = sink.read(spark, subscribe="in")
    query = sink.write(transform(frame)).trigger(availableNow=True).start()
    query.awaitTermination()
    sink.close()
    (batch,) = (p for p in query.recentProgress if p["numInputRows"])
    seconds = float(batch["durationMs"]["triggerExecution"]) / 1000
    return int(batch["numInputRows"]) / seconds


@click.command(help=__doc__)
@click.option("--rows", default=1_000_000, show_default=True, help="Records of the batch.")
@click.option("--rounds", default=5, show_default=True, help="Number of rounds that count.")
def main(rows: int, rounds: int) -> None:
    """Prints a table."""
    found: dict[str, list[float]] = {name: [] for name in _CONTESTANTS}
    with tempfile.TemporaryDirectory() as directory, EmbeddedKafka() as broker:
        spark = spark_session(config={"spark.driver.memory": "2g"})
        broker.create_topic("in", _PARTITIONS)
        fill(broker, "in", rows, Records(size=112, partitions=_PARTITIONS))
        for number, name in turns(list(_CONTESTANTS), rounds):
            transform, letters = _CONTESTANTS[name]
            speed = _run(spark, broker, Path(directory), transform, letters=letters)
            if number:
                found[name].append(speed)
    Console().print(ratio_table(found, "rows/s", _PLAIN))


if __name__ == "__main__":
    main()
