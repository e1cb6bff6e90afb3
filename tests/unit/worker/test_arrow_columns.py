"""Columns from Spark are converted to the columns that a task needs."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_eos._worker.arrow_columns import staged_batches, writable_batches
from spark_eos._worker.dead_letters import carried_record, rows_with_error
from spark_eos._worker.records import source_rows

_SOURCE = pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def _batch(values: pa.Array, **columns: pa.Array) -> pa.RecordBatch:
    source = [{"topic": "t", "partition": 1, "offset": n} for n in range(len(values))]
    return pa.RecordBatch.from_pydict(
        {"value": values, "source": pa.array(source, _SOURCE), **columns}
    )


def _writable(batch: pa.RecordBatch) -> pa.RecordBatch:
    (found,) = writable_batches(iter([batch]))
    return found


def test_what_is_written_and_nothing_else() -> None:
    """Null where the struct is null."""
    rows = pa.RecordBatch.from_pydict(
        {
            "other": pa.array([1, 2]),
            "key": pa.array([b"k", None]),
            "source": pa.array([{"topic": "t", "partition": 1, "offset": 7}, None], _SOURCE),
            "value": pa.array(["é", None]),
        }
    )
    assert _writable(rows).to_pydict() == {
        "source_topic": ["t", None],
        "source_partition": [1, None],
        "source_offset": [7, None],
        "value": ["é".encode(), None],
        "key": [b"k", None],
    }


@pytest.mark.parametrize("topic", ["t", None])
def test_a_source_that_is_spread_over_columns(topic: str | None) -> None:
    """Its topic is a column if there are several topics."""
    columns = {"__source_partition": pa.array([1, None], pa.int32())}
    columns["__source_offset"] = pa.array([7, 8])
    if topic is None:
        columns["__source_topic"] = pa.array(["t", "t"])
    batch = pa.RecordBatch.from_pydict({**columns, "value": pa.array([b"v", None])})
    (found,) = writable_batches(iter([batch]), topic=topic)
    assert found.to_pydict() == {
        "source_topic": ["t", "t"],
        "source_partition": [1, None],
        "source_offset": [7, 8],
        "value": [b"v", None],
    }


@pytest.mark.parametrize("kind", [pa.string, pa.large_string, pa.binary, pa.large_binary])
def test_values_become_bytes(kind: Callable[[], pa.DataType]) -> None:
    found = _writable(_batch(pa.array(["a", None, ""], kind())))
    assert found.column("value").to_pylist() == [b"a", None, b""]


def test_a_part_of_a_larger_batch() -> None:
    found = _writable(_batch(pa.array(["a", "b", "c", "d"])).slice(2, 1))
    assert (found.num_rows, found.column("source_offset").to_pylist()) == (1, [2])
    assert found.column("value").to_pylist() == [b"c"]


def test_no_rows() -> None:
    found = _writable(_batch(pa.array([], pa.string())))
    assert (found.num_rows, list(source_rows(found))) == (0, [])


# The last ones are names that Spark knows and Arrow does not.
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+08:00", "GMT+8", "PST", "Z"])
def test_timestamps_become_milliseconds_in_any_time_zone(zone: str | None) -> None:
    # The second and third are the same local time in Berlin, where the clock was put back between.
    moments = [1_729_987_200_000_000, 1_729_989_000_000_000, 1_729_992_600_000_999]
    # Rounded down. The first and the last microsecond that there are, and years far from ours.
    far = [0, -1, -999, -1_000, -1_001, 1_700_000_000_000_000_000, -(1 << 63), (1 << 63) - 1]
    numbers = pa.array([*moments, *far, None], pa.int64())
    column = numbers.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz=zone))
    found = _writable(_batch(pa.array(["x"] * len(column)), timestamp=column))
    assert found.column("timestamp").to_pylist() == [*(n // 1000 for n in [*moments, *far]), None]


def test_rows_of_a_staged_copy_get_their_positions() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(["k", None]),
            "value": pa.array(["a", "b"]),
            "file": pa.array([0, 3], pa.int32()),
            "row": pa.array([5, 0], pa.int64()),
        }
    )
    (found,) = staged_batches(iter([rows]), progress_topic="progress", first=7 << 32)
    assert found.to_pydict() == {
        "source_topic": ["progress", "progress"],
        "source_partition": [1, 4],
        "source_offset": [(7 << 32) + 5, 7 << 32],
        "value": [b"a", b"b"],
        "key": [b"k", None],
    }
    positions = [(*part.source, part.first_offset) for part in source_rows(found)]
    assert positions == [("progress", 1, (7 << 32) + 5), ("progress", 4, 7 << 32)]
    (none,) = staged_batches(iter([rows.slice(0, 0)]), progress_topic="progress", first=0)
    assert list(source_rows(none)) == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"error": ["bad"]}, "bad"),
        ({"spark_eos_letter": ['{"error": {"message": "bad"}}']}, "bad"),
        # Spark's JSON leaves out nulls.
        ({"spark_eos_letter": ['{"error": {}}']}, ""),
    ],
)
def test_a_staged_record_becomes_a_dead_letter(error: dict[str, Any], message: str) -> None:
    copied = pa.RecordBatch.from_pydict(
        {
            "value": [b"row"],
            **error,
            "spark_eos_record": ['{"value": "cmVjb3Jk", "timestamp": 7}'],
            "file": pa.array([0], pa.int32()),
            "row": [0],
        }
    )
    (batch,) = staged_batches(iter([copied]), progress_topic="p", first=0)
    (found,) = source_rows(batch)
    assert rows_with_error(found)[0].message == message
    record, is_all = carried_record(found, 0)
    assert record is not None
    assert is_all
    assert (record.value, record.timestamp) == (b"record", 7)
