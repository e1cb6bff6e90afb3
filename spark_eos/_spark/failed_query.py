"""What a query has failed with, without the plan and the stack traces that Spark adds; pure."""

import re
from typing import Final

_OF_SPARK: Final = re.compile(
    # What Spark puts in front: [STREAM_FAILED] Query [id = ..., runId = ...] terminated with ...
    r"\A(?:.*?terminated with exception: )?(?P<cause>.*?)"
    # What follows: SQL states, Java's frames, the query's identifiers and its plan.
    r"(?:\s*SQLSTATE: \w+)*\s*(?:\n\s*at [\w.$/]+\(.*)?(?:\n=== Streaming Query ===.*)?\Z",
    re.DOTALL,
)
# Of `raise_error` in a query.
_RAISED: Final = "[USER_RAISED_EXCEPTION] "
_TRACEBACK: Final = "Traceback (most recent call last):\n"
# A frame's line of code, and the marks below it.
_CODE: Final = re.compile(r"\A(?:[ ^~]{4}.*\n|[ ^~]*\^[ ^~]*\n)*")
_FRAME: Final = re.compile(r'^  File ".*", line \d+, in .*\n', re.MULTILINE)
_OURS: Final = "spark_eos.errors."


def cause_of(text: str) -> str:
    r"""The error that has ended a query, from the text of Spark's StreamingQueryException.

    Spark keeps only the text of an exception in a batch: on Spark Connect that is all a client
    gets, and the query's process is another one.

    Example:
        >>> cause_of("[STREAM_FAILED] Query [id = 7] terminated with exception: no disk SQLSTATE: "
        ...          "XXKST\n=== Streaming Query ===\nIdentifier: ...")
        'no disk'
    """
    found = _OF_SPARK.match(text)
    cause = text if found is None else found["cause"].removeprefix(_RAISED)
    if _TRACEBACK in cause:
        after = [*_FRAME.split(cause)][-1]
        cause = after[_CODE.match(after).end() :]  # type: ignore[union-attr]
        # Spark's frames follow, where the exception was raised in another process.
        cause = re.split(r"\n\s*at [\w.$/]+\(|\n\nThe above exception", cause)[0]
    return re.sub(r"(?:\s*SQLSTATE: \w+)+\s*\Z", "", cause).strip().removeprefix(_OURS)
