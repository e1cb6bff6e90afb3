"""A class data archive (AppCDS): a JVM maps classes that another one has loaded and verified."""

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from spark_eos.jars.java import Java

JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""What lets a JVM start sooner, at the expense of long work."""
# A JVM that refuses the archive just starts without it.
_QUIET = "-Xlog:cds=off,cds+dynamic=off"
_logger = logging.getLogger(__name__)


def fingerprint(java: Java, jars: Iterable[Path]) -> str:
    """Names what an archive is good for: one JVM, with `JVM_FLAGS`, and unchanged jars in order."""
    marks = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    return digest(java.banner, *JVM_FLAGS, *marks)


def digest(*parts: str) -> str:
    """A short name for what the parts say."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ClassArchive:
    """An archive in a directory of its own, which another JVM build or class path must not use.

    Attributes:
        directory: The directory, which exists.
        of: Whose classes these are, for messages: ``Brokers``.
    """

    directory: Path
    of: str

    @property
    def file(self) -> Path:
        """The archive, which may not exist."""
        return self.directory / "classes.jsa"

    @property
    def options(self) -> list[str]:
        """JVM options that use the archive; none if it does not exist."""
        if not self.file.exists():
            return []
        return [f"-XX:SharedArchiveFile={self.file}", _QUIET]

    def train(self, exercise: Callable[[list[str]], None]) -> None:
        """Make the archive unless it exists or could not be made before.

        Args:
            exercise: Runs the program with the additional JVM options it gets, and ends it
                regularly. What it raises as OSError or RuntimeError is logged.
        """
        failed = self.file.with_suffix(".failed")
        if self.file.exists() or failed.exists():
            return
        with FileLock(self.file.with_suffix(".lock")):
            if self.file.exists() or failed.exists():
                return
            new = self.file.with_suffix(".new")
            try:
                exercise([f"-XX:ArchiveClassesAtExit={new}", _QUIET])
                new.rename(self.file)
            except (OSError, RuntimeError) as error:
                _logger.warning("%s will start slowly: no class data archive: %s", self.of, error)
                failed.write_text(str(error), encoding="utf-8")
