"""The ``source`` struct as separate columns, which Spark passes to Python faster."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos._spark.columns import SOURCE, written
from spark_eos._worker.arrow_columns import FLAT_SOURCE

_TOPIC, _PARTITION, _OFFSET = (FLAT_SOURCE[name] for name in ("topic", "partition", "offset"))
_PLACE: Final = T.StructType(
    [
        T.StructField("topic", T.StringType()),
        T.StructField("partition", T.IntegerType()),
        T.StructField("offset", T.LongType()),
    ]
)
# Keys in the partition column's metadata; the second is set if the stream reads only one topic.
_FLAT: Final = "spark-eos-flat"
_ONLY_TOPIC: Final = "spark-eos-topic"


def can_be_flat(schema: T.StructType) -> bool:
    """Return True if ``source`` is only a position, and all column names would be distinct."""
    kind = schema[SOURCE].dataType
    names = [*(name.lower() for name in schema.names), *FLAT_SOURCE.values()]
    is_place = isinstance(kind, T.StructType) and set(kind.names) == set(_PLACE.names)
    return is_place and len(set(names)) == len(names)


def flattened(frame: DataFrame, only_topic: str | None) -> DataFrame:
    # Spark's Arrow writer is slower on a struct than on its fields.
    source = F.col(SOURCE)
    columns = {_PARTITION: source["partition"], _OFFSET: source["offset"]}
    metadata: dict[str, object] = {_FLAT: True}
    if only_topic is None:
        columns[_TOPIC] = source["topic"]
    else:
        # Passing the same topic with each row would double the cost, so only compare it.
        columns[_PARTITION] = F.when(source["topic"] == F.lit(only_topic), source["partition"])
        metadata[_ONLY_TOPIC] = only_topic
    return frame.withColumns(columns).drop(SOURCE).withMetadata(_PARTITION, metadata)


def is_flat(schema: T.StructType) -> bool:
    return _PARTITION in schema.names and _FLAT in schema[_PARTITION].metadata


def only_topic_of(schema: T.StructType) -> str | None:
    """Return the topic of all rows of a flat stream if the rows do not carry it, else None."""
    return schema[_PARTITION].metadata.get(_ONLY_TOPIC) if is_flat(schema) else None


def with_struct(schema: T.StructType) -> T.StructType:
    """Return a schema as it was before `flattened`, for checks."""
    if not is_flat(schema):
        return schema
    others = [field for field in schema if field.name not in FLAT_SOURCE.values()]
    return T.StructType([T.StructField(SOURCE, _PLACE), *others])


def with_source(frame: DataFrame) -> DataFrame:
    """Return a frame as it was before `flattened`."""
    if not is_flat(frame.schema):
        return frame
    topic, partition = topic_and_partition(frame.schema)
    fields = {"topic": topic, "partition": partition, "offset": F.col(_OFFSET)}
    source = F.struct(*(field.alias(name) for name, field in fields.items()))
    # Don't resolve other columns by name, which may contain dots.
    return frame.withColumn(SOURCE, source).drop(*FLAT_SOURCE.values())


def written_columns(schema: T.StructType) -> list[str]:
    wanted = {*written(schema), *(FLAT_SOURCE.values() if is_flat(schema) else ())}
    return [name for name in schema.names if name in wanted]


def topic_and_partition(schema: T.StructType) -> tuple[Column, Column]:
    """Return each row's source topic and partition, whether ``source`` is flat or not."""
    if not is_flat(schema):
        # Not "source.topic", which means another column if the frame has the alias "source".
        source = F.col(SOURCE)
        return source["topic"], source["partition"]
    topic = only_topic_of(schema)
    return F.col(_TOPIC) if topic is None else F.lit(topic), F.col(_PARTITION)
