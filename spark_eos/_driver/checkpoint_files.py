"""A checkpoint's files without a JVM: local ones, or through pyarrow's file systems."""

import re
from pathlib import Path
from typing import Final

from pyarrow import fs

from spark_eos.errors import CheckpointError

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL: Final = re.compile(r"file:(?://[^/]*)?(?=/)")
# pyarrow has one scheme for what Hadoop calls s3, s3n and s3a.
_HADOOP_S3: Final = re.compile(r"^s3[an]:")


def local_directory(location: str) -> Path | None:
    """The local directory that a checkpoint's location names; None if it names no local one.

    Like Hadoop, it does not percent-decode what follows the scheme.
    """
    local, found = _LOCAL.subn("", location, count=1)
    if found or not _SCHEME.match(location):
        return Path(local)
    return None


class ArrowFiles:
    """Files below a location: a local path, a ``file:`` URI, or one that pyarrow knows."""

    def __init__(self, location: str) -> None:
        self.location = location
        directory = local_directory(location)
        try:
            if directory is not None:
                self._fs: fs.FileSystem = fs.LocalFileSystem()
                self._base = str(directory.absolute())
            else:
                self._fs, self._base = fs.FileSystem.from_uri(_HADOOP_S3.sub("s3:", location))
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"checkpoint_location {self.location!r} can't be used here: {error}. It must be a "
            "path of this machine, or a URI that pyarrow.fs.FileSystem.from_uri reads: s3, gs, "
            "abfs or hdfs"
        )

    def read(self, path: str) -> str | None:
        """A file's text, or None if the file does not exist."""
        try:
            with self._fs.open_input_stream(f"{self._base}/{path}") as stream:
                return bytes(stream.read()).decode()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._refused(error) from error

    def write(self, path: str, text: str) -> None:
        """Creates a directory with one file of one line."""
        full = f"{self._base}/{path}"
        try:
            self._fs.create_dir(full, recursive=True)
            with self._fs.open_output_stream(f"{full}/part-0.txt") as stream:
                stream.write(f"{text}\n".encode())
        except OSError as error:
            raise self._refused(error) from error

    def delete(self, path: str) -> None:
        """Deletes a directory with everything in it, if it exists."""
        try:
            self._fs.delete_dir(f"{self._base}/{path}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._refused(error) from error

    def names(self, path: str) -> list[str]:
        """Names in a directory, without hidden ones; empty if the directory does not exist."""
        selector = fs.FileSelector(f"{self._base}/{path}", allow_not_found=True)
        try:
            found = [info.base_name for info in self._fs.get_file_info(selector)]
        except OSError as error:
            raise self._refused(error) from error
        return sorted(name for name in found if not name.startswith((".", "_")))
