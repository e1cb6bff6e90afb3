"""A checkpoint's files on this machine, HDFS or S3, for tests that read or damage them."""

import json
import os
import shutil
import urllib.request
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit

from pyarrow import fs

HDFS_HOST: Final = "127.0.0.1"
HDFS_PAGES: Final = "127.0.0.2"
"""The path of the REST interface of `support.hadoop`, at the port of the file system's URI."""


STAGED: Final = "spark-eos/staged"
"""The directory of staged files in a checkpoint."""


class StoredFiles(Protocol):
    """Files below a location; paths are relative to it."""

    def __init__(self, location: str) -> None: ...

    def sizes(self, path: str = "") -> dict[str, int]:
        """All files below a directory, including hidden ones, with sizes; empty if it is gone."""

    def read(self, path: str) -> bytes:
        """A file's content."""

    def write(self, path: str, content: bytes) -> None:
        """Replaces a file, or creates it and its parent directories."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory and everything in it."""


def stored_files(location: str) -> StoredFiles:
    """The files below a path, or a URI of `support.hadoop` or `support.object_store`."""
    scheme = location.partition(":")[0]
    kinds: dict[str, type[StoredFiles]] = {"hdfs": _HdfsFiles, "s3a": _S3Files}
    return kinds.get(scheme, _LocalFiles)(location)


class _LocalFiles:
    def __init__(self, location: str) -> None:
        self._base = Path(location)

    def sizes(self, path: str = "") -> dict[str, int]:
        found = {}
        # Skips files that are deleted in the meantime.
        for directory, _, names in os.walk(self._base / path):
            for file in (Path(directory, name) for name in names):
                with suppress(FileNotFoundError):
                    found[str(file.relative_to(self._base))] = file.stat().st_size
        return found

    def read(self, path: str) -> bytes:
        return (self._base / path).read_bytes()

    def write(self, path: str, content: bytes) -> None:
        (self._base / path).parent.mkdir(parents=True, exist_ok=True)
        (self._base / path).write_bytes(content)

    def delete(self, path: str) -> None:
        found = self._base / path
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink()


class _HdfsFiles:
    """Files in HDFS, over WebHDFS."""

    def __init__(self, location: str) -> None:
        found = urlsplit(location)
        self._server = f"http://{HDFS_PAGES}:{found.port}/webhdfs/v1"
        self._base = found.path

    def sizes(self, path: str = "") -> dict[str, int]:
        try:
            listed = self._json("GET", path, "LISTSTATUS")["FileStatuses"]["FileStatus"]
        except HTTPError as error:
            if error.code != 404:
                raise
            return {}
        found: dict[str, int] = {}
        for status in listed:
            below = "/".join(filter(None, (path, status["pathSuffix"])))
            if status["type"] == "DIRECTORY":
                found |= self.sizes(below)
            else:
                found[below] = status["length"]
        return found

    def read(self, path: str) -> bytes:
        return self._answer("GET", self._url(path, "OPEN"))

    def write(self, path: str, content: bytes) -> None:
        asked = {"overwrite": "true", "noredirect": "true"}
        self._answer("PUT", self._json("PUT", path, "CREATE", **asked)["Location"], content)

    def delete(self, path: str) -> None:
        assert self._json("DELETE", path, "DELETE", recursive="true")["boolean"], path

    def _json(self, method: str, path: str, operation: str, **more: str) -> Any:
        return json.loads(self._answer(method, self._url(path, operation, **more)))

    def _url(self, path: str, operation: str, **more: str) -> str:
        query = urlencode({"op": operation, "user.name": getuser(), **more})
        return f"{self._server}{quote(f'{self._base}/{path}'.rstrip('/'))}?{query}"

    def _answer(self, method: str, url: str, content: bytes | None = None) -> bytes:
        request = urllib.request.Request(url, content, method=method)  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            return bytes(answer.read())


class _S3Files:
    """Files in S3, through pyarrow, which takes the server and keys from the environment."""

    def __init__(self, location: str) -> None:
        self._fs, self._base = fs.FileSystem.from_uri(location.replace("s3a:", "s3:", 1))

    def sizes(self, path: str = "") -> dict[str, int]:
        below = f"{self._base}/{path}".rstrip("/")
        listed = self._fs.get_file_info(
            fs.FileSelector(below, allow_not_found=True, recursive=True)
        )
        return {
            info.path.removeprefix(f"{self._base}/"): info.size for info in listed if info.is_file
        }

    def read(self, path: str) -> bytes:
        with self._fs.open_input_stream(f"{self._base}/{path}") as stream:
            return bytes(stream.read())

    def write(self, path: str, content: bytes) -> None:
        with self._fs.open_output_stream(f"{self._base}/{path}") as stream:
            stream.write(content)

    def delete(self, path: str) -> None:
        found = f"{self._base}/{path}".rstrip("/")
        (info,) = self._fs.get_file_info([found])
        if info.is_file:
            self._fs.delete_file(found)
            return
        listed = self._fs.get_file_info(fs.FileSelector(found, recursive=True))
        directories = [found, *(info.path for info in listed if not info.is_file)]
        # SeaweedFS keeps a directory's name if its subdirectories are deleted in the same request.
        for directory in sorted(directories, key=len, reverse=True):
            self._fs.delete_dir(directory)
