"""The directory that keeps downloaded jars and prepared broker files between runs."""

import os
from pathlib import Path

CACHE_VARIABLE = "SPARK_EOS_CACHE"


def cache_directory() -> Path:
    """Return the cache directory, which need not exist yet.

    It is ``$SPARK_EOS_CACHE`` if set, else ``spark-eos`` in the user's cache directory
    (``$XDG_CACHE_HOME``, by default ``~/.cache``). Everything in it may be deleted at any time.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "spark-eos"


def cached(*names: str) -> Path:
    """Return a directory below the cache directory, created if it does not exist.

    Others may not write to what is created, whatever the umask: programs are run from it.

    Args:
        names: Names of nested directories.
    """
    directory = cache_directory()
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in names:
        directory /= name
        directory.mkdir(mode=0o755, exist_ok=True)
    return directory
