"""Runs the training of Spark's class archive in a separate process."""

import subprocess
from pathlib import Path
from typing import Final

from spark_eos._jars.class_archive import JVM_FLAGS
from spark_eos._python_module import finished, python_module
from spark_eos.testing.broker import EmbeddedKafka

_PATIENCE: Final = 300
_PROGRAM: Final = f"{__package__}.spark_training"


def train(options: list[str]) -> None:
    """Run streaming queries on a broker, in a JVM that archives their classes on exit.

    Args:
        options: JVM options; the first one names the archive.

    Raises:
        RuntimeError: The broker can't be downloaded, the program fails or takes over 5 minutes, or
            the JVM writes no archive.
    """
    # Not in the program: downloads take any time, and show their progress and errors here.
    EmbeddedKafka().prepare()
    try:
        ended = finished(python_module(_PROGRAM, *JVM_FLAGS, *options), _PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(str(error)) from error
    if ended.returncode:
        raise RuntimeError((ended.stdout + ended.stderr).strip()[-2_000:])
    if not Path(options[0].partition("=")[2]).exists():
        raise RuntimeError(
            "the JVM has written none, which happens if a directory on its class path is not "
            "empty: unset HADOOP_CONF_DIR and YARN_CONF_DIR, and set SPARK_CONF_DIR, which is "
            "SPARK_HOME/conf by default, to an empty directory"
        )
