"""Guarded functions on Arrow batches of arbitrary bytes and times: one row each; without Spark."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import types as T

from spark_eos._spark.dead_letter_functions import _Guard
from spark_eos._spark.row_errors import RowErrors
from spark_eos._spark.session_time import SessionTime
from spark_eos.errors import WriteError

SCHEMA = T.StructType().add("text", "string").add("time", "timestamp")
ZONES = ["UTC", "Europe/Berlin", "GMT+8", "UTC+8", "PST", "Z", "+05:30"]
PLACE = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def by_row(row: dict[str, Any]) -> dict[str, Any]:
    """The row unchanged, except for texts that are numbers of a kind."""
    return {"text": row["text"] if row["text"] != "0" else str(1 / 0), "time": row["time"]}


def by_pandas(rows: Any) -> Any:
    return rows.assign(text=[by_row({"text": text, "time": None})["text"] for text in rows["text"]])


def by_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.column("text").to_pylist()
    return batch.select(["text", "time"])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "rows": by_row,
    "pandas": by_pandas,
    "arrow": by_arrow,
}


def guard(kind: str, zone: str, function: Callable[[Any], Any] | None = None) -> _Guard:
    errors = RowErrors.of(T.StructType(), "column", WriteError)
    names = [*SCHEMA.names, "error"]
    made = (function or FUNCTIONS[kind], SCHEMA, kind, (), False)
    return _Guard(*made, passed=[], names=names, of_rows=errors, time=SessionTime(zone))


def batch_of(texts: list[bytes | None], times: list[int | None], zone: str) -> pa.RecordBatch:
    contents = pa.array(texts, pa.binary())
    kind = pa.timestamp("us")
    source = [{"topic": "in", "partition": 0, "offset": n} for n in range(len(texts))]
    return pa.RecordBatch.from_pydict(
        {
            "source": pa.array(source, PLACE),
            "text": pa.Array.from_buffers(pa.string(), len(texts), contents.buffers()),
            "time": pa.array(times, pa.int64()).cast(kind).cast(pa.timestamp("us", zone)),
        }
    )


TEXTS = st.none() | st.binary(max_size=8) | st.sampled_from([b"0", b"1", b"caf\xe9"])
TIMES = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 2_000_000_000_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUNCTIONS)
@example([(None, -(1 << 63))], "UTC")
@example([(None, -(1 << 63))], "GMT+8")
@given(st.lists(st.tuples(TEXTS, TIMES), min_size=1, max_size=9), st.sampled_from(ZONES))
def test_each_row_is_made_or_has_an_error(
    kind: str, rows: list[tuple[bytes | None, int | None]], zone: str
) -> None:
    texts, times = [text for text, _ in rows], [time for _, time in rows]
    made = pa.Table.from_batches([*guard(kind, zone)(iter([batch_of(texts, times, zone)]))])
    assert len(made) == len(rows)
    instants = made["time"].cast(pa.int64()).to_pylist()
    for row, (text, time) in enumerate(rows):
        if made["error"][row].as_py() is None:
            assert made["text"][row].as_py() == (None if text is None else text.decode())
            assert instants[row] == time
        else:
            assert (made["text"][row].as_py(), instants[row]) == (None, None)


def test_an_outage_names_a_row_with_a_time_unknown_to_python() -> None:
    def away(row: dict[str, Any]) -> dict[str, Any]:
        if row["text"] == "2":
            raise ConnectionRefusedError("no lookup")
        return row

    batch = batch_of([b"1", b"2"], [None, None], "GMT+8")
    far = pa.array([1 << 62, 1 << 62]).cast(pa.timestamp("us", "GMT+8"))
    parts = [*batch.column("source").flatten(), far]
    source = pa.StructArray.from_arrays(parts, ["topic", "partition", "offset", "timestamp"])
    with pytest.raises(WriteError, match=r"^in-0, offset 1: ConnectionRefusedError: no lookup\. "):
        list(guard("rows", "GMT+8", away)(iter([batch.set_column(0, "source", source)])))
