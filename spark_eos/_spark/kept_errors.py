"""Refuses a stream that drops the errors of its bad rows: they would be written as nulls."""

import re
from collections.abc import Sequence
from typing import Final

from spark_eos._spark.narrow_plan import Operator, operators
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import UnsupportedPipelineError

ADDING_ERRORS: Final = ("_Mapping", "Decoding", "Encoding")
"""What `guarded`, `decode` and `encode` give to mapInArrow: Spark's plans have these names."""

_ADDED: Final = re.compile(
    rf"MapInArrow (?:{'|'.join(ADDING_ERRORS)})\(.*\)#\d+, \[.*\b{ERROR}#(\d+)\b"
)
# What has the columns that it names, and no others. A union has ids of its own.
_CHOOSING: Final = ("Project", "Aggregate", "Map", "FlatMap", "TransformWithState")
# Spark shortens lists of many columns; what is left out may be the error.
_SHORTENED: Final = "more fields"


def check_errors_kept(plan: str) -> None:
    """Refuses an analyzed plan whose rows have lost an ``error`` that nobody has looked at."""
    if drops_errors(plan):
        raise UnsupportedPipelineError(
            f"the query drops the column `{ERROR}` of guarded, decode or encode, and would write "
            f"null for each row with one. Keep it, as in select('source', 'key', 'value', "
            f"'{ERROR}'), so that such rows become dead letters; end the query at the first one, "
            f"with errors='raise' of decode or encode; or leave them out knowingly, with "
            f"where('{ERROR} is null') before it is dropped"
        )


def drops_errors(plan: str) -> bool:
    """Whether an analyzed plan has an ``error`` of ours that is dropped without a look at it."""
    above: list[Operator] = []
    # The first line has the names of the columns.
    for operator in operators(plan.strip().partition("\n")[2]):
        while above and above[-1].depth >= operator.depth:
            above.pop()
        added = _ADDED.search(operator.line)
        if added is not None and _is_dropped(added[1], above):
            return True
        above.append(operator)
    return False


def _is_dropped(number: str, above: Sequence[Operator]) -> bool:
    """Whether the operators above the one that adds a column, from the root, leave it out."""
    column = re.compile(rf"\b{ERROR}#{number}\b")
    as_it_is = re.compile(rf"(?<=[\[ ]){ERROR}#{number}(?=[,\]])")
    for one in above:
        looked_at = as_it_is.sub("", one.line) if one.name == "Project" else one.line
        if one.name == "Union" or _SHORTENED in one.line or column.search(looked_at):
            return False
    last = next((one for one in above if one.name.startswith(_CHOOSING)), None)
    return last is not None and column.search(last.line) is None
