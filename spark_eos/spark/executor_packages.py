"""Whether the executors of a cluster have what tasks of the sink import, before a query starts."""

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from py4j.protocol import Py4JError

from spark_eos.spark.failed_job import as_configuration_error, missing_module

logger = logging.getLogger(__name__)

# More than this many tasks would tell little more of a cluster whose hosts are alike.
_MAX_TASKS: Final = 16
_checked: set[str] = set()


def check_executors(context: Any, modules: tuple[str, ...]) -> None:
    """Imports what tasks import, in a few tasks; once for each Spark application.

    Otherwise the first batch would tell, in Spark's words, hundreds of lines of them.

    Args:
        context: The SparkContext of a cluster.
        modules: Names of the modules.

    Raises:
        ConfigurationError: A module is missing, or the Python is of another version.

    Example:
        ::

            check_executors(spark.sparkContext, ("pyarrow", "spark_eos"))
    """
    try:
        application = context.applicationId
        if application in _checked:
            return
        tasks = max(1, min(context.defaultParallelism, _MAX_TASKS))
        logger.info("looking what the Python of Spark's executors has, in %d tasks", tasks)
        found = context.parallelize(range(tasks), tasks).mapPartitions(_probe(modules)).collect()
    except Py4JError as error:
        if wrong := as_configuration_error(error):
            raise wrong from error
        # An executor was lost, say, or this kind of job is not allowed. The first batch tells.
        logger.debug("what the executors' Python has is not known: %s", error)
        return
    if found:
        raise missing_module(found[0])
    _checked.add(application)


def _probe(modules: tuple[str, ...]) -> Callable[[Iterable[int]], Iterator[str]]:
    # A function within another one is sent as code: executors may not have this module.
    def missing(_numbers: Iterable[int]) -> Iterator[str]:
        try:
            for name in modules:
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            yield error.name or str(error)

    return missing
