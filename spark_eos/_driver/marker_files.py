"""The files of a checkpoint's marker, in our own directory, which Spark ignores.

Each marker is in a numbered directory of its own, and its writer removes only those that it has
read or written itself. So one whole marker is there at every moment, and a run that was frozen
removes no marker of a newer one.
"""

import re
import uuid
from dataclasses import replace
from functools import reduce
from typing import Final, Protocol

from spark_eos._driver.checkpoint_marker import Marker

_DIRECTORY: Final = "spark-eos/note"
_NAME: Final = re.compile(r"(\d{1,18})-[0-9a-f]{8}")


class Files(Protocol):
    """The file operations on a checkpoint; paths are relative to its location."""

    location: str

    def read(self, path: str) -> str | None:
        """A file's text, or None if the file does not exist."""

    def names(self, path: str) -> list[str]:
        """Names in a directory; empty if the directory does not exist."""

    def write(self, path: str, text: str) -> None:
        """Creates a directory with one file of one line."""

    def delete(self, path: str) -> None:
        """Deletes a directory with everything in it, if it exists."""


class MarkerFiles:
    """Reads and writes a checkpoint's marker."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._marker: Marker | None = None
        self._last = 0
        # What the next marker replaces.
        self._seen: list[str] = []
        self._written = False

    def read(self) -> Marker:
        """The marker as this run last read or wrote it; an empty one if there is none."""
        if self._marker is None:
            names = self._names()
            found = self._latest(names)
            # Another run may remove a marker between listing and reading, once its own is there.
            while found is None and names != (again := self._names()):
                names, found = again, self._latest(again)
            self._marker = found or Marker()
        return self._marker

    def write(self, marker: Marker) -> None:
        """Replaces the marker, unless it is the same."""
        # A run's mark must be its own, or an older run that was frozen would clear it.
        if marker == self.read() and (self._written or not marker.log_may_lag):
            return
        self._last += 1
        name = f"{self._last}-{uuid.uuid4().hex[:8]}"
        self._files.write(f"{_DIRECTORY}/{name}", marker.text())
        replaced, self._seen = self._seen, [name]
        self._marker, self._written = marker, True
        for old in replaced:
            self._files.delete(f"{_DIRECTORY}/{old}")

    def _names(self) -> list[str]:
        return self._files.names(_DIRECTORY)

    def _latest(self, names: list[str]) -> Marker | None:
        """The whole marker with the highest number; None if none is whole."""
        self._seen = [name for name in names if _number(name)]
        self._last = max(map(_number, names), default=0)
        for number in sorted(set(map(_number, names)), reverse=True):
            found = [self._parsed(name) for name in names if _number(name) == number]
            whole = [marker for marker in found if marker.group_id is not None]
            if whole:
                # Two, if a run was frozen while a newer one came: which is newer, nothing tells.
                return reduce(_both, whole)
        return None

    def _parsed(self, name: str) -> Marker:
        path = f"{_DIRECTORY}/{name}"
        paths = [f"{path}/{part}" for part in self._files.names(path)] if _number(name) else [path]
        return Marker.parse(next(filter(None, map(self._files.read, paths)), ""))


def _number(name: str) -> int:
    """A marker's number; 0 of another file: unless it is refused, it is none."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


def _both(one: Marker, other: Marker) -> Marker:
    return replace(other.following(one), log_may_lag=one.log_may_lag or other.log_may_lag)
