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
# Long enough for a download of a hundred jars.
_LOCK_SECONDS: Final = 600.0


class JarError(PrintableError, RuntimeError):
    """A jar set does not exist, does not fit the installed pyspark, or can't be trusted."""

    entry = "EOS23"


def cache_directory() -> Path:
    """Return the cache directory, which may not exist; its contents may be deleted at any time."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "spark-eos"
    try:
        return Path.home() / ".cache" / "spark-eos"
    except RuntimeError as error:  # a container's user may have no home directory
        raise JarError(f"{error} Set {CACHE_VARIABLE} to a directory for jars") from error


@contextlib.contextmanager
def naming_the_variable() -> Iterator[None]:
    """Turn an OSError about the cache into a JarError that says how to use another directory."""
    try:
        yield
    except OSError as error:
        raise JarError(f"{error}; or set {CACHE_VARIABLE} to another directory") from error


def cached(*names: str) -> Path:
    """Return a directory below the cache directory, creating it if needed."""
    directory = cache_directory().joinpath(*names)
    with naming_the_variable():
        for level in (*reversed(directory.parents), directory):
            # Whatever the umask, don't let other users write here: programs are run from here.
            level.mkdir(mode=0o755, exist_ok=True)
    check_trusted(directory)
    return directory


def check_trusted(path: Path) -> None:
    """Refuse a path in the cache that other users may write: programs are run from there."""
    with naming_the_variable():
        check_way(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file in the cache, waiting up to ten minutes for it."""
    lock = FileLock(path, mode=0o600)
    with naming_the_variable():
        try:
            lock.acquire(timeout=_SILENT_SECONDS)
        except Timeout:
            console = Console(stderr=True, highlight=False, soft_wrap=True)
            console.print(f"Waiting for the process that holds {path} ...", markup=False)
            try:
                lock.acquire(timeout=_LOCK_SECONDS)
            except Timeout:
                raise JarError(
                    f"another process, such as a download by spark-eos, has held the lock {path} "
                    f"for {_LOCK_SECONDS:g} s: find it with fuser -v {path} and end it, or set "
                    f"{CACHE_VARIABLE} to another directory"
                ) from None
    try:
        yield
    finally:
        lock.release()
