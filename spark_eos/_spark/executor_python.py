"""Finds out whether a job failed because of the executors' Python."""

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_eos.errors import ConfigurationError

_OURS: Final = "spark_eos|confluent_kafka|kafka|pyarrow|pandas|cachetools|tenacity|filelock"
_MISSING: Final = re.compile(
    # A module within a package is missing if an editable install left only the package's data.
    rf"(?:No module named '?(?P<module>(?:{_OURS})\b(?:\.\w+)*)"
    r"|\[PACKAGE_NOT_INSTALLED\] (?P<package>\w+))"
)
_NO_PROGRAM: Final = re.compile(r'IOException: Cannot run program "(?P<path>[^"\n]+)": error=2\b')
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (?P<what>[^\n]*?\.)(?:\s|$)")


def executor_fault(session: SparkSession, text: str) -> ConfigurationError | None:
    """Return what is wrong with the executors' Python, if that may be why a job failed.

    The job's error may quote records, so a fault counts only if a job without records has it too.
    """
    if _named(text) is None:
        return None
    missing = _MISSING.search(text)
    modules = [] if missing is None else [(missing["module"] or missing["package"]).lower()]
    try:
        session.range(1).mapInArrow(_importing(modules), "id long").collect()
    except Exception as error:  # noqa: BLE001 - its text names the fault
        return _named(str(error))
    return None


def _importing(modules: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for tasks that fails if modules are missing."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for name in modules:
            importlib.import_module(name)
        yield from batches

    return run


def _named(text: str) -> ConfigurationError | None:
    if match := _OTHER_PYTHON.search(text):
        return ConfigurationError(
            f"Spark's executors run a different Python: {match['what']} Set PYSPARK_PYTHON, or "
            "spark.pyspark.python, to a Python of this version that has spark-eos"
        )
    if match := _NO_PROGRAM.search(text):
        return ConfigurationError(
            f"there is no program {match['path']!r} on a host of Spark's executors: set "
            "PYSPARK_PYTHON, or spark.pyspark.python, to a Python that each of these hosts has; "
            "the driver may use a different one (PYSPARK_DRIVER_PYTHON)"
        )
    if match := _MISSING.search(text):
        name = (match["module"] or match["package"]).partition(".")[0]
        return ConfigurationError(
            f"the Python of Spark's executors has no module {name!r}: install spark-eos for it on "
            "each host, or ship an environment (spark.archives), and set PYSPARK_PYTHON, or "
            "spark.pyspark.python, to that Python"
        )
    return None
