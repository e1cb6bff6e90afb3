"""A local Spark session that reads from Kafka and keeps quiet."""

import os
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from pyspark.sql import SparkSession

from spark_eos.jars.jar_sets import spark_kafka_jars
from spark_eos.testing.spark_image import quick_start_options

_LOOPBACK = "127.0.0.1"


def spark_session(
    app_name: str = "spark-eos",
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    *,
    quick_start: bool = False,
) -> SparkSession:
    """Return a Spark session for tests and trials on this machine.

    It has Spark's Kafka source, no web interface, two shuffle partitions, UTC as its time zone,
    listens on the loopback interface only, runs Python workers with this interpreter, and logs
    errors only. As with `SparkSession.builder`, a session that is active already is returned as
    it is.

    Args:
        app_name: Name of the application.
        master: Where Spark runs; the default is two threads of this machine.
        config: Settings on top. ``spark.jars``, ``spark.driver.extraJavaOptions`` and
            ``spark.executor.extraJavaOptions`` add to what is set here, others replace it.
        quick_start: Let the JVMs compile less, and take classes from an archive that is made when
            it is first needed: they start sooner and are slower on much data.

    Raises:
        spark_eos.jars.jar_sets.JarError: No Kafka source fits the installed pyspark.
        spark_eos.jars.ivy.DownloadError: The Kafka source's jars could not be downloaded.
        spark_eos.jars.java.JavaError: There is no Java 17 or newer.
    """
    prepare_environment()
    settings = spark_settings(config, quick_start=quick_start)
    builder = SparkSession.builder.appName(app_name).master(master)
    return builder.config(map=dict(settings)).getOrCreate()


def prepare_environment() -> None:
    """Sets what Spark takes from the environment only; for this process and what it starts."""
    # Workers would otherwise run whatever python3 is first on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Or Spark looks the host's name up, and complains about what it finds.
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)


def spark_settings(
    config: Mapping[str, str] | None = None, *, quick_start: bool = False
) -> dict[str, str]:
    """What `spark_session` sets, for a Spark that is started in another way.

    Args:
        config: As for `spark_session`.
        quick_start: As for `spark_session`.

    Raises:
        JarError, DownloadError, JavaError: As `spark_session`.
    """
    given = dict(config or {})
    settings = {
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.host": _LOOPBACK,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "spark-eos-warehouse")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **given,
    }
    jars = ",".join(map(str, spark_kafka_jars()))
    logging = f"-Dlog4j2.configurationFile={_log_configuration()}"
    settings["spark.jars"] = _joined(",", jars, given.get("spark.jars"))
    quick = quick_start_options() if quick_start else []
    for options in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        # Quoted, as Spark splits them: the paths in them may have spaces.
        ours = " ".join(f'"{option}"' for option in (logging, *quick))
        settings[options] = _joined(" ", ours, given.get(options))
    return settings


def _joined(separator: str, ours: str, given: str | None) -> str:
    return f"{ours}{separator}{given}" if given else ours


def _log_configuration() -> Path:
    return Path(str(resources.files(__package__) / "conf" / "spark-log4j2.properties"))
