"""The class data archive that lets a Spark driver start sooner: created once, then cached."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from spark_eos.jars.cache import cache_directory
from spark_eos.jars.class_archive import JVM_FLAGS, ClassArchive, digest, fingerprint
from spark_eos.jars.java import find_java

_PATIENCE = 300
_TRAINING = "spark_training.py"


def quick_start_options() -> list[str]:
    """Return JVM options for the quickest start of Spark; the first call may take half a minute.

    The JVM also compiles less, which makes long-running work slower: for tests and trials.

    Raises:
        spark_eos.jars.java.JavaError: There is no usable Java.
    """
    return [*JVM_FLAGS, *class_archive().options]


def class_archive() -> ClassArchive:
    """Return the archive of Spark's classes; the first call makes it, which takes half a minute.

    A Spark that the archive does not fit, of another JVM build or with other jars than the
    installed pyspark's, starts as without it. If it can't be made, a warning is logged, once, and
    it has no options.

    Raises:
        spark_eos.jars.java.JavaError: There is no usable Java.
        PermissionError: Others may write to the archive, so the JVM would run what they put there.
    """
    archive = _archive()
    archive.train(_exercise)
    for path in (archive.file, archive.directory, archive.directory.parent, cache_directory()):
        if path.exists():
            _check_owner(path)
    return archive


def quoted(options: Iterable[str]) -> str:
    """Join JVM options for Spark, which splits them at spaces outside of quotes.

    Example:
        >>> quoted(["-Xmx1g", "-XX:SharedArchiveFile=/my cache/classes.jsa"])
        '"-Xmx1g" "-XX:SharedArchiveFile=/my cache/classes.jsa"'
    """
    return " ".join(f'"{option}"' for option in options)


def _archive() -> ClassArchive:
    jars = sorted(Path(str(resources.files("pyspark"))).glob("jars/*.jar"))
    # What was trained is part of the name, so that a better training is not passed over.
    training = resources.files("spark_eos.testing").joinpath(_TRAINING).read_text(encoding="utf-8")
    name = digest(fingerprint(find_java(), jars), training)
    directory = cache_directory() / "spark" / name
    directory.mkdir(parents=True, exist_ok=True)
    return ClassArchive(directory, "Spark sessions")


def _check_owner(path: Path) -> None:
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
        raise PermissionError(
            f"{path} belongs to user id {found.st_uid} and has mode "
            f"{stat.S_IMODE(found.st_mode):04o}: a JVM would run the classes that others may put "
            "there. Set SPARK_EOS_CACHE to a directory of your own, or run chmod o-w if you trust "
            "its contents"
        )


def _exercise(options: list[str]) -> None:
    command = [sys.executable, "-m", "spark_eos.testing.spark_training", *JVM_FLAGS, *options]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(str(error)) from error
    if ended.returncode:
        raise RuntimeError((ended.stdout + ended.stderr).strip()[-2_000:])
