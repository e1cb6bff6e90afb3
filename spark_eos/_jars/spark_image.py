"""The class data archive that lets a Spark driver start sooner: created once, then cached."""

import subprocess
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from spark_eos._host.python_module import finished, python_module
from spark_eos._jars.cache import cache_directory, cached
from spark_eos._jars.class_archive import JVM_FLAGS, ClassArchive, digest, fingerprint
from spark_eos._jars.java import JavaError, find_java
from spark_eos.errors import PrintableError, text_of

_PATIENCE = 300
# A program of its own, which is not imported here: it starts a broker, and a query that uses it.
_TRAINING = "spark_eos.testing.spark_training"


class ClassArchiveError(PrintableError, RuntimeError):
    """There is no archive that a driver may use."""

    entry = "EOS26"


def quick_start_options() -> list[str]:
    """Return JVM options for a quick start of tests and trials; the first call takes minutes."""
    archive = _archive(create=True)
    archive.train(_exercise)
    return [*JVM_FLAGS, *archive.options]


def driver_options(*, make: bool) -> str | None:
    """Return JVM options for Spark's classes from the archive; None if there is none to use."""
    # A Spark that the archive does not fit starts without it. Making it takes a minute or two.
    try:
        archive = _archive(create=make)
        if make and not archive.file.exists():
            archive.make(_exercise)
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
    jars = sorted(Path(str(resources.files("pyspark"))).glob("jars/*.jar"))
    # What was trained is part of the name, so that a better training is not passed over.
    program = _TRAINING.partition(".")[2].replace(".", "/")
    training = resources.files("spark_eos").joinpath(f"{program}.py").read_text(encoding="utf-8")
    name = digest(fingerprint(find_java(), jars), training)
    directory = cached("spark", name) if create else cache_directory() / "spark" / name
    return ClassArchive(directory, "Spark sessions")


def _exercise(options: list[str]) -> None:
    try:
        ended = finished(python_module(_TRAINING, *JVM_FLAGS, *options), _PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(str(error)) from error
    if ended.returncode:
        raise RuntimeError((ended.stdout + ended.stderr).strip()[-2_000:])
    if not Path(options[0].partition("=")[2]).exists():
        raise RuntimeError(
            "the JVM has written none, which it does if a directory on its class path is not "
            "empty: unset SPARK_CONF_DIR, HADOOP_CONF_DIR and YARN_CONF_DIR"
        )
