"""A checkpoint's files without Spark, through pyarrow's file systems."""

import re
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from spark_eos.errors import CheckpointError

_LOCAL = re.compile(r"^file:/+")
_ELSEWHERE = re.compile(r"^[a-z0-9+.-]+://")


class ArrowFiles:
    """Files below a location on this machine, or on another file system that pyarrow knows.

    Args:
        location: a path, or a URI such as ``s3://bucket/path``; Hadoop's ``s3a://`` means the
            same.

    Raises:
        CheckpointError: pyarrow knows no such file system.
    """

    def __init__(self, location: str) -> None:
        local = _LOCAL.sub("/", location)
        if not _ELSEWHERE.match(local):
            self._fs, self._base = fs.LocalFileSystem(), str(Path(local).resolve())
            return
        uri = re.sub(r"^s3[an]://", "s3://", location)
        try:
            self._fs, self._base = fs.FileSystem.from_uri(uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CheckpointError(
                f"{location!r} can't be read here: {error}. Copy the checkpoint's files to this "
                "machine and give their path"
            ) from error

    def read(self, path: str) -> str | None:
        """A file's text, or None if there is no such file."""
        try:
            with self._fs.open_input_stream(f"{self._base}/{path}") as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        """Names in a directory that are not hidden; none if there is no such directory."""
        selector = fs.FileSelector(f"{self._base}/{path}", allow_not_found=True)
        found = [info.base_name for info in self._fs.get_file_info(selector)]
        return sorted(name for name in found if not name.startswith((".", "_")))
