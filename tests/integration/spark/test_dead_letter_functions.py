"""Functions that raise on some rows: each becomes a dead letter and costs no other row."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eos import guarded
from spark_eos._spark.dead_letter_columns import columns_of_copy, direct_columns, staged_columns
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError
from support.dead_letters import create_dead_letter_topic, headers_of
from support.flow import Flow
from support.queries import run_available


def by_row(row: dict[str, Any]) -> dict[str, Any]:
    """Ten times the number."""
    return {"value": str(10 * int(row["value"]))}


def by_pandas(rows: Any) -> Any:
    """The same as `tenfold`, for a pandas DataFrame."""
    return rows.assign(value=[str(10 * int(value)) for value in rows["value"]])


def by_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same, for an Arrow batch."""
    numbers = batch.column("value").cast(pa.string()).cast(pa.int64())
    return pa.RecordBatch.from_pydict({"value": pc.multiply(numbers, 10).cast(pa.string())})


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "rows": by_row,
    "pandas": by_pandas,
    "arrow": by_arrow,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_one_bad_row_costs_one_row(flow: Flow, spark_eos_session: SparkSession, kind: str) -> None:
    dlq = create_dead_letter_topic(flow)
    values = [str(n) if n % 10 != 3 else f"no {n}" for n in range(50)]
    flow.produce(values, partition=0)

    def transform(frame: DataFrame) -> DataFrame:
        return guarded(frame, FUNCTIONS[kind], "value string", kind=kind)

    (report,) = run_available(spark_eos_session, flow, transform, dead_letter_topic=dlq)
    assert flow.merged_values(key=int) == [str(10 * n) for n in range(50) if n % 10 != 3]
    found = flow.written(dlq)
    assert [m.value() for m in found] == [b"no 3", b"no 13", b"no 23", b"no 33", b"no 43"]
    headers = headers_of(found[1])
    assert headers["__dlq.errors.offset"] == "13"
    assert headers["__dlq.errors.exception"] == {"arrow": "pyarrow.lib.ArrowInvalid"}.get(
        kind, "ValueError"
    )
    assert "no 13" in headers["__dlq.errors.message"]
    assert "__dlq.errors.stacktrace" not in headers
    assert report.dead_letters == {"exception": 5}


def test_an_error_of_an_earlier_function_stays(spark_eos_session: SparkSession) -> None:
    def first(row: dict[str, Any]) -> dict[str, Any]:
        return {"value": str(int(row["value"]))}

    def second(row: dict[str, Any]) -> dict[str, Any]:
        # What an earlier error has left: nothing.
        return {"value": f"seen {row['value']}"} if row["value"] != "3" else {}

    values = [("1",), ("two",), ("due",), ("3",), ("4",)]
    frame = spark_eos_session.createDataFrame(values, "value string").coalesce(1)
    made = guarded(guarded(frame, first, "value string", errors="column"), second, "value string")
    rows = [(row.value, row.error and row.error.message) for row in made.collect()]
    assert [value for value, _ in rows] == ["seen 1", None, None, None, "seen 4"]
    assert [text is not None for _, text in rows] == [False, True, True, True, False]
    assert "'two'" in rows[1][1]
    assert "'due'" in rows[2][1]
    # A column of that name that holds something else is the function's to read.
    own = spark_eos_session.createDataFrame([("1", "E42")], "value string, error string")
    code = guarded(own, lambda row: {"code": row["error"]}, "code string", errors="column")
    (row,) = code.collect()
    assert (row.code, row.error) == ("E42", None)


def _failing(frame: DataFrame, function: Callable[..., Any], words: str, **options: Any) -> None:
    with pytest.raises((PythonException, StreamingQueryException), match=words):
        guarded(frame, function, "value string", **options).collect()


