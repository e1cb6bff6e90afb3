"""Says what to do if one of Spark's own expressions fails on a value."""

# The failing row can't be found: a batch's rows are an RDD that has already evaluated all
# expressions, so filtering by `source` does not exclude the rows that fail.

import contextlib
from collections.abc import Iterator
from typing import Final

from pyspark.errors import PySparkException

from spark_eos._client.printable import listed, printable
from spark_eos._exactly_once.delivery import Batch
from spark_eos._worker.plan import BatchRange
from spark_eos.errors import SparkEosError, WriteError

# The SQLSTATE class for values that an expression can't process.
_DATA_EXCEPTION: Final = "22"
_STATE: Final = " SQLSTATE: "
_NAMED: Final = 8


@contextlib.contextmanager
def expressions_judged(batch: Batch, group_id: str) -> Iterator[None]:
    """Raise `WriteError`, with the offsets and a remedy, if an expression fails on a value."""
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
