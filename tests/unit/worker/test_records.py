"""Rows of a task, split by the records they were made of."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.dead_letters import rows_with_invalid_header
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import SourceRows, source_rows


def _batch(rows: Sequence[tuple[str | None, int, int]]) -> pa.RecordBatch:
    topics, partitions, offsets = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "source_topic": pa.array(topics, pa.string()),
            "source_partition": pa.array(partitions, pa.int32()),
            "source_offset": pa.array(offsets, pa.int64()),
            "value": pa.array([b"v"] * len(rows), pa.binary()),
        }
    )


def test_rows_split_where_the_source_partition_changes() -> None:
    batch = _batch([("a", 0, 1), ("a", 0, 2), ("a", 1, 0), ("b", 1, 0), ("b", 1, 0)])
    found = [(*r.source, r.offsets.to_pylist()) for r in source_rows(batch)]
    assert found == [("a", 0, [1, 2]), ("a", 1, [0]), ("b", 1, [0, 0])]


def test_rows_below_the_committed_offset_are_left_out() -> None:
    (rows,) = source_rows(_batch([("a", 0, n) for n in range(10)]))
    assert rows.at_or_above(4).offsets.to_pylist() == [4, 5, 6, 7, 8, 9]
    assert rows.at_or_above(0).offsets.to_pylist() == list(range(10))
    assert rows.at_or_above(10).offsets.to_pylist() == []


def test_slices_hold_all_rows_in_order() -> None:
    (rows,) = source_rows(_batch([("a", 0, n) for n in range(23_450)]))
    slices = list(rows.slices())
    assert [o for s in slices for o in s.offsets.to_pylist()] == list(range(23_450))
    assert max(s.rows.num_rows for s in slices) == 10_000


def test_slices_are_cut_between_records() -> None:
    (rows,) = source_rows(
        _batch([("a", 0, n // 300) for n in range(1_200)] + [("a", 0, 4)] * 1_500)
    )
    found = [(s.rows.num_rows, s.first_offset, s.last_offset) for s in rows.slices(lambda: 1_000)]
    assert found == [(900, 0, 2), (300, 3, 3), (1_000, 4, 4), (500, 4, 4)]


def test_rows_that_are_not_in_order() -> None:
    wrong, right = source_rows(_batch([("a", 0, 2), ("a", 0, 1), ("a", 1, 1), ("a", 1, 1)]))
    assert not wrong.in_order
    assert right.in_order


def test_a_row_without_a_source() -> None:
    with pytest.raises(TransactionError):
        list(source_rows(_batch([(None, 0, 1)])))


def test_headers_beneath_a_list_that_is_null_are_no_rows() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    items = pa.array([{"key": name, "value": b""} for name in ("a", "b", "c", None)], header)
    mask = pa.array([False, True, False])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 3, 4]), items, mask=mask)
    rows = pa.RecordBatch.from_pydict({"headers": headers})
    found = rows_with_invalid_header(SourceRows(source := TopicPartition("a", 0), source, rows))
    assert found.keys() == {2}
