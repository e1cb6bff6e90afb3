"""Finds the source's own `topic` column, which would send rows back to where they came from."""

import re
from typing import Final

from pyspark.sql import DataFrame

from spark_eos._spark.columns import SOURCES_OWN
from spark_eos._spark.narrow_plan import explained

_KAFKA: Final = "KafkaSourceProvider"
_TOPIC: Final = re.compile(r"\btopic#(\d+)")


def with_own_topic_marked(frame: DataFrame) -> DataFrame:
    """A stream whose `topic` column is marked if it is a Kafka source's, unchanged.

    `spark_eos._spark.columns` refuses a column with the mark as the rows' target, also in a user's
    own function. A column that is computed has no mark.
    """
    if "topic" not in frame.schema.names:
        return frame
    # Spark's ids of columns tell; on Connect only the printed plan shows them.
    plan = explained(frame.select("topic"))["Analyzed Logical"].strip().splitlines()
    chosen = next((_TOPIC.search(line) for line in plan if "Project" in line), None)
    read = {number for line in plan if _KAFKA in line for number in _TOPIC.findall(line)}
    if chosen is None or chosen[1] not in read:
        return frame
    return frame.withMetadata("topic", dict(SOURCES_OWN))
