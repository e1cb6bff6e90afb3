"""Says why a Spark job of a query has failed, and what to do."""

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from spark_eos._client.printable import listed, printable
from spark_eos._exactly_once.delivery import Batch, PlannedBatch
from spark_eos._worker.plan import BatchPlan, BatchRange, Partitions
from spark_eos._worker.sources import Sources
from spark_eos.errors import ConfigurationError, SparkEosError, WriteError

# The SQLSTATE class for values that an expression can't process.
_DATA_EXCEPTION: Final = "22"
_STATE: Final = " SQLSTATE: "
# A text names at most this many source partitions.
_NAMED: Final = 8
_OURS: Final = "spark_eos|confluent_kafka|kafka|pyarrow|pandas|cachetools|tenacity|filelock"
_MISSING: Final = re.compile(
    # A module within a package is missing if an editable install left only the package's data.
    rf"(?:No module named '?(?P<module>(?:{_OURS})\b(?:\.\w+)*)"
    r"|\[PACKAGE_NOT_INSTALLED\] (?P<package>\w+))"
)
_NO_PROGRAM: Final = re.compile(r'IOException: Cannot run program "(?P<path>[^"\n]+)": error=2\b')
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (?P<what>[^\n]*?\.)(?:\s|$)")


# A row that Spark does not name ------------------------------------------------------------------


def as_write_error(
    error: PythonException,
    planned: PlannedBatch,
    batch_plan: BatchPlan,
    only: Partitions | None,
) -> WriteError:
    """Return the error for a Python function's exception; it names offsets, not the row."""
    # Spark does not say on which row the function raised.
    ranges = list(_ranges_to_write(batch_plan, planned.sources, only))
    named = ", ".join(ranges[:_NAMED])
    if len(ranges) > _NAMED:
        named += f" and {len(ranges) - _NAMED} more source partitions"
    lines = [line for line in str(error).splitlines() if line.strip()]
    cause = lines[-1].strip()
    return WriteError(
        f"batch {planned.batch.id} of group {planned.settings.group_id!r}: a Python "
        f"function of the query failed with {cause!r}. Spark does not say on which row; "
        f"the batch reads {named}. Every start reads the same records again: fix the function, "
        "or let it set such rows aside (dead_letters and spark_eos.guarded)"
    )


def _ranges_to_write(
    batch_plan: BatchPlan, sources: Sources, only: Partitions | None
) -> Iterator[str]:
    parts = batch_plan.partitions.items()
    for partition, part in sorted(parts, key=lambda item: sources.source(item[0])):
        first, last = max(part.start, part.committed), part.end - 1
        if first <= last and (only is None or partition in only):
            offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
            yield f"{sources.source(partition)} {offsets}"


@contextlib.contextmanager
def expressions_judged(batch: Batch, group_id: str) -> Iterator[None]:
    """Raise `WriteError`, with the offsets and a remedy, if an expression fails on a value."""
    # The failing row can't be found: a batch's rows are an RDD that has already evaluated all
    # expressions, so filtering by `source` does not exclude the rows that fail.
    try:
        yield
    except PySparkException as error:
        if not _is_of_value(error):
            raise
        text = printable(str(error).partition(_STATE)[0].strip()).rstrip(".")
        raise WriteError(
            f"batch {batch.id} of group {group_id!r}: an expression of the query failed: "
            f"{text}. Spark does not say on which row{_read(batch)}. Every start reads the same "
            "records again: use the form of the expression that returns null (try_cast, "
            "try_divide, try_to_number, F.get), and give such rows an `error` (dead_letters), or "
            "use spark_eos.guarded"
        ) from error


def _is_of_value(error: PySparkException) -> bool:
    try:
        return (error.getSqlState() or "").startswith(_DATA_EXCEPTION)
    except Exception:  # noqa: BLE001 - the JVM may have ended; the caller raises the error
        return False


def _read(batch: Batch) -> str:
    try:
        ranges = [*_ranges(batch.source)]
    except SparkEosError:
        return ""  # sources other than Kafka have no ranges
    return f"; the batch reads {listed(ranges, _NAMED)}"


def _ranges(batch: BatchRange) -> Iterator[str]:
    for partition, end in sorted(batch.ends.items()):
        start = batch.starts.get(partition, 0)
        if start < end:
            yield f"{partition} offsets {start} to {end - 1}"


# The executors' Python ---------------------------------------------------------------------------


def executor_fault(session: SparkSession, text: str) -> ConfigurationError | None:
    """Return what is wrong with the executors' Python, if that may be why a job failed.

    The job's error may quote records, so a fault counts only if a job without records has it too.
    """
    if _fault(text) is None:
        return None
    missing = _MISSING.search(text)
    modules = [] if missing is None else [(missing["module"] or missing["package"]).lower()]
    try:
        session.range(1).mapInArrow(_importing(modules), "id long").collect()
    except Exception as error:  # noqa: BLE001 - its text names the fault
        return _fault(str(error))
    return None


def _importing(modules: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for tasks that fails if modules are missing."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for name in modules:
            importlib.import_module(name)
        yield from batches

    return run


def _fault(text: str) -> ConfigurationError | None:
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
