"""The class data archive that makes a Spark driver start faster: created once, then cached."""

import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from spark_eos._jars.cache import cache_directory, cached
from spark_eos._jars.class_archive import JVM_FLAGS, ClassArchive, Exercise, digest, fingerprint
from spark_eos._jars.jar_sets import installed_pyspark
from spark_eos._jars.java import JavaError, find_java
from spark_eos.errors import PrintableError, text_of

# Part of the archive's name. After improving the training, increment it to recreate all archives.
_TRAINING = "1"


class ClassArchiveError(PrintableError, RuntimeError):
    """There is no archive that a driver may use."""

    entry = "EOS26"


def quick_start_options(exercise: Exercise) -> list[str]:
    """Return JVM options for a quick start of tests and trials; the first call takes minutes."""
    archive = _archive(create=True)
    archive.train(exercise)
    return [*JVM_FLAGS, *archive.options]


def driver_options(exercise: Exercise | None = None) -> str | None:
    """Return JVM options for using the archive of Spark's classes; None if there is no archive.

    With an exercise, create the archive unless it exists, which takes a minute or two.
    """
    # If the archive does not fit, Spark starts without it.
    try:
        archive = _archive(create=exercise is not None)
        if exercise is not None and not archive.file.exists():
            archive.make(exercise)
        options = archive.options
    except JavaError:
        raise
    except (OSError, RuntimeError) as error:
        raise ClassArchiveError(text_of(error)) from error
    return quoted(options) if options else None


def quoted(options: Iterable[str]) -> str:
    """Join JVM options for Spark, which splits them at spaces outside of quotes."""
    escaped = (option.replace("\\", "\\\\").replace('"', '\\"') for option in options)
    return " ".join(f'"{option}"' for option in escaped)


def _archive(*, create: bool) -> ClassArchive:
    name = digest(fingerprint(find_java(), _spark_jars()), _TRAINING)
    directory = cached("spark", name) if create else cache_directory() / "spark" / name
    return ClassArchive(directory, "Spark sessions")


def _spark_jars() -> list[Path]:
    """Return the jars of the Spark that PySpark starts: SPARK_HOME's, or else its own."""
    installed_pyspark()  # raises if there is none
    home = os.environ.get("SPARK_HOME") or str(resources.files("pyspark"))
    return sorted(Path(home).glob("jars/*.jar"))
