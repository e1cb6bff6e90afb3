"""A task's rows, split by their source records."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_eos._kafka.topic_partition import TopicPartition
from spark_eos._worker.dead_letters import (
    rows_for_unknown_partition,
    rows_with_error,
    without_largest,
)
from spark_eos._worker.librdkafka_errors import TransactionError
from spark_eos._worker.records import (
    RecordContent,
    SourceRows,
    record_content,
    rows_with_invalid_header,
    source_rows,
    target_topics,
)


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
    assert rows_with_invalid_header(rows) == [2]


def _as_texts(contents: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Spark's strings, which may contain any bytes."""
    found = pa.array(contents, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    return pa.Array.from_buffers(kind, len(found), found.buffers())


def _rows(**columns: pa.Array) -> SourceRows:
    return SourceRows(source := TopicPartition("a", 0), source, pa.RecordBatch.from_pydict(columns))


TEXTS = pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)


@TEXTS
def test_a_topic_that_is_not_utf8_is_no_other_rows_topic(kind: pa.DataType) -> None:
    names = [b"in", b"caf\xe9", None, b"caf\\xe9", b"caf\xe9"]
    topics = target_topics(_rows(topic=_as_texts(names, kind)), None)
    assert [topics[row] for row in range(5)] == ["in", "caf\\xe9", None, "caf\\xe9", "caf\\xe9"]
    assert topics.rows("caf\\xe9").tolist() == [1, 3, 4]
    assert topics.rows("in").tolist() == [0]


@TEXTS
def test_headers_that_can_not_be_written(kind: pa.DataType) -> None:
    names = [b"a", b"caf\xe9", b"caf\xc3\xa9", b"a\0b", None, b"", b"\xff", b"z"]
    items = pa.StructArray.from_arrays(
        [_as_texts(names, kind), pa.array([b"x"] * 8, pa.binary())], ["key", "value"]
    )
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4, 5, 6, 8, 8, 8]), items)
    rows = pa.RecordBatch.from_pydict({"headers": headers})
    assert rows_with_invalid_header(rows) == [1, 3, 4, 6]
    assert rows_with_invalid_header(rows.slice(2, 2)) == [1]
    contents = [record_content(rows, row).headers for row in range(9)]
    assert [headers is None for headers in contents] == [row in {1, 3, 4, 6} for row in range(9)]
    assert contents[2] == [("caf\xe9", b"x")]
    assert contents[8] == []


@TEXTS
def test_errors_that_are_not_utf8_are_escaped(kind: pa.DataType) -> None:
    texts = _as_texts([b"caf\xe9", None, b"fine"], kind)
    faults = rows_with_error(_rows(error=texts))
    assert {row: fault.message for row, fault in faults.items()} == {0: "caf\\xe9", 2: "fine"}
    parts = [texts, _as_texts([b"E\xff", None, None], kind), texts]
    struct = pa.StructArray.from_arrays(
        parts, ["message", "exception", "stacktrace"], mask=pa.array([False, True, False])
    )
    faults = rows_with_error(_rows(error=struct))
    assert faults.keys() == {0, 2}
    assert (faults[0].exception, faults[0].stacktrace) == ("E\\xff", "caf\\xe9")
    assert (faults[2].message, faults[2].exception) == ("fine", None)


def test_no_topic_has_a_partition_below_0() -> None:
    found = _rows(partition=pa.array([0, -1, None, -2, 3, 4], pa.int32()))
    topics = target_topics(found, "t")
    assert rows_for_unknown_partition(found, topics, {}).keys() == {1, 3}
    faults = rows_for_unknown_partition(found, topics, {"t": 4})
    assert faults.keys() == {1, 3, 5}
    assert faults[1].message == "partition -1 is below 0; leave it null to let the key decide"
    assert faults[5].message == "topic 't' has 4 partitions, and no partition 4"


def test_a_record_that_is_too_large_loses_its_largest_parts() -> None:
    record: RecordContent | None = RecordContent(b"k" * 9, b"v" * 7, [("h", b"x" * 7)], 1)
    omitted = []
    while record is not None and (smaller := without_largest(record, keep_key=False)):
        record, what = smaller
        omitted.append(what)
    assert omitted == ["key of 9 bytes", "headers of 8 bytes", "value of 7 bytes"]
    assert record == RecordContent(None, None, (), 1)
    assert without_largest(RecordContent(None, b"", None, None), keep_key=False) is None
