"""Whether the executors of a cluster have what tasks of the sink import, before a query starts."""

import importlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError

from spark_eos._pyspark_internals import executor_count
from spark_eos._spark.failed_job import as_configuration_error, missing_module
from spark_eos.errors import DeadlineExceededError, warn

logger = logging.getLogger(__name__)

# More than this many tasks would tell little more of a cluster whose hosts are alike.
_MAX_TASKS: Final = 16
_SAY_SECONDS: Final = 30.0
# Clusters that add machines when they are asked for executors take minutes.
_LIMIT_SECONDS: Final = 900.0
_ASK: Final = (
    "see in Spark's UI and its cluster manager's what is free, and ask for no more "
    "(spark.executor.instances, spark.executor.cores, spark.executor.memory, spark.cores.max)"
)
_checked: set[str] = set()


def check_executors(context: Any, modules: tuple[str, ...]) -> None:
    """Imports what tasks import, in a few tasks; once for each Spark application.

    Otherwise the first batch would tell, in Spark's words, hundreds of lines of them.
    """
    try:
        application = context.applicationId
        if application in _checked:
            return
        tasks = max(1, min(context.defaultParallelism, _MAX_TASKS))
        logger.info("looking what the Python of Spark's executors has, in %d tasks", tasks)
        with _bounded(context):
            numbers = context.parallelize(range(tasks), tasks)
            found = numbers.mapPartitions(_probe(modules)).collect()
    except Py4JError as error:
        if wrong := as_configuration_error(error):
            raise wrong from error
        # An executor was lost, say, or this kind of job is not allowed. The first batch tells.
        logger.debug("what the executors' Python has is not known: %s", error)
        return
    if found:
        raise missing_module(found[0])
    _checked.add(application)


@contextmanager
def _bounded(context: Any) -> Iterator[None]:
    """Cancels the jobs of the block, which Spark would let wait for executors for ever."""
    tag = f"spark-eos-{uuid.uuid4()}"
    ended, given_up = threading.Event(), threading.Event()

    def watch() -> None:
        waited = 0.0
        while not ended.wait(_SAY_SECONDS):
            waited += _SAY_SECONDS
            if waited >= _LIMIT_SECONDS:
                given_up.set()
                context.cancelJobsWithTag(tag)
                return
            warn(
                logger,
                "EOS60",
                "waiting for an executor to run a task, for %g s so far; Spark has %d executors: "
                "%s, or wait, up to %g s",
                *(waited, executor_count(context), _ASK, _LIMIT_SECONDS),
            )

    context.addJobTag(tag)
    threading.Thread(target=watch, name="executors-awaited", daemon=True).start()
    try:
        yield
    except Exception:
        if given_up.is_set():
            raise DeadlineExceededError(
                f"no executor has run a task of the query's start in {_LIMIT_SECONDS:g} s; Spark "
                f"has {executor_count(context)} executors: {_ASK}"
            ) from None
        raise
    finally:
        ended.set()
        context.removeJobTag(tag)


def _probe(modules: tuple[str, ...]) -> Callable[[Iterable[int]], Iterator[str]]:
    # A function within another one is sent as code: executors may not have this module.
    def missing(_numbers: Iterable[int]) -> Iterator[str]:
        try:
            for name in modules:
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            yield error.name or str(error)

    return missing
