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

_DIRECTORY: Final = "spark-eos/marker"
_DIRECTORY_BEFORE: Final = "spark-eos/note"
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
            paths = self._paths()
            found = self._latest(paths)
            # Another run may remove a marker between listing and reading, once its own is there.
            while found is None and paths != (again := self._paths()):
                paths, found = again, self._latest(again)
            self._marker = found or Marker()
        return self._marker

    def write(self, marker: Marker) -> None:
        """Replaces the marker, unless it is the same."""
        # A run's mark must be its own, or an older run that was frozen would clear it.
        if marker == self.read() and (self._written or not marker.checkpoint_may_lag):
            return
        self._last += 1
        path = f"{_DIRECTORY}/{self._last}-{uuid.uuid4().hex[:8]}"
        self._files.write(path, marker.text())
        replaced, self._seen = self._seen, [path]
        self._marker, self._written = marker, True
        for old in replaced:
            self._files.delete(old)

    def _paths(self) -> list[str]:
        found = self._files.names
        return [f"{d}/{name}" for d in (_DIRECTORY, _DIRECTORY_BEFORE) for name in found(d)]

    def _latest(self, paths: list[str]) -> Marker | None:
        """The whole marker with the highest number; None if none is whole."""
        self._seen = [path for path in paths if _number(path)]
        self._last = max(map(_number, paths), default=0)
        own = [path for path in paths if path.startswith(f"{_DIRECTORY}/")]
        others = [path for path in paths if path not in own]
        found = self._latest_of(own)
        if found is None:
            return self._latest_of(others)
        # An earlier version, gone back to for a while, numbers those of its directory anew.
        before = self._latest_of([path for path in others if _number(path)])
        return found if before is None else _both(before, found)

    def _latest_of(self, paths: list[str]) -> Marker | None:
        for number in sorted(set(map(_number, paths)), reverse=True):
            found = [self._parsed(path) for path in paths if _number(path) == number]
            whole = [marker for marker in found if marker.group_id is not None]
            if whole:
                # Two, if a run was frozen while a newer one came: which is newer, nothing tells. A
                # takeover leaves the members' epochs as they are.
                return reduce(_both, whole)
        return None

    def _parsed(self, path: str) -> Marker:
        paths = [f"{path}/{part}" for part in self._files.names(path)] if _number(path) else [path]
        return Marker.parse(next(filter(None, map(self._files.read, paths)), ""))


def _number(path: str) -> int:
    """A marker's number; 0 of another file: unless it is refused, it is none."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return int(found[1]) if found else 0


def _both(one: Marker, other: Marker) -> Marker:
    return replace(
        other.following(one), checkpoint_may_lag=one.checkpoint_may_lag or other.checkpoint_may_lag
    )
