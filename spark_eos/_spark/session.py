"""A Spark session that can read Kafka, and the checks that one can."""

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pyspark import SparkFiles
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_eos._client.argument_types import typed
from spark_eos._jars.jar_sets import spark_kafka_jars
from spark_eos._jars.java import find_java
from spark_eos._jars.spark_image import driver_options
from spark_eos._pyspark_internals import (
    is_connect,
    shipped_python_files,
    started_by_submit,
    threads_are_pinned,
)
from spark_eos._python_module import finished
from spark_eos.errors import ConfigurationError, warn

logger = logging.getLogger(__name__)

_PYTHON: Final = "PYSPARK_PYTHON"
_REMOTE: Final = "SPARK_REMOTE"
# What a task of the sink imports.
_MODULES: Final = ("pyspark", "pandas", "pyarrow", "confluent_kafka", "kafka", "spark_eos")
# Versions first: other ones can't read what is sent to them.
_PROBE: Final = f"""
import json, sys
missing = ""
try:
    import {", ".join(_MODULES)}
except ImportError as error:
    missing = error.name or str(error)
print(json.dumps({{"version": sys.version_info[:2], "missing": missing}}))
"""
_PATIENCE: Final = 60


@typed
def session_builder(
    *, jars: str | Path | Iterable[str | Path] = (), class_archive: bool = False
) -> SparkSession.Builder:
    """Return a builder of a session that can read Kafka, for a script that plain Python runs.

    It sets ``spark.jars`` to the jars of Spark's Kafka source, which are downloaded at the first
    time, and lets workers run this Python, unless ``PYSPARK_PYTHON`` names another one. Where
    something else has started Spark or will, ``spark-submit`` or Spark Connect (``SPARK_REMOTE``),
    it sets nothing.

    Examples:
        ::

            spark = session_builder().appName("orders").master("local[2]").getOrCreate()

    Args:
        jars: Further jars, or one, since ``config("spark.jars", ...)`` would replace all of them.
        class_archive: Whether the driver's JVM takes Spark's classes from the archive that
            ``spark-eos class-archive`` has made (class data sharing), by
            ``spark.driver.defaultJavaOptions``: it starts some seconds sooner. Without an archive
            it starts as ever, with a warning.

    Returns:
        A new builder.

    Raises:
        spark_eos._jars.java.JavaError: There is no Java 17 or newer.
        spark_eos._jars.jar_sets.JarError: No Kafka source fits the installed pyspark, or others
            may write to the cache of jars.
        spark_eos._jars.ivy.DownloadError: The jars could not be downloaded.
        spark_eos._jars.spark_image.ClassArchiveError: Others may write to the archive.
    """
    builder: SparkSession.Builder = SparkSession.builder
    if started_by_submit() or _REMOTE in os.environ:
        return builder
    # Spark itself would say that its "Java gateway process exited".
    find_java()
    # Otherwise workers would run whatever python3 is first on PATH. PySpark itself reads only the
    # variable (SparkContext.pythonExec); spark.pyspark.python is for spark-submit.
    os.environ.setdefault(_PYTHON, sys.executable)
    further = [jars] if isinstance(jars, str | Path) else jars
    builder = builder.config("spark.jars", ",".join(map(str, [*spark_kafka_jars(), *further])))
    if class_archive:
        options = driver_options()
        if options is None:
            warn(
                logger,
                "EOS70",
                "there is no archive of Spark's classes: run `spark-eos class-archive`",
            )
        else:
            builder = builder.config("spark.driver.defaultJavaOptions", options)
    return builder


def check_session(spark: SparkSession) -> None:
    """Refuse a session that can't run a query of ours; other hosts' first tasks tell of theirs."""
    _check_kafka_source(spark)
    if not is_connect(spark):
        _check_threads()
        _check_python(spark)


def _check_kafka_source(spark: SparkSession) -> None:
    reader = spark.readStream.format("kafka").option("subscribe", "-")
    try:
        # Asks no broker: the columns are always the same. On Spark Connect only they are analyzed.
        _ = reader.option("kafka.bootstrap.servers", "-").load().schema
    except AnalysisException as error:
        if "Failed to find data source: kafka" not in str(error):
            raise
        raise ConfigurationError(
            "Spark has no Kafka source, its jars are not on the class path: make the session with "
            "spark_eos.session_builder() in place of SparkSession.builder, or start Spark (or the "
            'server of Spark Connect) with --jars "$(spark-eos jars)"'
        ) from error


def _check_threads() -> None:
    if threads_are_pinned():
        return
    raise ConfigurationError(
        "PYSPARK_PIN_THREAD is false, so Python's threads are not Spark's, and no batch can tell "
        "its query: unset it before Python starts Spark"
    )


def _check_python(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    if context.master != "local" and not context.master.startswith("local["):
        return
    command = shutil.which(context.pythonExec)
    if command is not None and Path(command).absolute() == Path(sys.executable).absolute():
        return
    problem = f"there is no program {context.pythonExec!r}"
    if command is not None:
        problem = _problem_of(command, context)
    if problem:
        raise ConfigurationError(
            f"Spark's workers would run {command or context.pythonExec}, but {problem}. Set "
            f"{_PYTHON}={sys.executable} before the session starts, or make it with "
            "spark_eos.session_builder()"
        )


def _problem_of(command: str, context: Any) -> str:
    # As in Spark's workers: what sc.addPyFile has added is there.
    root = SparkFiles.getRootDirectory()
    added = [root, *(str(Path(root, name)) for name in shipped_python_files(context))]
    paths = [*added, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **context.environment}
    ended = finished([command, "-c", _PROBE], _PATIENCE, env=environment)
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        return f"it does not run: {(ended.stderr or ended.stdout).strip()[-200:]}"
    if answer["version"] != list(sys.version_info[:2]):
        mine = "{}.{}".format(*sys.version_info[:2])
        return "it is Python {}.{}, and this is {}".format(*answer["version"], mine)
    return f"it has no module {answer['missing']!r}" if answer["missing"] else ""
