"""Whether a query's plan keeps each source partition's rows in one task, in offset order."""

import contextlib
import io
import re
from typing import Final

from pyspark.sql import DataFrame

from spark_eos.errors import UnsupportedPipelineError

_OPERATOR: Final = re.compile(r"^[\s:+|*\-]*(?:\(\d+\)\s*)?([A-Z]\w+)", re.MULTILINE)
_BROADCAST: Final = "BroadcastExchange"
_REFUSED: Final = {
    "Exchange": "a shuffle",
    "Aggregate": "an aggregation",
    "StateStore": "state",
    "Deduplicate": "state (dropDuplicates)",
    "SymmetricHashJoin": "state (a stream-stream join)",
    "GroupsWithState": "state",
    "TransformWithState": "state",
    "Limit": "a limit",
    "Sort": "a sort",
    "Window": "a window function",
    "SessionWindow": "state (a session window)",
}


def explained(frame: DataFrame) -> str:
    """The physical plan as Spark prints it."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain()
    return text.getvalue().split("== Physical Plan ==")[-1]


def plan_operators(frame: DataFrame) -> list[str]:
    """Names of the physical plan's operators, from the root down."""
    return _OPERATOR.findall(explained(frame))


def check_narrow(frame: DataFrame) -> None:
    """Refuses a plan that moves or reorders rows between source and sink.

    Raises:
        UnsupportedPipelineError: naming the operator.
    """
    for operator in plan_operators(frame):
        if operator == _BROADCAST or operator.startswith("SortMergeJoin"):
            continue
        for word, meaning in _REFUSED.items():
            if word in operator:
                raise UnsupportedPipelineError(
                    f"the query holds {meaning} ({operator} in its plan). Exactly-once needs the "
                    "rows of a source partition to stay in one task in offset order: filter, "
                    "select, map, mapInArrow, broadcast joins, union and coalesce keep them so. "
                    "Shuffle in a query of its own, to a topic in between"
                )
