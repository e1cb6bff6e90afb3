"""Converts a query's columns to the form that a task needs."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spark_eos.worker.records import SOURCE_OFFSET, SOURCE_PARTITION, SOURCE_TOPIC

_SOURCE = {"topic": SOURCE_TOPIC, "partition": SOURCE_PARTITION, "offset": SOURCE_OFFSET}
_AS_THEY_ARE = ("topic", "partition", "headers")


def writable_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches with the columns that tasks need.

    Args:
        batches: Arrow batches whose schema `spark_eos.spark.columns.check_columns` has accepted.
    """
    for batch in batches:
        source = batch.column("source")
        # Flattened fields are null where the struct is null; the struct's plain fields may not be.
        fields = dict(zip((f.name for f in source.type), source.flatten(), strict=True))
        columns = {flat: fields[name] for name, flat in _SOURCE.items()}
        names = set(batch.schema.names)
        for name in ("value", "key"):
            if name in names:
                columns[name] = _bytes(batch.column(name))
        columns |= {name: batch.column(name) for name in _AS_THEY_ARE if name in names}
        if "timestamp" in names:
            columns["timestamp"] = _milliseconds(batch.column("timestamp"))
        yield pa.RecordBatch.from_pydict(columns)


def _bytes(column: pa.Array) -> pa.Array:
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _milliseconds(column: pa.Array) -> pa.Array:
    # Rounded down, before 1970 too. The time zone is dropped, since Arrow may not know it, or an
    # hour may occur twice in it; the column holds UTC.
    instants = column.cast(pa.timestamp(column.type.unit))
    floor = pc.floor_temporal(instants, unit="millisecond")
    return floor.cast(pa.timestamp("ms")).cast(pa.int64())
