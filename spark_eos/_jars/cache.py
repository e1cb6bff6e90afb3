"""The directory that keeps downloaded jars and prepared broker files between runs."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from rich.console import Console

from spark_eos._private_paths import check_way
from spark_eos.errors import PrintableError

CACHE_VARIABLE = "SPARK_EOS_CACHE"
_SILENT_SECONDS: Final = 5.0
# As long as a download of a hundred jars may take.
_LOCK_SECONDS: Final = 600.0


class JarError(PrintableError, RuntimeError):
    """A jar set does not exist, does not fit the installed pyspark, or can't be trusted."""

    entry = "EOS23"


def cache_directory() -> Path:
    """Return the cache directory, which need not exist; all in it may be deleted at any time."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "spark-eos"


def cached(*names: str) -> Path:
    """Return a directory below the cache directory, created if it does not exist."""
    directory = cache_directory().joinpath(*names)
    try:
        for level in (*reversed(directory.parents), directory):
            # Whatever the umask, others may not write: programs are run from here.
            level.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise JarError(f"{error}; or set {CACHE_VARIABLE} to another directory") from error
    check_trusted(directory)
    return directory


def check_trusted(path: Path) -> None:
    """Refuse an existing path in the cache that others may write: programs are run from it."""
    try:
        check_way(path)
    except OSError as error:
        raise JarError(f"{error}; or set {CACHE_VARIABLE} to another directory") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file in the cache, for which ten minutes are waited."""
    lock = FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=_SILENT_SECONDS)
    except Timeout:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"Waiting for the process that holds {path} ...", markup=False)
        try:
            lock.acquire(timeout=_LOCK_SECONDS)
        except Timeout:
            raise JarError(
                f"another process, such as a download of spark-eos, has held the lock {path} for "
                f"{_LOCK_SECONDS:g} s: see which with fuser -v {path} and end it, or set "
                f"{CACHE_VARIABLE} to another directory"
            ) from None
    try:
        yield
    finally:
        lock.release()
