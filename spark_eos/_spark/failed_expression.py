"""Says what to do if one of Spark's own expressions has failed on a value."""

# Not on which row: a batch's rows are an RDD that has evaluated all expressions already, so that a
# condition on `source` leaves out none of those that fail.

import contextlib
from collections.abc import Iterator
from typing import Final

from pyspark.errors import PySparkException

from spark_eos._client.printable import listed, printable
from spark_eos._exactly_once.delivery import Batch
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import SparkEosError, WriteError

# SQL's class of errors for values that an expression can't take.
_DATA_EXCEPTION: Final = "22"
_STATE: Final = " SQLSTATE: "
_NAMED: Final = 8


@contextlib.contextmanager
def expressions_judged(batch: Batch, group_id: str) -> Iterator[None]:
    """Raise `WriteError`, with the offsets and the cure, if an expression fails on a value."""
    try:
        yield
    except PySparkException as error:
        if not _is_of_value(error):
            raise
        text = printable(str(error).partition(_STATE)[0].strip()).rstrip(".")
        raise WriteError(
            f"batch {batch.id} of group {group_id!r}: an expression of the query has failed: "
            f"{text}. Spark does not tell on which row{_read(batch)}. Every start reads these "
            "again: use the form of the expression that returns null (try_cast, try_divide, "
            "try_to_number, F.get), and give such rows an `error` (dead_letters); or use guarded "
            "of spark_eos"
        ) from error


def _is_of_value(error: PySparkException) -> bool:
    try:
        return (error.getSqlState() or "").startswith(_DATA_EXCEPTION)
    except Exception:  # noqa: BLE001 - however the JVM has ended; the error itself is raised
        return False


def _read(batch: Batch) -> str:
    try:
        ranges = [*_ranges(batch.source)]
    except SparkEosError:
        return ""  # sources other than Kafka have none
    return f"; the batch reads {listed(ranges, _NAMED)}"


def _ranges(batch: BatchRange) -> Iterator[str]:
    for partition, end in sorted(batch.ends.items()):
        start = batch.starts.get(partition, 0)
        if start < end:
            yield f"{partition} offsets {start} to {end - 1}"
