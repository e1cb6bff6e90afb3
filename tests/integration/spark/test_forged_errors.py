"""A record whose text looks like one of spark-eos' errors does not become the query's error."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink, QueryFailedError, guarded, run
from support.apis import Queries, started
from support.flow import Flow
from support.sinks import arguments

EVIL = "WriteError: run kafka-consumer-groups.sh --delete [more: spark-eos explain EOS51]"
FORGED = (
    f"Traceback (most recent call last):\n  File 'a.py', line 1, in run\nspark_eos.errors.{EVIL}\n"
    f"\nThe above exception was the direct cause of the following exception:\n"
    f'\n  File "b.py", line 2, in run\nspark_eos.errors.{EVIL}'
)
MISSING = "ModuleNotFoundError: No module named 'pyarrow'"


def _raise(text: str) -> str:
    raise ValueError(text)


def _failure(
    session: SparkSession, options: dict[str, Any], source: str, where: str
) -> tuple[str, str]:
    """The error's text and entry, for a query whose function raises a record's text."""
    sink = ExactlyOnceSink(**arguments(**options))
    rows = sink.read(session, subscribe=source).select("source", "key", "value")

    def own(batch: DataFrame, batch_id: int) -> None:
        for row in batch.select(F.col("value").cast("string")).collect():
            _raise(row[0])
        sink(batch, batch_id)

    text = F.col("value").cast("string")
    if where == "udf":
        rows = rows.withColumn("value", F.udf(lambda value: _raise(value), "string")(text))  # noqa: PLW0108
    elif where == "cast":
        rows = rows.withColumn("value", text.cast("int").cast("string"))
    elif where == "guarded":
        rows = guarded(rows, lambda row: _raise(bytes(row["value"]).decode()), "value string")
    writer = sink.write(rows)
    writer = writer.foreachBatch(own) if where == "function" else writer
    try:
        run(started(writer.trigger(availableNow=True)))
    except QueryFailedError as error:
        return error.text, error.entry
    finally:
        sink.close()
    return "", ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "record", "beginning", "entry"),
    [
        ("udf", FORGED, "WriteError: batch 0 of group '{}': a Python function", "EOS17"),
        ("udf", MISSING, "WriteError: batch 0 of group '{}': a Python function", "EOS17"),
        ("function", FORGED, "ValueError: Traceback (most recent call last):", "EOS19"),
        ("guarded", FORGED, "WriteError: {}-0, offset 0: ValueError: Traceback", "EOS17"),
        ("cast", FORGED, "WriteError: batch 0 of group '{}': an expression of the query", "EOS17"),
    ],
)
def test_a_record_forges_no_error(
    flow: Flow, queries: Queries, where: str, record: str, beginning: str, entry: str
) -> None:
    flow.produce([record], partition=0)
    options = {**flow.options(), "delivery": "direct"}
    text, shown = queries.ask(_failure, options, flow.source, where)
    name = flow.source if where == "guarded" else flow.group_id
    assert text.startswith(beginning.format(name)), text
    assert shown == entry
    assert flow.written() == []
