"""Refuses the source's own `topic` column, which would send rows back to where they came from."""

from typing import Any

from pyspark.sql import DataFrame

from spark_eos.errors import UnsupportedPipelineError
from spark_eos.spark.connect import is_connect
from spark_eos.spark.stream_sources import READ_BY_US


def check_targets(frame: DataFrame) -> None:
    """Refuses a stream that passes on the `topic` column of `ExactlyOnceSink.read`.

    A `topic` column is each row's target. A client of Spark Connect does not see whose column it
    is: there the first batch refuses its rows.

    Args:
        frame: The streaming DataFrame to write, whose source is in the target's cluster.

    Raises:
        UnsupportedPipelineError: The column is the source's, so rows would feed the query itself.
    """
    if "topic" not in frame.schema.names or is_connect(frame):
        return
    plan: Any = frame._jdf.queryExecution().analyzed()
    if _topics(plan) & _topics_read(plan):
        raise UnsupportedPipelineError(
            "the `topic` column is the source's, and the sink takes `topic` for each row's target, "
            "so the query would feed itself. Select the columns to write, as in "
            "select('source', 'key', 'value'), or leave the others out with "
            "drop('topic', 'partition', 'timestamp')"
        )


def _topics_read(plan: Any) -> set[int]:
    leaves = plan.collectLeaves()
    found: set[int] = set()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        # Another source of Spark's may be in another cluster, where topics have the same names.
        kind = str(leaf.getClass().getSimpleName())
        if kind == "StreamingRelationV2" and leaf.extraOptions().get(READ_BY_US) is not None:
            found |= _topics(leaf)
    return found


def _topics(plan: Any) -> set[int]:
    """Spark's ids of a plan's `topic` columns: a column that is computed has one of its own."""
    output = plan.output()
    columns = (output.apply(index) for index in range(output.size()))
    return {int(column.exprId().id()) for column in columns if column.name() == "topic"}
