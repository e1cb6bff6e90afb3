"""Finds the source's own `topic` column, which would send rows back to where they came from."""

import itertools
import re
from typing import Final

from pyspark.sql import DataFrame

from spark_eos._spark.columns import SOURCES_OWN
from spark_eos._spark.narrow_plan import explained

_KAFKA: Final = "KafkaSourceProvider"
_TOPIC: Final = re.compile(r"\btopic#(\d+)")
# A view of SQL gives its columns ids of its own, in the line below it.
_OF_VIEW: Final = re.compile(r"\bcast\(topic#(\d+) as string\) AS topic#(\d+)")


def with_own_topic_marked(frame: DataFrame) -> DataFrame:
    """A stream whose `topic` column is marked if it is a Kafka source's, unchanged.

    `spark_eos._spark.columns` refuses a column with the mark as the rows' target, also in a user's
    own function. A column that is computed has no mark.
    """
    if "topic" not in frame.schema.names:
        return frame
    # Spark's ids of columns tell; on Connect only the printed plan shows them.
    plan = explained(frame.select("topic"))["Analyzed Logical"].strip().splitlines()
    chosen = next((found[1] for line in plan if (found := _TOPIC.search(line))), "")
    for line, below in itertools.pairwise(plan):
        if "- View (" in line:
            chosen = {own: number for number, own in _OF_VIEW.findall(below)}.get(chosen, chosen)
    read = {number for line in plan if _KAFKA in line for number in _TOPIC.findall(line)}
    if chosen not in read:
        return frame
    return frame.withMetadata("topic", dict(SOURCES_OWN))
