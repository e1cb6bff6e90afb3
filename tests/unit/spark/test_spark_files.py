"""Paths for Spark, and writes to an object store whose answers are lost."""

from typing import Any

import pytest

from spark_eos._spark.spark_files import HadoopFiles, literal_path


def test_a_path_stands_for_itself() -> None:
    assert literal_path("/checkpoints/a[1]") == r"/checkpoints/a\[1\]"


class _Store:
    """A file system whose first answer to a write is lost, so that its client retries."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.path = ""

    def createFile(self, path: str) -> "_Store":  # noqa: N802 - Hadoop's name
        self.path = path
        return self

    def recursive(self) -> "_Store":
        return self

    def opt(self, *_: str) -> "_Store":
        return self

    def build(self) -> "_Upload":
        return _Upload(self)

    def hasPathCapability(self, *_: str) -> bool:  # noqa: N802
        return True

    def exists(self, path: str) -> bool:
        return path in self.files

    def open(self, path: str) -> Any:
        return _Upload(self, self.files[path])


class _Upload:
    def __init__(self, store: _Store, text: str = "") -> None:
        self._store = store
        self.text = text

    def write(self, data: bytes) -> None:
        self.text = data.decode()

    def close(self) -> None:
        files, path = self._store.files, self._store.path
        for _ in range(2) if path else ():
            if path in files:
                raise OSError(412, "PreconditionFailed")
            files[path] = self.text


class _Io:
    @staticmethod
    def toString(stream: _Upload, _codec: str) -> str:  # noqa: N802
        stream._store.path = ""
        return stream.text


def test_a_file_whose_writer_was_not_answered_is_there() -> None:
    files = HadoopFiles.__new__(HadoopFiles)
    files.location, store = "s3a://bucket/checkpoint", _Store()
    files._base, files._fs, files._io = files.location, store, _Io
    files._path = lambda base, path: f"{base}/{path}"
    files.write("spark-eos/1", "ours")
    assert files.read("spark-eos/1/part-0.txt") == "ours\n"
    with pytest.raises(OSError, match="PreconditionFailed"):
        files.write("spark-eos/1", "another's")
    assert files.read("spark-eos/1/part-0.txt") == "ours\n"
