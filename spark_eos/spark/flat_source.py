"""The ``source`` struct spread over columns of its own, which Spark hands to Python sooner."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_eos.spark.columns import SOURCE
from spark_eos.worker.arrow_columns import FLAT_SOURCE

_TOPIC, _PARTITION, _OFFSET = (FLAT_SOURCE[name] for name in ("topic", "partition", "offset"))
# In the metadata of the partition's column: a sink may have made another stream since.
_ONLY_TOPIC: Final = "spark-eos-topic"
_PLACE: Final = {"topic", "partition", "offset"}


@dataclass(frozen=True)
class FlatSource:
    """How a stream's ``source`` is spread over columns.

    For Spark's Arrow writer a struct costs more than its fields, and a topic that is the same in
    each row more than all else: one that is known beforehand is compared, not handed over.

    Attributes:
        names: The stream's columns as the query has them.
        topic: The only topic that the query reads; None if there are, or may be, several.
    """

    names: tuple[str, ...]
    topic: str | None

    def flattened(self, frame: DataFrame) -> DataFrame:
        """The stream with the flat columns in place of ``source``.

        A row whose ``source`` has another topic than the one that the query reads gets a null
        partition, which tasks refuse.
        """
        source = F.col(SOURCE)
        partition = source["partition"]
        columns = {_PARTITION: partition, _OFFSET: source["offset"]}
        if self.topic is None:
            return frame.withColumns({**columns, _TOPIC: source["topic"]}).drop(SOURCE)
        columns[_PARTITION] = F.when(source["topic"] == F.lit(self.topic), partition)
        flat = frame.withColumns(columns).drop(SOURCE)
        return flat.withMetadata(_PARTITION, {_ONLY_TOPIC: self.topic})

    def restored(self, batch: DataFrame) -> DataFrame:
        """A batch of the flattened stream with the columns that the query has."""
        topic = F.col(_TOPIC) if self.topic is None else F.lit(self.topic)
        place = F.struct(
            topic.alias("topic"),
            F.col(_PARTITION).alias("partition"),
            F.col(_OFFSET).alias("offset"),
        )
        source = F.when(F.col(_PARTITION).isNotNull(), place).alias(SOURCE)
        return batch.select(
            *(source if name == SOURCE else F.col(_quoted(name)) for name in self.names)
        )


def flat_source(schema: T.StructType, topics: Collection[str] | None) -> FlatSource | None:
    """How to spread a stream's ``source``.

    Args:
        schema: The stream's columns, which `spark_eos.spark.columns.check_columns` has accepted.
        topics: The topics that the query reads; None if they are not known.

    Returns:
        None if it stays as it is: it carries more than its place, or columns can't be told apart
        by name.
    """
    kind = schema[SOURCE].dataType
    names = [name.lower() for name in schema.names]
    if not isinstance(kind, T.StructType) or set(kind.names) != _PLACE:
        return None
    if len({*names, *FLAT_SOURCE.values()}) < len(names) + len(FLAT_SOURCE):
        return None
    only = next(iter(topics)) if topics is not None and len(topics) == 1 else None
    return FlatSource(tuple(schema.names), only)


def topic_of(schema: T.StructType) -> str | None:
    """The topic of all rows of a flattened stream, if they do not carry it."""
    if SOURCE in schema.names or _PARTITION not in schema.names:
        return None
    found: str | None = schema[_PARTITION].metadata.get(_ONLY_TOPIC)
    return found


def topic_and_partition(schema: T.StructType) -> tuple[Column, Column]:
    """Each row's source topic and partition, whether ``source`` is flat or not."""
    topic = topic_of(schema)
    if SOURCE in schema.names:
        # Not "source.topic", which names another column if the frame has the alias "source".
        source = F.col(SOURCE)
        return source["topic"], source["partition"]
    return F.col(_TOPIC) if topic is None else F.lit(topic), F.col(_PARTITION)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
