"""Refuses a stream that drops the errors of its bad rows: they would be written as nulls."""

import re
from typing import Final

from pyspark.sql import DataFrame

from spark_eos._spark.narrow_plan import explained
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import UnsupportedPipelineError

ADDING_ERRORS: Final = ("_Mapping", "Decoding", "Encoding")
"""What `guarded`, `decode` and `encode` give to mapInArrow: Spark's plans have these names."""

_OUTPUT: Final = re.compile(rf"MapInArrow \w+\(.*\)#\d+L?, \[.*\b{ERROR}#(\d+)\b")
# Spark shortens lists of many columns; what is left out may be the error.
_SHORTENED: Final = "more fields"


def check_errors_kept(frame: DataFrame) -> None:
    """Refuses a stream whose rows have lost an ``error`` that nobody has looked at.

    Raises:
        UnsupportedPipelineError: so it is.
    """
    if ERROR in frame.schema.names:
        return
    if drops_errors(explained(frame)["Analyzed Logical"]):
        raise UnsupportedPipelineError(
            f"the query drops the column `{ERROR}` of guarded, decode or encode, and would write "
            f"null for each row with one. Keep it, as in select('source', 'key', 'value', "
            f"'{ERROR}'), so that such rows become dead letters; end the query at the first one, "
            f"with errors='raise' of decode or encode; or leave them out knowingly, with "
            f"where('{ERROR} is null') before it is dropped"
        )


def drops_errors(plan: str) -> bool:
    """Whether an analyzed plan has an ``error`` of ours that is dropped without a look at it."""
    lines = plan.strip().splitlines()
    for row, line in enumerate(lines):
        if "MapInArrow" not in line or not any(f" {name}(" in line for name in ADDING_ERRORS):
            continue
        if (added := _OUTPUT.search(line)) is not None and _is_dropped(added[1], lines[:row]):
            return True
    return False


def _is_dropped(number: str, above: list[str]) -> bool:
    """Whether the lines above the one that adds a column, the last step first, leave it out."""
    column = re.compile(rf"\b{ERROR}#{number}\b")
    kept_as_it_is = re.compile(rf"(?<=[\[ ]){ERROR}#{number}(?=[,\]])")
    for line in above:
        if _SHORTENED in line or column.search(kept_as_it_is.sub("", line)):
            return False
        if "Project" not in line and column.search(line):
            return False
    last = next((line for line in above if "Project" in line), None)
    return last is not None and column.search(last) is None
