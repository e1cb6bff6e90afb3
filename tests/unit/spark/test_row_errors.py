"""How bad rows are handled, depending on the frame's columns; on Arrow batches, without Spark."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from spark_eos._spark import row_errors
from spark_eos._spark.columns import LETTER_FIELDS
from spark_eos._spark.dead_letter_columns import ERROR_FIELD, ERROR_TEXTS
from spark_eos._spark.row_errors import RowError, RowErrors
from spark_eos._spark.signed_errors import ERRORS_CARRIED
from spark_eos.errors import ConfigurationError, UnsupportedPipelineError, WriteError

STRING, OURS = T.StringType(), ERROR_FIELD.dataType
PLACE = T.StructType().add("topic", STRING).add("partition", "integer").add("offset", "long")
RECORD = T.StructType([T.StructField(name, STRING) for name in LETTER_FIELDS if name != "error"])
CARRYING = T.StructType([*PLACE, *RECORD, ERROR_FIELD])
BAD = RowError("no \x1bnumber", "ValueError")
FIRST = {"message": "first", "exception": "E", "stacktrace": None}
ARROW_ERROR = pa.struct([(name, pa.string()) for name in ERROR_TEXTS])
ARROW_SOURCE = pa.struct(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
ARROW_CARRYING = pa.struct([*ARROW_SOURCE, ("error", ARROW_ERROR)])


def _schema(source: T.StructType | None, error: T.DataType | None = None) -> T.StructType:
    found = (("source", source), ("error", error))
    return T.StructType([T.StructField(name, kind) for name, kind in found if kind is not None])


@pytest.mark.parametrize(
    ("source", "error", "errors", "chosen"),
    [
        (None, None, None, None),
        (PLACE, None, None, None),
        (CARRYING, None, None, "source"),
        (CARRYING, STRING, None, "source"),
        (CARRYING, OURS, None, "error"),
        (None, OURS, None, "error"),
        (None, STRING, None, None),
        (CARRYING, None, "column", "error"),
        (CARRYING, OURS, "raise", None),
    ],
)
def test_what_is_chosen(
    source: T.StructType | None, error: T.DataType | None, errors: str | None, chosen: str | None
) -> None:
    found = RowErrors.of(_schema(source, error), errors, WriteError)
    assert found._place == chosen


def test_what_can_not_be_chosen() -> None:
    with pytest.raises(ConfigurationError, match="errors is 'source'; it must be 'column' or"):
        RowErrors.of(_schema(CARRYING), "source", WriteError)
    with pytest.raises(UnsupportedPipelineError, match="`error` is int"):
        RowErrors.of(_schema(None, T.IntegerType()), "column", WriteError)


def _batch(*sources: dict[str, Any] | None, kind: pa.DataType = ARROW_CARRYING) -> pa.RecordBatch:
    # A slice, whose buffers begin before it.
    filler = {"topic": "x", "partition": 9, "offset": 9}
    whole = pa.RecordBatch.from_arrays([pa.array([filler, *sources], kind)], ["source"])
    return whole.slice(1)


def _at(offset: int, error: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"topic": "in", "partition": 3, "offset": offset, "error": error}


def test_an_error_goes_into_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_errors, "job_tags", lambda: ERRORS_CARRIED)
    batch = _batch(_at(0), None, _at(2), _at(3, FIRST), _at(4))
    columns = {"source": batch.column(0)}
    in_source = RowErrors.of(_schema(CARRYING), None, WriteError)
    in_source.put(batch, columns, {2: BAD, 3: BAD})
    made = {"message": BAD.message, "exception": "ValueError", "stacktrace": None}
    assert columns["source"].to_pylist() == [_at(0), None, _at(2, made), _at(3, FIRST), _at(4)]
    assert columns["source"].type == ARROW_CARRYING
    bad = row_errors.bad_rows(pa.RecordBatch.from_arrays([columns["source"]], ["source"]))
    assert bad.to_pylist() == [False, False, True, True, False]
    # A row that has lost its source has no place for it.
    with pytest.raises(WriteError, match=r"^ValueError: no \\x1bnumber\. The error of a bad row"):
        in_source.put(batch, {"source": batch.column(0)}, {1: BAD})


def test_in_another_job_an_error_of_the_source_ends_it() -> None:
    batch = _batch(_at(0), _at(41))
    columns = {"source": batch.column(0)}
    in_source = RowErrors.of(_schema(CARRYING), None, WriteError)
    in_source.put(batch, columns, {})
    assert columns["source"] is batch.column(0) or columns["source"].equals(batch.column(0))
    with pytest.raises(WriteError, match=r"^in-3, offset 41: ValueError: no .*errors='column'"):
        in_source.put(batch, columns, {1: BAD})


@pytest.mark.parametrize("kind", [pa.string(), pa.struct([("message", pa.string())])])
def test_an_error_column_of_any_kind_becomes_ours(kind: pa.DataType) -> None:
    texts = _schema(None, STRING)
    for given in ([], ["mine", None]):
        values = [text if kind == pa.string() else text and {"message": text} for text in given]
        batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["error"])
        columns = {"error": batch.column(0)}
        errors = dict.fromkeys(range(len(given)), BAD)
        RowErrors.of(texts, "column", WriteError).put(batch, columns, errors)
        assert columns["error"].type == ARROW_ERROR
        assert [error["message"] for error in columns["error"].to_pylist()] == [
            text or BAD.message for text in given
        ]


def test_errors_of_either_place_are_bad_rows() -> None:
    batch = _batch(_at(0), _at(1, FIRST), _at(2))
    errors = pa.array([None, None, FIRST], ARROW_ERROR)
    both = pa.RecordBatch.from_arrays([batch.column(0), errors], ["source", "error"])
    assert row_errors.bad_rows(both).to_pylist() == [False, True, True]
    # As Spark has them with spark.sql.execution.arrow.useLargeVarTypes.
    large = pa.struct([(name, pa.large_string()) for name in ERROR_TEXTS])
    of_large = pa.RecordBatch.from_arrays([errors.cast(large)], ["error"])
    assert row_errors.bad_rows(of_large).to_pylist() == [False, False, True]
    own = pa.RecordBatch.from_arrays([pa.array(["E42"])], ["error"])
    assert row_errors.bad_rows(own).to_pylist() == [False]
    assert row_errors.bad_rows(_batch(_at(0), kind=ARROW_SOURCE)).to_pylist() == [False]


@pytest.mark.parametrize("source", [None, {"topic": "t"}, {"topic": "t", "offset": 5}])
def test_a_row_without_a_whole_position_is_named_by_no_part_of_it(source: Any) -> None:
    batch = pa.RecordBatch.from_pydict({"source": pa.array([source], ARROW_SOURCE)})
    assert row_errors.position_of(batch, 0) == ""
