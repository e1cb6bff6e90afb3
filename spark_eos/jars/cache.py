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
