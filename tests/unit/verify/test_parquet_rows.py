"""Expected rows in Parquet files: which are read, and which are refused before reading."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_eos.errors import ConfigurationError, VerificationError
from spark_eos.verify.rows import ParquetRows, Row


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def read(path: Path) -> list[Row]:
    return [row for batch in ParquetRows(str(path)).read(lambda _count: None) for row in batch]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pa.array(["a", None, ""]),
        lambda: pa.array([b"a", None, b""]),
        lambda: pa.array(["a", None, ""], pa.large_string()),
        lambda: pa.array(["a", None, ""]).dictionary_encode(),
    ],
)
def test_strings_and_binaries(tmp_path: Path, make: Callable[[], Any]) -> None:
    file = write(tmp_path / "e.parquet", value=make(), key=make(), other=[1, 2, 3])
    found = [(row.topic, row.key, row.value) for row in read(file)]
    assert found == [(None, b"a", b"a"), (None, None, None), (None, b"", b"")]


def test_keys_that_are_all_null(tmp_path: Path) -> None:
    rows = ParquetRows(str(write(tmp_path / "e.parquet", value=["a"], key=pa.nulls(1))))
    assert rows.has_key
    assert [row.key for batch in rows.read(lambda _count: None) for row in batch] == [None]


def test_files_of_a_directory(tmp_path: Path) -> None:
    for number in range(3):
        values = [b"%d-%d" % (number, row) for row in range(10_000)]
        write(tmp_path / "deep" / f"{number}.parquet", value=values)
    for name in ("_SUCCESS", ".0.parquet.crc", "_temporary/half.parquet"):
        (tmp_path / "deep" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "deep" / name).write_bytes(b"no Parquet")
    rows = ParquetRows(str(tmp_path))
    steps: list[int] = []
    found = [row for batch in rows.read(steps.append) for row in batch]
    assert len({row.number for row in found}) == len(found) == rows.total == sum(steps) == 30_000
    assert (rows.has_key, rows.has_topic) == (False, False)
    some = [found[1], found[9_999], found[25_000]]
    assert [rows.name(row.number) for row in some] == [
        "0.parquet:1",
        "0.parquet:9999",
        "2.parquet:5000",
    ]
    assert list(rows.pick([row.number for row in some])) == some
    assert list(rows.pick([])) == []


def test_topics_in_the_names_of_directories(tmp_path: Path) -> None:
    for topic in ("1", "02"):
        write(tmp_path / f"topic={topic}" / "e.parquet", value=["a"], key=["k"])
    assert [(row.topic, row.key) for row in read(tmp_path)] == [("02", b"k"), ("1", b"k")]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": {"key": ["a"], "number": [1]}}, "a.parquet has no column 'value', only key, number"),
        ({"a": {"value": [1]}}, "column 'value' of .*a.parquet is int64; it must be binary or str"),
        ({"a": {"value": ["a"], "key": [1.5]}}, "column 'key' of .*a.parquet is double"),
        ({"a": {"value": ["a"]}, "b": {"value": [1]}}, "column 'value' of .*b.parquet is int64"),
        ({"a": {"value": ["a"]}, "b": {"other": ["a"]}}, "b.parquet has no column 'value'"),
        ({"a": {"value": ["a"]}, "b": {"value": ["a"], "key": ["k"]}}, "a.parquet has no .*'key'"),
        ({"a": {"value": ["a"], "key": ["k"]}, "b": {"value": ["a"]}}, "b.parquet has no .*'key'"),
        ({}, "holds no Parquet file"),
    ],
)
def test_columns_that_are_not_those_of_records(
    tmp_path: Path, files: dict[str, dict[str, Any]], message: str
) -> None:
    for name, columns in files.items():
        write(tmp_path / f"{name}.parquet", **columns)
    with pytest.raises(ConfigurationError, match=message):
        ParquetRows(str(tmp_path))


@pytest.mark.parametrize("name", ["no-such", "file.txt", "s4://file/e"])
def test_what_can_not_be_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("no Parquet")
    path = name if "://" in name else str(tmp_path / name)
    with pytest.raises(ConfigurationError, match=f"--expect '{path}' can't be opened: "):
        ParquetRows(path)


def test_a_file_that_is_broken_within(tmp_path: Path) -> None:
    file = write(tmp_path / "e.parquet", value=[b"%d" % number for number in range(50_000)])
    data = bytearray(file.read_bytes())
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
    file.write_bytes(data)
    with pytest.raises(VerificationError, match="can't be read: "):
        read(file)


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    rows = ParquetRows(str(write(tmp_path / "e.parquet", value=["a"])))
    (tmp_path / "e.parquet").unlink()
    with pytest.raises(VerificationError, match="can't be read: "):
        list(rows.read(lambda _count: None))
