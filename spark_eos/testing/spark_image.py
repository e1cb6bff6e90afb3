"""The class data archive that lets a local Spark start sooner: created once, kept in the cache."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

from spark_eos.jars.cache import cache_directory
from spark_eos.jars.java import find_java
from spark_eos.testing.class_archive import JVM_FLAGS, ClassArchive, digest, fingerprint

_PATIENCE = 300
_TRAINING = "spark_training.py"


def quick_start_options() -> list[str]:
    """Return JVM options for a quick start of Spark; the first call may take half a minute.

    Raises:
        spark_eos.jars.java.JavaError: There is no usable Java.
    """
    archive = _archive()
    archive.train(_exercise)
    return [*JVM_FLAGS, *archive.options]


def _archive() -> ClassArchive:
    jars = sorted(Path(str(resources.files("pyspark"))).glob("jars/*.jar"))
    # What was trained is part of the name, so that a better training is not passed over.
    training = resources.files(__package__).joinpath(_TRAINING).read_text(encoding="utf-8")
    name = digest(fingerprint(find_java(), jars), training)
    directory = cache_directory() / "spark" / name
    directory.mkdir(parents=True, exist_ok=True)
    return ClassArchive(directory, "Spark sessions")


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
