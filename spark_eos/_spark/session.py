"""Builds a Spark session that can read Kafka, and checks whether a session can."""

import json
import logging
import os
import shutil
import subprocess
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
# The modules that a task of the sink imports.
_MODULES: Final = ("pyspark", "pandas", "pyarrow", "confluent_kafka", "kafka", "spark_eos")
# The version is checked first: another Python version can't read what Spark sends.
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
_DAEMON: Final = "spark_eos.worker_daemon"
# From this number of consumers on, Spark's Kafka source closes the oldest ones. With the default of
# 64, a query that reads 64 partitions finds none of its consumers in its next batch, and connects
# to each partition again. Idle consumers are closed after five minutes anyway.
_CONSUMERS: Final = "spark.kafka.consumer.cache.capacity"
_KEPT_CONSUMERS: Final = 1_000


@typed
def session_builder(
    *,
    jars: str | Path | Iterable[str | Path] = (),
    class_archive: bool = False,
    worker_daemon: bool = False,
) -> SparkSession.Builder:
    """Return a builder for a session that can read Kafka, for scripts run with plain Python.

    The builder sets ``spark.jars`` to the jars of Spark's Kafka source, which are downloaded the
    first time, makes workers run this Python unless ``PYSPARK_PYTHON`` names another one, and lets
    an executor keep 1,000 Kafka consumers (``spark.kafka.consumer.cache.capacity``). It sets
    nothing if ``spark-submit`` or Spark Connect (``SPARK_REMOTE``) starts Spark.

    Examples:
        ::

            spark = session_builder().appName("orders").master("local[2]").getOrCreate()

    Args:
        jars: One or more further jars; ``config("spark.jars", ...)`` would replace all jars.
        class_archive: Whether the driver's JVM loads Spark's classes from the archive that
            ``spark-eos class-archive`` makes (class data sharing), through
            ``spark.driver.defaultJavaOptions``. The JVM then starts some seconds faster. Without an
            archive it starts as usual, with a warning.
        worker_daemon: Whether Spark's Python workers are forked from a process that has already
            imported what a task needs (`spark_eos.worker_daemon`), through
            ``spark.python.daemon.module``. The first batch then starts seconds earlier. spark-eos
            must be installed on the hosts of all executors.

    Returns:
        A new builder.

    Raises:
        spark_eos._jars.java.JavaError: There is no Java 17 or newer.
        spark_eos._jars.jar_sets.JarError: No Kafka source fits the installed pyspark, or other
            users may write to the cache of jars.
        spark_eos._jars.ivy.DownloadError: The jars could not be downloaded.
        spark_eos._jars.spark_image.ClassArchiveError: Other users may write to the archive.
    """
    builder: SparkSession.Builder = SparkSession.builder
    if started_by_submit() or _REMOTE in os.environ:
        return builder
    # Without Java, Spark itself would only say that its "Java gateway process exited".
    find_java()
    # Otherwise workers would run whatever python3 is first on PATH. PySpark itself reads only this
    # variable (SparkContext.pythonExec); only spark-submit reads spark.pyspark.python.
    os.environ.setdefault(_PYTHON, sys.executable)
    further = [jars] if isinstance(jars, str | Path) else jars
    builder = builder.config("spark.jars", ",".join(map(str, [*spark_kafka_jars(), *further])))
    builder = builder.config(_CONSUMERS, str(_KEPT_CONSUMERS))
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
    if worker_daemon:
        builder = builder.config("spark.python.daemon.module", _DAEMON)
    return builder


def check_session(spark: SparkSession) -> None:
    """Refuse a session that can't run our queries; other hosts' faults show in their first task."""
    _check_kafka_source(spark)
    if not is_connect(spark):
        _check_threads()
        _check_python(spark)


def _check_kafka_source(spark: SparkSession) -> None:
    reader = spark.readStream.format("kafka").option("subscribe", "-")
    try:
        # No broker is asked: the columns are always the same. On Connect, only reading the schema
        # triggers the analysis.
        _ = reader.option("kafka.bootstrap.servers", "-").load().schema
    except AnalysisException as error:
        if "Failed to find data source: kafka" not in str(error):
            raise
        raise ConfigurationError(
            "Spark has no Kafka source: its jars are not on the class path. Create the session "
            "with spark_eos.session_builder() instead of SparkSession.builder, or start Spark (or "
            'the Spark Connect server) with --jars "$(spark-eos jars)"'
        ) from error


def _check_threads() -> None:
    if threads_are_pinned():
        return
    raise ConfigurationError(
        "PYSPARK_PIN_THREAD is false, so Python's threads are not tied to Spark's, and a batch "
        "does not know its query: unset it before Python starts Spark"
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
            f"{_PYTHON}={sys.executable} before the session starts, or create the session with "
            "spark_eos.session_builder()"
        )


def _problem_of(command: str, context: Any) -> str:
    # The same paths as in Spark's workers, including files added with sc.addPyFile.
    root = SparkFiles.getRootDirectory()
    added = [root, *(str(Path(root, name)) for name in shipped_python_files(context))]
    paths = [*added, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **context.environment}
    try:
        ended = finished([command, "-c", _PROBE], _PATIENCE, env=environment)
    except OSError as error:
        return f"it can't be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"it takes over {_PATIENCE} s to import {', '.join(_MODULES)}"
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        return f"it does not run: {(ended.stderr or ended.stdout).strip()[-200:]}"
    if answer["version"] != list(sys.version_info[:2]):
        mine = "{}.{}".format(*sys.version_info[:2])
        return "it is Python {}.{}, and this is {}".format(*answer["version"], mine)
    return f"it has no module {answer['missing']!r}" if answer["missing"] else ""
