"""Finds the Java that runs Ivy, the embedded broker and Spark."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spark_eos._python_module import finished
from spark_eos.errors import PrintableError

MINIMUM_MAJOR = 17
"""The oldest Java version that runs Kafka 4 brokers and Spark 4."""


class JavaError(PrintableError, RuntimeError):
    """Java is missing, does not run, or is too old."""

    entry = "EOS22"


@dataclass(frozen=True)
class Java:
    executable: Path
    major: int
    banner: str


def find_java() -> Java:
    """Return the Java in ``JAVA_HOME`` if that is set, otherwise the first Java on ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not executable.is_file():
            raise JavaError(
                f"JAVA_HOME is {home}, which has no bin/java. Set it to the directory of Java "
                f"{MINIMUM_MAJOR} or newer, or unset it to use the java on PATH."
            )
        return _probe(executable)
    program = shutil.which("java")
    if program is None:
        raise JavaError(
            f"No java on PATH. Install Java {MINIMUM_MAJOR} or newer, or set JAVA_HOME to it."
        )
    return _probe(Path(program))


def without_options(lines: Iterable[str]) -> list[str]:
    """Return a JVM's output without the variables that it quotes: they may contain passwords."""
    return [line for line in lines if "Picked up " not in line]


@functools.lru_cache
def _probe(executable: Path) -> Java:
    try:
        result = finished([str(executable), "-version"], 60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{executable} -version can't be run: {error}") from error
    lines = (result.stderr + result.stdout).splitlines()
    banner = "\n".join(without_options(lines)).strip()
    version = re.search(r'version "(?:1\.)?(\d+)', banner)
    if result.returncode != 0 or version is None:
        raise JavaError(f"{executable} -version did not print a version, but: {banner}")
    major = int(version[1])
    if major < MINIMUM_MAJOR:
        raise JavaError(
            f"{executable} is Java {major}, but Kafka 4 and Spark 4 need Java {MINIMUM_MAJOR} or "
            "newer. Set JAVA_HOME to a newer Java."
        )
    return Java(executable, major, banner)
