"""A checkpoint's files without a JVM: on this machine, or through pyarrow's file systems."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pyarrow import fs

from spark_eos._client.locations import for_arrow, without_credentials
from spark_eos.errors import CheckpointError

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL: Final = re.compile(r"file:(?://[^/]*)?(?=/)")


def local_directory(location: str) -> Path | None:
    """Return the local directory that a location names; like Hadoop, don't decode %-escapes."""
    local, removed = _LOCAL.subn("", location, count=1)
    if removed or not _SCHEME.match(location):
        return Path(local)
    return None


class ArrowFiles:
    """Files below a location: a local path, a ``file:`` URI, or a URI that pyarrow supports."""

    def __init__(self, location: str) -> None:
        # For messages only.
        self.location = without_credentials(location)
        directory = local_directory(location)
        with self._refusing():
            if directory is not None:
                self._fs: fs.FileSystem = fs.LocalFileSystem()
                self._base = str(directory.absolute())
            else:
                self._fs, self._base = fs.FileSystem.from_uri(for_arrow(location))

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            why = without_credentials(str(error))
            raise CheckpointError(
                f"checkpoint_location {self.location!r} can't be used here: {why}. It must be a "
                "path on this machine, or a URI that pyarrow.fs.FileSystem.from_uri reads: s3, gs, "
                "abfs or hdfs"
            ) from None

    def read(self, path: str) -> str | None:
        with (
            self._refusing(),
            suppress(FileNotFoundError, NotADirectoryError),
            self._fs.open_input_stream(f"{self._base}/{path}") as stream,
        ):
            return bytes(stream.read()).decode(errors="replace")
        return None

    def write(self, path: str, text: str) -> None:
        full = f"{self._base}/{path}"
        with self._refusing():
            self._fs.create_dir(full, recursive=True)
            with self._fs.open_output_stream(f"{full}/part-0.txt") as stream:
                stream.write(f"{text}\n".encode())

    def delete(self, path: str) -> None:
        with self._refusing(), suppress(FileNotFoundError):
            self._fs.delete_dir(f"{self._base}/{path}")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, except hidden ones; none if it does not exist."""
        selector = fs.FileSelector(f"{self._base}/{path}", allow_not_found=True)
        with self._refusing():
            names = [info.base_name for info in self._fs.get_file_info(selector)]
        return sorted(name for name in names if not name.startswith((".", "_")))
