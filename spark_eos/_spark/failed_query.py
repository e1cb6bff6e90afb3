"""Extracts a query's error from Spark's text, without the plan and stack traces; no I/O."""

import re
from typing import Final

_ENDED: Final = "terminated with exception: "
_QUERY: Final = "\n=== Streaming Query ==="
_JAVAS_FRAME: Final = re.compile(r"\n[ \t]*at [\w.$/]+\(")
_STATE: Final = re.compile(r"SQLSTATE: \w+\Z")
# The prefix that Spark puts before the text of `raise_error` in a query.
_RAISED: Final = "[USER_RAISED_EXCEPTION] "
_TRACEBACK: Final = "Traceback (most recent call last):\n"
# A frame's line of code and the markers below it.
_CODE: Final = re.compile(r"\A(?:[ ^~]{4}.*\n|[ ^~]*\^[ ^~]*\n)*")
_FRAME: Final = re.compile(r'^  File ".*", line \d+, in .*\n', re.MULTILINE)
_OURS: Final = "spark_eos.errors."
# The first text appears if the older query finds the newer query's log, the second if both queries
# create a log.
_TWO_QUERIES: Final = re.compile(
    r"\[CONCURRENT_STREAM_LOG_UPDATE\]|^Multiple streaming queries are concurrently using"
)
_ONE_CHECKPOINT: Final = (
    "two queries use this checkpoint, so the second one to log its batch has ended; no row "
    "is lost or written twice. If the same program was started twice, stop one of the two, and "
    "restart the other if it has ended. Different queries need their own checkpoint_location and "
    "group_id"
)
_STATE_STORE: Final = "[CANNOT_LOAD_STATE_STORE"
_DAMAGED_STATE: Final = (
    "files of the query's state, below the checkpoint, may be missing or damaged. Restore a copy "
    "of the whole checkpoint that is no older than the last batch, or start with another group_id "
    "and another checkpoint_location"
)
# Java's exceptions for a file system that refuses an operation.
_OF_FILES: Final = re.compile(
    r"\b(?:java\.n?io|org\.apache\.hadoop)(?:\.\w+)*?\.\w*Exception\)?:? (?P<why>[^\n]+)"
)


def without_trace(text: str) -> str:
    """Return the text of a Spark exception without Java's stack trace."""
    return _with_cure(_without_states(_JAVAS_FRAME.split(text, 1)[0]).strip())


def cause_of(text: str) -> str:
    """Return the error that ended a query, from the text of Spark's StreamingQueryException."""
    # Use this only for errors that no batch raised: functions may quote records, which can contain
    # anything.
    cause = text.partition(_QUERY)[0]
    cause = (cause.partition(_ENDED)[2] or cause).removeprefix(_RAISED)
    cause = _JAVAS_FRAME.split(cause, 1)[0]
    if _TRACEBACK in cause:
        after = [*_FRAME.split(cause)][-1]
        cause = after[_CODE.match(after).end() :]  # type: ignore[union-attr]
        # If the exception was raised in another process, Spark's own exception follows.
        cause = cause.partition("\n\nThe above exception")[0]
    cause = _without_states(cause).strip().removeprefix(_OURS)
    return _with_cure(cause)


def _with_cure(cause: str) -> str:
    if not cause or cause == "null":
        return f"Spark names no cause, but its log may. If the query keeps state, {_DAMAGED_STATE}"
    if _TWO_QUERIES.search(cause):
        return f"{cause}: {_ONE_CHECKPOINT}"
    if _STATE_STORE in cause:
        return f"{cause}: {_DAMAGED_STATE}"
    return cause


def file_fault(text: str) -> str | None:
    """Return why a file system refused an operation, from a Spark exception's text; else None."""
    match = _OF_FILES.search(text)
    return None if match is None else match["why"]


def _without_states(text: str) -> str:
    text = text.rstrip()
    while (shorter := _STATE.sub("", text).rstrip()) != text:
        text = shorter
    return text
