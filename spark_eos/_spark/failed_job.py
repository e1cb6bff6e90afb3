"""The error for a Spark job that failed in a Python function of the query."""

from collections.abc import Iterator
from typing import Final

from pyspark.errors import PythonException

from spark_eos._exactly_once.delivery import PlannedBatch
from spark_eos._worker.plan import BatchPlan, Partitions
from spark_eos._worker.sources import Sources
from spark_eos.errors import WriteError

_NAMED: Final = 8


def as_write_error(
    error: PythonException,
    planned: PlannedBatch,
    batch_plan: BatchPlan,
    only: Partitions | None,
) -> WriteError:
    """Return the error for a Python function's exception; it names offsets, not the row."""
    # Spark does not say on which row the function raised.
    ranges = list(_ranges(batch_plan, planned.sources, only))
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


def _ranges(batch_plan: BatchPlan, sources: Sources, only: Partitions | None) -> Iterator[str]:
    parts = batch_plan.partitions.items()
    for partition, part in sorted(parts, key=lambda item: sources.source(item[0])):
        first, last = max(part.start, part.committed), part.end - 1
        if first <= last and (only is None or partition in only):
            offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
            yield f"{sources.source(partition)} {offsets}"
