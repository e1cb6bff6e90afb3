"""Words for a Spark job that failed in a Python function of the query."""

import re
from collections.abc import Iterator
from typing import Final

from pyspark.errors import PythonException

from spark_eos._batch.plan import BatchPlan, Partitions
from spark_eos._batch.sources import Sources
from spark_eos._exactly_once.delivery import PlannedBatch
from spark_eos.errors import (
    ConfigurationError,
    RegistryError,
    SchemaError,
    SparkEosError,
    WriteError,
    read_back,
)

_NAMED: Final = 8
_OURS: Final = "spark_eos|confluent_kafka|kafka|pyarrow|pandas|cachetools|tenacity|filelock"
_MISSING: Final = re.compile(
    rf"(?:No module named '?(?P<module>(?:{_OURS})\b)"
    r"|\[PACKAGE_NOT_INSTALLED\] (?P<package>\w+))"
)
_NO_PROGRAM: Final = re.compile(r'IOException: Cannot run program "(?P<path>[^"\n]+)": error=2\b')
_OWN: Final = {each.__name__: each for each in (RegistryError, SchemaError, WriteError)}
_RAISED: Final = re.compile(rf"^spark_eos\.errors\.({'|'.join(_OWN)}): (.*)$", re.MULTILINE)
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (?P<what>[^\n]*?\.)(?:\s|$)")


def as_own_error(error: Exception) -> SparkEosError | None:
    """The error of a guarded function or of schemas, or of the executors' Python; else None."""
    if found := _RAISED.search(str(error)):
        return _OWN[found[1]](read_back(found[2])[0])
    if found := _OTHER_PYTHON.search(str(error)):
        return ConfigurationError(
            f"Spark's executors run another Python: {found['what']} Set PYSPARK_PYTHON, or "
            "spark.pyspark.python, to one of this version that has spark-eos"
        )
    if found := _NO_PROGRAM.search(str(error)):
        return ConfigurationError(
            f"there is no program {found['path']!r} on a host of Spark's executors: set "
            "PYSPARK_PYTHON, or spark.pyspark.python, to a Python that each of these hosts has; "
            "the driver may have another one (PYSPARK_DRIVER_PYTHON)"
        )
    if found := _MISSING.search(str(error)):
        name = found["module"] or found["package"]
        return ConfigurationError(
            f"the Python of Spark's executors has no module {name!r}: install spark-eos for it on "
            "each host, or ship an environment (spark.archives), and set PYSPARK_PYTHON, or "
            "spark.pyspark.python, to that Python"
        )
    return None


def as_write_error(
    error: PythonException,
    planned: PlannedBatch,
    batch_plan: BatchPlan,
    only: Partitions | None,
) -> WriteError:
    """The error for a Python function's exception: Spark tells no row, so it names the offsets."""
    ranges = list(_ranges(batch_plan, planned.sources, only))
    named = ", ".join(ranges[:_NAMED])
    if len(ranges) > _NAMED:
        named += f" and {len(ranges) - _NAMED} more source partitions"
    lines = [line for line in str(error).splitlines() if line.strip()]
    cause, _ = read_back(lines[-1].strip())
    return WriteError(
        f"batch {planned.batch.id} of group {planned.settings.group_id!r}: a Python "
        f"function of the query failed with {cause!r}. Spark does not tell on which row; "
        f"the batch reads {named}. Every start reads these again: fix the function, or "
        "let it set such rows aside (dead_letters, and guarded of spark_eos)"
    )


def _ranges(batch_plan: BatchPlan, sources: Sources, only: Partitions | None) -> Iterator[str]:
    for partition, part in sorted(batch_plan.items(), key=lambda each: sources.source(each[0])):
        first, last = max(part.start, part.committed), part.end - 1
        if first <= last and (only is None or partition in only):
            offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
            yield f"{sources.source(partition)} {offsets}"
