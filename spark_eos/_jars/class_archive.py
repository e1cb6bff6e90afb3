"""Class data archives (AppCDS): classes that another JVM has already loaded and verified."""

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from spark_eos._jars.cache import check_trusted, locked
from spark_eos._jars.java import Java
from spark_eos.errors import text_of, warn

JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags that make a JVM start faster, at the expense of long-running work."""
# Silences the warning of a JVM that refuses the archive and starts without it.
_QUIET = "-Xlog:cds=off,cds+dynamic=off"
# How long to wait after a failed training: a busy machine or a full disk may recover by then.
_RETRY_SECONDS = 3600.0
logger = logging.getLogger(__name__)

Exercise = Callable[[list[str]], None]
"""Runs the archive's program with additional JVM options until it ends."""


def fingerprint(java: Java, jars: Iterable[Path]) -> str:
    """Return a name that identifies the JVM, flags and jars for which an archive is valid."""
    # Use whole seconds, because container images don't preserve fractions of seconds.
    marks = [f"{jar} {jar.stat().st_size} {int(jar.stat().st_mtime)}" for jar in jars]
    return digest(java.banner, *JVM_FLAGS, *marks)


def digest(*parts: str) -> str:
    """Return a short hash of the parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ClassArchive:
    """An archive in its own directory, for one JVM build and one class path."""

    directory: Path
    of: str  # name in messages for the programs that use the archive, e.g. "Brokers"

    @property
    def file(self) -> Path:
        """The archive's file, which may not exist."""
        return self.directory / "classes.jsa"

    @property
    def options(self) -> list[str]:
        """JVM options for using the archive, if it exists; raises if other users can write it."""
        if not self.file.exists():
            return []
        check_trusted(self.file)
        return [f"-XX:SharedArchiveFile={self.file}", _QUIET]

    def train(self, exercise: Exercise) -> None:
        """Create the archive like `make`, but log failures, and don't retry within an hour."""
        failed = self.file.with_suffix(".failed")
        if self.file.exists() or _is_recent(failed):
            return
        with self._lock():
            if self.file.exists() or _is_recent(failed):
                return
            try:
                self._make(exercise)
            except (OSError, RuntimeError) as error:
                warn(
                    logger,
                    "EOS73",
                    "%s will start slowly, without a class data archive: %s",
                    self.of,
                    error,
                )
                with contextlib.suppress(OSError):
                    failed.write_text(text_of(error), encoding="utf-8")

    def make(self, exercise: Exercise) -> None:
        """Create the archive unless it exists."""
        with self._lock():
            if not self.file.exists():
                self._make(exercise)

    def _make(self, exercise: Exercise) -> None:
        new = self.file.with_suffix(".new")
        # Without this line, a minute of silence would look like a hang.
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"{self.of} are being prepared for quick starts, once on this machine. This takes a "
            "minute or two ..."
        )
        exercise([f"-XX:ArchiveClassesAtExit={new}", _QUIET])
        # Don't let other users write the file, whatever the umask.
        new.chmod(0o644)
        new.rename(self.file)

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        return locked(self.file.with_suffix(".lock"))


def _is_recent(marker: Path) -> bool:
    try:
        age = time.time() - marker.stat().st_mtime
    except FileNotFoundError:
        return False
    # A clock that was set back must not extend the wait.
    return 0 <= age < _RETRY_SECONDS