@pytest.mark.slow
def test_what_is_no_rows_fault_is_raised(spark_eos_session: SparkSession) -> None:
    class RegistryError(Exception):
        """Like the error of a registry's client."""

    def own(_row: dict[str, Any]) -> dict[str, Any]:
        raise RegistryError("the registry is away")

    def fewer(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(1)

    def wrapped(_row: dict[str, Any]) -> dict[str, Any]:
        try:
            raise ConnectionRefusedError("the registry is away")
        except OSError as error:
            raise RuntimeError("no schema") from error

    frame = spark_eos_session.createDataFrame([("a",), ("b",)], "value string")
    _failing(frame, wrapped, "RuntimeError: no schema")
    _failing(frame, own, r"RegistryError.*list it: guarded\(\.\.\., row_errors=\[.*RegistryError\]")
    named = guarded(frame, own, "value string", row_errors=[RegistryError], errors="column")
    assert [row.error.message for row in named.collect()] == ["the registry is away"] * 2
    _failing(frame, fewer, "it must return one for each", kind="arrow")


@pytest.mark.slow
def test_a_result_of_another_type_is_the_rows_fault(spark_eos_session: SparkSession) -> None:
    frame = spark_eos_session.createDataFrame([("1",), ("2",), ("3",)], "value string")

    def numbers(row: dict[str, Any]) -> dict[str, Any]:
        return {"made": object() if row["value"] == "2" else int(row["value"])}

    rows = guarded(frame, numbers, "made long", errors="column", stacktrace=True).collect()
    assert sorted(row.made for row in rows if row.error is None) == [1, 3]
    (bad,) = (row for row in rows if row.error is not None)
    assert bad.made is None
    assert "Traceback" in bad.error.stacktrace


def test_what_can_not_be_guarded(spark_eos_session: SparkSession) -> None:
    frame = spark_eos_session.createDataFrame([("a",)], "value string")
    with pytest.raises(ConfigurationError, match="kind is 'row'"):
        guarded(frame, by_row, "value string", kind="row")
    with pytest.raises(UnsupportedPipelineError, match="include error"):
        guarded(frame, by_row, "value string, error string")


@pytest.mark.parametrize("delivery", ["direct", "staged"])
def test_without_a_topic_for_them_nothing_is_written_as_nulls(
    delivery: str, flow: Flow, spark_eos_session: SparkSession
) -> None:
    flow.produce(["1", "no 2", "3"], partition=0)

    def transform(frame: DataFrame) -> DataFrame:
        made = guarded(frame, by_row, "value string", errors="column")
        return made.drop("source").repartition(2) if delivery == "staged" else made

    with pytest.raises(UnsupportedPipelineError, match="there is no dead-letter topic"):
        run_available(
            spark_eos_session,
            flow,
            transform,
            progress_topic=f"progress-{flow.name}",
            progress_partitions=3,
        )
    assert flow.written() == []
    assert not any(flow.committed().values())


@pytest.mark.slow
def test_an_error_that_can_not_be_encoded(flow: Flow, spark_eos_session: SparkSession) -> None:
    dlq = create_dead_letter_topic(flow)
    flow.produce(["1", "2"], partition=0)

    class OddError(ValueError):
        """An error whose text can't be read."""

        def __str__(self) -> str:
            raise ValueError("no text")

    def by_number(row: dict[str, Any]) -> dict[str, Any]:
        raise (ValueError("unknown kind \ud800") if row["value"] == b"1" else OddError())

    run_available(
        spark_eos_session,
        flow,
        lambda f: guarded(f, by_number, "value string"),
        dead_letter_topic=dlq,
    )
    messages = [headers_of(m)["__dlq.errors.message"] for m in flow.written(dlq)]
    assert messages == ["unknown kind \\ud800", "OddError"]


_RECORD = "key:binary,value:binary,headers:array<struct<key:string,value:binary>>"
_ERROR = "struct<message:string,exception:string,stacktrace:string>"
_PLACE = "topic:string,partition:int,offset:bigint"
_SOURCE = f"struct<{_PLACE},{_RECORD},timestamp:timestamp,error:{_ERROR}>"


def test_a_row_that_has_lost_its_source_carries_no_record(spark_eos_session: SparkSession) -> None:
    """Like an outer join: an empty record would represent the row."""
    frame = spark_eos_session.sql(f"SELECT CAST(null AS {_SOURCE}) AS source, 'bad' AS error")
    (row,) = frame.select(*direct_columns(frame.schema)).collect()
    assert json.loads(row.spark_eos_letter) == {"error": {"message": "bad"}}
    (row,) = frame.select(*staged_columns(frame.schema)).collect()
    assert (row.error.message, row.spark_eos_record) == ("bad", None)


def test_a_copy_has_the_columns_that_earlier_versions_know(
    spark_eos_session: SparkSession,
) -> None:
    record: dict[str, Any] = {"key": None, "value": b"own", "headers": None, "timestamp": None}
    place = {"topic": "in", "partition": 0, "offset": 7}
    sources = [{**place, **record, "error": error} for error in (None, {"message": "bad"})]
    frame = spark_eos_session.createDataFrame(
        [(source, b"row") for source in sources], f"source {_SOURCE}, value binary"
    )
    copy = frame.select(*staged_columns(frame.schema))
    assert copy.columns == ["value", "error", "spark_eos_record"]
    good, bad = copy.collect()
    assert (good.error, good.spark_eos_record) == (None, None)
    assert bad.error.message == "bad"
    assert json.loads(bad.spark_eos_record) == {"value": "b3du"}
    # Tasks get one text.
    read = copy.select(*columns_of_copy(copy.schema))
    assert read.columns == ["value", "spark_eos_letter", "spark_eos_record"]
    good, bad = read.collect()
    assert good.spark_eos_letter is None
    assert json.loads(bad.spark_eos_letter) == {"error": {"message": "bad"}}
    # Versions between those staged the task's own column.
    between = frame.select("value", F.lit("{}").alias("spark_eos_letter"))
    assert between.select(*columns_of_copy(between.schema)).columns == between.columns
