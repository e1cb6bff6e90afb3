"""Converts a query's columns to the form that a task needs."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_eos._worker.dead_letters import FOR_LETTERS
from spark_eos._worker.records import (
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
    TOPIC_IS_SOURCE,
)

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_SOURCE = {"topic": SOURCE_TOPIC, "partition": SOURCE_PARTITION, "offset": SOURCE_OFFSET}
FLAT_SOURCE = {name: f"__source_{name}" for name in _SOURCE}
"""The columns that hold the fields of ``source`` if it is flattened."""
_AS_THEY_ARE = ("topic", TOPIC_IS_SOURCE, "partition", "headers", *FOR_LETTERS)
FILE_NUMBER = "file"
"""The column with the number of a staged row's file."""
ROW = "row"
"""The column with a staged row's number in its file."""


def writable_batches(
    batches: Iterator[pa.RecordBatch],
    *,
    topic: str | None = None,
    steps: Sequence[Function] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches with the columns that tasks need, after the query's final steps.

    ``topic`` is the source topic of all rows if the rows do not carry it.
    """
    for step in steps:
        batches = step(_with_source(batches, topic))
    for batch in batches:
        fields = _source_fields(batch, topic)
        columns = {flat: fields[name] for name, flat in _SOURCE.items()}
        yield pa.RecordBatch.from_pydict({**columns, **_payload(batch)})


def _with_source(batches: Iterator[pa.RecordBatch], topic: str | None) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches whose ``source`` is a struct again if it was flattened."""
    for batch in batches:
        if "source" in batch.schema.names:
            yield batch
            continue
        fields = _source_fields(batch, topic)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for flat in FLAT_SOURCE.values():
            columns.pop(flat, None)
        source = pa.StructArray.from_arrays([*fields.values()], [*fields])
        yield pa.RecordBatch.from_pydict({"source": source, **columns})


def _source_fields(batch: pa.RecordBatch, topic: str | None) -> dict[str, pa.Array]:
    names = batch.schema.names
    if "source" in names:
        source = batch.column("source")
        # Flatten the struct: its own fields may hold values in rows where the struct is null.
        return dict(zip((f.name for f in source.type), source.flatten(), strict=True))
    fields = {name: batch.column(flat) for name, flat in FLAT_SOURCE.items() if flat in names}
    return fields if topic is None else {**fields, "topic": pa.repeat(topic, batch.num_rows)}


def staged_batches(
    batches: Iterator[pa.RecordBatch], *, progress_topic: str, first: int
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of a staged copy with the columns that tasks need."""
    # Add these columns here, not in Spark's plan. Without constants that change with each batch,
    # Spark compiles the plan only once, and doesn't have to pass the topic with each row.
    for batch in batches:
        columns = {
            SOURCE_TOPIC: pa.repeat(progress_topic, batch.num_rows),
            # Partition 0 holds the staged commit, so the rows' partitions begin at 1.
            SOURCE_PARTITION: pc.add(batch.column(FILE_NUMBER), pa.scalar(1, pa.int32())),
            SOURCE_OFFSET: pc.add(batch.column(ROW), first),
        }
        yield pa.RecordBatch.from_pydict({**columns, **_payload(batch)})


def _payload(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    names = set(batch.schema.names)
    columns = {name: _bytes(batch.column(name)) for name in ("value", "key") if name in names}
    columns |= {name: batch.column(name) for name in _AS_THEY_ARE if name in names}
    if "timestamp" in names:
        columns["timestamp"] = _milliseconds(batch.column("timestamp"))
    return columns


def _bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _milliseconds(column: pa.Array) -> pa.Array:
    # Round down, even before 1970. Use integers: Arrow's milliseconds can't represent the earliest
    # microseconds. Drop the time zone, which Arrow may not know.
    unit = column.type.unit
    instants = column.cast(pa.timestamp(unit)).cast(pa.int64())
    parts = 1000 if unit == "us" else 1
    towards_zero = pc.divide(instants, parts)
    is_above = pc.greater(pc.multiply(towards_zero, parts), instants)
    return pc.subtract(towards_zero, is_above.cast(pa.int64()))
