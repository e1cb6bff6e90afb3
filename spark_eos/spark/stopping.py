"""What a batch raises when its query is stopped in the middle of it."""

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

    While a query is being stopped Spark looks for the interruption with a regular expression that
    recurs with every character of the error's text (SPARK-48717): with a stack trace in it Spark's
    own thread may overflow its stack. What the expression looks for must therefore still be there.

    Args:
        error: what the job raised.
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
