"""A local Spark session that reads from Kafka and logs only errors."""

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources

from pyspark.sql import SparkSession

from spark_eos._jars.jar_sets import spark_kafka_jars
from spark_eos._jars.spark_image import quick_start_options, quoted
from spark_eos._pyspark_internals import existing_session
from spark_eos.testing.class_training import train

_LOOPBACK = "127.0.0.1"


def spark_session(
    app_name: str = "spark-eos",
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    *,
    quick_start: bool = False,
) -> SparkSession:
    """Return a Spark session for tests and trials on this machine.

    The session has Spark's Kafka source, no web interface, two shuffle partitions and the time zone
    UTC. It listens only on the loopback interface, runs Python workers with this interpreter, and
    logs only errors. If a session is already active, it is returned unchanged, even if it lacks
    Spark's Kafka source.

    Args:
        app_name: Name of the application.
        master: Spark's master URL; by default two threads on this machine.
        config: Further settings. ``spark.jars``, ``spark.driver.extraJavaOptions`` and
            ``spark.executor.extraJavaOptions`` add to the values set here; all other settings
            replace them.
        quick_start: Whether the JVMs compile less and load classes from an archive, which is
            created on first use. They start sooner, but are slower on large data.

    Raises:
        spark_eos._jars.jar_sets.JarError: No Kafka source matches the installed pyspark.
        spark_eos._jars.ivy.DownloadError: The Kafka source's jars could not be downloaded.
        spark_eos._jars.java.JavaError: There is no Java 17 or newer.

    Examples:
        ::

            spark = spark_session(config={"spark.driver.memory": "2g"})
            spark.range(3).count()
    """
    existing = existing_session()
    if existing is not None:
        # The builder would set the session's time zone and other settings.
        return existing
    prepare_environment()
    settings = spark_settings(config, quick_start=quick_start)
    builder = SparkSession.builder.appName(app_name).master(master)
    return builder.config(map=dict(settings)).getOrCreate()


def prepare_quick_start() -> None:
    """Download the Kafka source's jars and archive Spark's classes, as the first session would."""
    spark_kafka_jars()
    quick_start_options(train)


def prepare_environment() -> None:
    """Set environment variables that Spark needs in this process and its children."""
    # By default, workers would run the first python3 on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # By default, Spark resolves the host name, and warns if the result is a loopback address.
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)


def spark_settings(
    config: Mapping[str, str] | None = None, *, quick_start: bool = False
) -> dict[str, str]:
    """Return the settings of `spark_session`, for starting Spark in another way."""
    given = dict(config or {})
    settings = {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # By default, stopping a query waits forever for a Python function that hangs.
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.warehouse.dir": _warehouse(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **given,
    }
    jars = ",".join(map(str, spark_kafka_jars()))
    configuration = resources.files(__package__) / "conf" / "spark-log4j2.properties"
    logging = f"-Dlog4j2.configurationFile={configuration}"
    settings["spark.jars"] = _joined(",", jars, given.get("spark.jars"))
    quick = quick_start_options(train) if quick_start else []
    for options in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        settings[options] = _joined(" ", quoted([logging, *quick]), given.get(options))
    return settings


@functools.cache
def _warehouse() -> str:
    """Create this process's directory for tables; it is removed when the process ends."""
    # Each process needs its own, because its catalog does not know the tables of other processes.
    directory = tempfile.mkdtemp(prefix="spark-eos-warehouse-")
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork
        shutil.rmtree(directory, ignore_errors=True)


def _joined(separator: str, ours: str, given: str | None) -> str:
    return f"{ours}{separator}{given}" if given else ours
