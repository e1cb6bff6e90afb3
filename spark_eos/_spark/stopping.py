"""The error that a batch raises when its query is stopped in the middle of it."""

import re
from typing import Final

from spark_eos.errors import QueryStoppedError

_INTERRUPTIONS: Final = re.compile(
    r"java\.(?:lang\.InterruptedException|io\.InterruptedIOException"
    r"|nio\.channels\.ClosedByInterruptException)"
)
_FRAME: Final = "\n\tat "


def as_query_stopped_error(error: BaseException) -> QueryStoppedError | None:
    """An interrupted or cancelled job's error without Java's stack trace; None for any other.

    While it stops a query, Spark searches the error's text for the interruption with a regular
    expression that recurses on every character (SPARK-48717): a stack trace in the text may
    overflow the stack of Spark's thread. So the trace is cut, but what the expression looks for
    stays.

    Example:
        >>> as_query_stopped_error(ValueError("no interruption")) is None
        True
    """
    kind = type(error)
    if kind.__name__ != "Py4JJavaError":
        return None
    text = str(error)
    summary = text.partition(_FRAME)[0]
    interruptions = sorted(set(_INTERRUPTIONS.findall(text)) - set(_INTERRUPTIONS.findall(summary)))
    if not interruptions and not _INTERRUPTIONS.search(summary) and "cancelled" not in summary:
        return None
    return QueryStoppedError(
        "the batch was interrupted: "
        + " ".join([f"{kind.__module__}.{kind.__name__}: {summary}", *interruptions])
    )
